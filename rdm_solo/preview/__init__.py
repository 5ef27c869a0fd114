"""Preview a filter before any training: ``python -m rdm_solo.preview filter=target_pow p=-0.5``."""
