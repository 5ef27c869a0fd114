"""The plan of the study, written before its runs."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

PLAN: Any = OmegaConf.to_container(
    OmegaConf.load(Path(__file__).with_name("study.yaml")), resolve=True
)
SEEDS: list[int] = PLAN["seeds"]
ROWS: dict[str, list[str]] = PLAN["rows"]
PIXELS, UNTRAINED = "raw pixels", "untrained network"
