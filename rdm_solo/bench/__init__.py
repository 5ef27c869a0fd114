"""What filters, steps, views and spectra cost: ``python -m rdm_solo.bench``."""
