"""The plan of the study, written before its runs."""

from studies.training import read_plan

PLAN = read_plan("evidence/study.yaml")
SEEDS = PLAN["seeds"]
ROWS = PLAN["rows"]
PIXELS, UNTRAINED = "raw pixels", "untrained network"
