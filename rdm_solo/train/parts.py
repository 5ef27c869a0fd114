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


@dataclass
class Parts:
    """Everything that a run is made of."""

    folder: Path
    trainer: Any
    model: Any
    data: Any
    derived: dict[str, Any]
    recorded: dict[str, Any]  # what summary.json says of the settings
    checkpoint: Path | None  # where a resumed run goes on
    children: "Children"
    threads: int | None  # of the CPU; None: as many as torch takes
