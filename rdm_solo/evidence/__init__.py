"""The paper's claims on the embedded digits: ``python -m rdm_solo.evidence``."""
