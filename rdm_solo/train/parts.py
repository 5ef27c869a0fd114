"""What a run is made of, and whether this process is its first."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdm_solo.train.child_processes import Children

# Of torchrun, Lightning and srun, in the order in which Lightning asks.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def is_first_process() -> bool:
    """Whether this is the first process; before the Trainer is built, its launcher has said so."""
    given = (os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    return next(given, "0") == "0"


@dataclass(frozen=True)
class Derived:
    """What follows from the config and the data set."""

    processes: int
    filter_batch: int  # rows that a filter sees: those of all processes together
    global_batch: int  # rows of an optimiser step, accumulated ones included
    base_lr: float
    lr: float  # scaled by the global batch
    classifier_lr: float


@dataclass(frozen=True)
class Parts:
    """Everything that a run is made of."""

    folder: Path
    trainer: Any
    model: Any
    data: Any
    recorded: dict[str, Any]  # of the settings, in summary.json
    checkpoint: Path | None  # where a resumed run goes on
    children: "Children"
    threads: int | None  # of the CPU; None: as many as torch takes
