"""What filters, steps, views, reading and spectra cost: ``python -m rdm_solo.bench``."""
