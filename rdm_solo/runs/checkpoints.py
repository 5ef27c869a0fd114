"""A run's weights, and the backbone that they belong to."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rdm_solo.methods.weight_files import Spec, Weights, read
from rdm_solo.runs.files import CHECKPOINT
from rdm_solo.runs.saved_config import run_config


def of_run(run: str | Path, checkpoint: str | Path | None = None) -> tuple[Weights, Spec]:
    """A run's last weights, or those of another of its checkpoints, and its backbone."""
    backbone = run_config(Path(run)).backbone
    path = Path(checkpoint or Path(run) / CHECKPOINT)
    if not path.is_file():
        raise ValueError(
            f"run={run} has no checkpoint {path}: let it finish an epoch, or give checkpoint=FILE"
        )
    kwargs: Any = OmegaConf.to_container(backbone.kwargs)
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    return read(path), Spec(backbone.name, backbone.stem, kwargs)
