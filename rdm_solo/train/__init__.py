"""Pretrain: ``rdm-solo train method=simsiam filter=target_pow p=-0.5``.

In Python, ``rdm_solo.train.run.run(compose([...]), folder)`` trains in this process.
"""

from collections.abc import Sequence
from typing import Any

from rdm_solo.cli import arguments


def compose(overrides: Sequence[str]) -> Any:
    """Return the config of a run with these options, such as ``["method=byol", "seed=1"]``."""
    return arguments.compose("config", overrides)
