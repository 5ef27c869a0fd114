"""The plan of the study, written before its runs."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

STUDY: Any = OmegaConf.to_container(
    OmegaConf.load(Path(__file__).with_name("study.yaml")), resolve=True
)
SEEDS: list[int] = STUDY["seeds"]
ROWS: dict[str, list[str]] = STUDY["rows"]
PIXELS, UNTRAINED = "raw pixels", "untrained network"

# What is measured in a run. Accuracies are in per cent. Cells without a measurement are empty, as
# are most of an untrained network.
MEASURED = (
    "knn third",
    "knn end",
    "linear third",
    "linear end",
    "variance first",  # of the projection, here and below
    "variance",
    "erank projection first",
    "erank projection last",
    "erank online first",
    "erank online last",
    "erank online rise",
    "erank target first",
    "erank target last",
    "erank target rise",
    "gap epochs",
    "gap share",
    "epochs",
    "alignment",
    "alignment weighted",
    "alignment positive",
    "monotonicity",
    "monotonicity directional",
)
# `status` is "ok", or says why the run failed.
HEAD = ("row", "seed", "status", *MEASURED, "seconds", "code", "versions", "processor")
OK = "ok"
