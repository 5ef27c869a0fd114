"""What a run is made of, and whether this process is its first."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_solo.callbacks import CollapseWatch
    from rdm_solo.train.child_processes import Children

__all__ = ["RANK_VARIABLES", "Parts", "is_first_process"]

# Of torchrun, Lightning and srun, in the order in which Lightning asks.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def is_first_process() -> bool:
    """Whether this is the first process; before the Trainer is built, its launcher has said so."""
    given = (os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    return next(given, "0") == "0"


@dataclass
class Parts:
    """Everything that a run is made of."""

    trainer: Any
    model: Any
    data: Any
    derived: dict[str, Any]
    checkpoint: Path | None  # where a resumed run goes on
    watch: CollapseWatch
    children: Children
    threads: int | None  # of the CPU; None: as many as torch takes
