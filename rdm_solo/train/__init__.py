"""Pretrain: ``python -m rdm_solo.train method=simsiam filter=target_pow p=-0.5``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_solo.train.run import run

__all__ = ["compose", "run"]


def compose(overrides: list[str]) -> Any:
    """Return the config of a run with these options, such as ``["method=byol", "p=-0.5"]``."""
    from rdm_solo import cli

    return cli.compose("config", overrides)


def __getattr__(name: str) -> Any:
    if name == "run":  # torch and Lightning take seconds to import
        from rdm_solo.train.run import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
