"""Pretrain: ``python -m rdm_solo.train method=simsiam filter=target_pow p=-0.5``."""

from rdm_solo.train.training import build, run

__all__ = ["build", "run"]
