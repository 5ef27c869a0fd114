"""What filters, spectra, whole steps and epochs cost on a GPU: ``python -m benchmarks.gpu``."""
