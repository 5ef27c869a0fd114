"""The plan of the study, written before its runs."""

from studies.training import read_plan

PLAN = read_plan("evidence/study.yaml")
SEEDS: list[int] = PLAN["seeds"]
ROWS: dict[str, list[str]] = PLAN["rows"]
PIXELS, UNTRAINED = "raw pixels", "untrained network"
