"""Preview a filter before any training: ``rdm-solo preview filter=target_pow p=-0.5``."""
