"""Judge encoders that exist already: ``rdm-solo measure ENCODER... dataset=NAME``."""
