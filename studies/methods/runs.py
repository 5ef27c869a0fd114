"""Train one run of the study, a method with its recipe for the digits, and return its row."""

import pandas as pd

from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from studies import training
from studies.study import joined
from studies.training import read_plan

PLAN = read_plan("methods/plan.yaml")


def planned(table: pd.DataFrame) -> list[tuple[str, int]]:
    """Return method and seed of all runs of the installed solo-learn's methods."""
    planned = []
    for seed in PLAN["seeds"]:
        for name, method in METHODS.items():
            if solo_learn.GENERATION in method.versions:
                planned.append((name, seed))
    return planned


def measure(name: str, seed: int) -> dict[str, str]:
    """Train a method with a seed and return the columns of the table."""
    options = [*PLAN["shared"], f"method={name}", f"seed={seed}"]
    with training.trained(options) as (run, about):
        warnings = run.summary["warnings"]
    row = {
        "diverged": training.divergence(run),
        "dimensions": str(run.config.method.kwargs.proj_output_dim),
        "warnings": "; ".join(f"{w['kind']} in epoch {w['epoch']}" for w in warnings),
    }
    for column in PLAN["measured"]:
        # A run that diverges in its first epoch has measured nothing.
        row[column] = joined(run.metrics.get(column, ()))
    return row | about
