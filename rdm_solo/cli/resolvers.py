"""Functions that the config files call as ``${rdm_solo.NAME:ARGUMENTS}``."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any


def register_resolvers(*resolvers: Any) -> None:
    """Register this module's functions and the given ones with OmegaConf."""
    from omegaconf import OmegaConf

    for resolver in (exponent, stem, warm_up, time_or_job, *resolvers):
        OmegaConf.register_new_resolver(f"rdm_solo.{resolver.__name__}", resolver, replace=True)


def exponent(p: Any) -> str:
    """Return the exponent's part of a folder's name, if there is one; a schedule is a mapping."""
    if p is None:
        return ""
    if isinstance(p, Mapping):
        return "_p=" + "_".join(map(str, p.values()))
    return f"_p={p}"


def warm_up(epochs: float, max_epochs: int) -> float:
    """Return the warm-up's length in epochs, capped at a fifth of the run."""
    return min(epochs, round(max_epochs / 5, 3))


def stem(image_size: int) -> str:
    """Return the stem of a ResNet that suits the size of the views in pixels."""
    return "small" if image_size <= 64 else "imagenet"


def time_or_job(now: str, overrides: Sequence[str]) -> str:
    """Return the start of a default folder name: the time, or the SLURM job and a hash of options.

    A requeued job and all its processes then use the same folder.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return now
    text = " ".join(overrides)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"job_{job}_{digest[:6]}"
