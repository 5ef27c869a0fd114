"""The plan of the trial, written before its runs."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

PLAN: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("plan.yaml")))
SEEDS: list[int] = PLAN["seeds"]
DATA: dict[str, list[str]] = PLAN["data"]
SETTINGS: dict[str, list[str]] = {
    name: options for question in PLAN["settings"].values() for name, options in question.items()
}
EPOCHS = 30

# What is measured in a run: at its end, except the untrained network's accuracy and the mean gap.
MEASURED = ("linear", "knn", "linear untrained", "erank", "erank online", "erank target", "gap")
# `status` is "ok", or says in which epoch the run diverged.
HEAD = ("setting", "data", "seed", "status", *MEASURED, "seconds", "code", "versions", "processor")
OK = "ok"
