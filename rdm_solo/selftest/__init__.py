"""Checks of this machine's hardware and versions: ``python -m rdm_solo.selftest``."""
