"""Verdicts on the paper's claims follow the plan."""

import random

import pandas as pd
import pytest
from support.small_runs import train_study

from studies import training
from studies.evidence import runs
from studies.evidence.claims import BUILT, FAILED, OPEN, REPRODUCED, UNTESTED, Judge
from studies.evidence.page import STUDY
from studies.evidence.plan import PLAN, ROWS, SEEDS

RECORDED = STUDY.read()
MEASURED = list(RECORDED.loc[:, "knn third":"monotonicity directional"])


def judge(**changes: dict[str, list[float]]) -> Judge:
    """Judge equal rows, but for the changes: column -> row -> values."""
    rng = random.Random(0)
    noise = [rng.gauss(0, 0.1) for _ in SEEDS]
    rows = []
    for row in ROWS:
        for i, seed in enumerate(SEEDS):
            values = dict.fromkeys(MEASURED, 5 + noise[i])
            for column, of_rows in changes.items():
                if row in of_rows:
                    values[column.replace("_", " ")] = of_rows[row][i]
            rows.append({"row": row, "seed": seed, **values})
    return Judge(pd.DataFrame(rows))


def verdict(says: str, judge: Judge) -> str:
    (claim,) = [claim for claim in PLAN["claims"] if says in claim["says"]]
    return judge.verdict(claim).text


def spaced(mean: float) -> list[float]:
    """Return ten values around 5 + ``mean``."""
    return [5 + mean + (i - 4.5) / 4.5 for i in range(10)]


@pytest.mark.parametrize(
    ("mean", "expected"), [(3, REPRODUCED), (-3, FAILED), (0.5, OPEN)]
)  # 0.5 has p < 0.05 alone, but not among all comparisons
def test_a_verdict_needs_p_after_the_correction(mean, expected):
    judged = judge(linear_end={"SimSiam: learnable": spaced(mean)})
    assert verdict("SymSimSiam's accuracy is below", judged) == expected
    assert min(test.p for test in judged.tests.values()) < 0.05


ZERO = {row: [0.0] * 10 for row in ROWS}
GOOD = ZERO | dict.fromkeys(
    ["SimSiam: learnable", "BYOL: learnable", "clustering: SwAV", "clustering: DINO"], [1.0] * 10
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"SimSiam: learnable": [1.0] * 9 + [0.96]}, REPRODUCED),
        ({"SimSiam: learnable": [1.0] * 9 + [0.9]}, f"{FAILED}: SimSiam: learnable"),
        ({"SimSiam: learnable": [1.0] * 9 + [float("nan")]}, f"{FAILED}: SimSiam: learnable"),
        (
            {"BYOL: identity": [0.0] * 9 + [1.0]},
            f"{OPEN} (passed also by BYOL: identity): BYOL: learnable",
        ),
    ],
)
def test_a_bound_is_for_the_worst_seed_and_controls_must_not_pass(changes, expected):
    judged = judge(gap_share=GOOD | changes)
    assert expected in verdict("Learned and hand-made asymmetry", judged)


def test_a_bound_holds_in_every_column():
    judged = judge(erank_online_rise={"BYOL: learnable": [0.2] * 9 + [-0.1]})
    assert f"{FAILED}: BYOL: learnable" in verdict("ranks of both outputs rise", judged)


def test_a_collapsed_row_is_named_and_reproduces_no_rank():
    low = {"BYOL: identity": [1.0] * 10, "BYOL: online σ": [1.5] * 10}
    low |= {row: [0.9] * 10 for row in ROWS if row.startswith(("BYOL: wrong", "BYOL: lin"))}
    text = verdict("In BYOL both kinds", judge(erank_projection_last=low))
    assert text.endswith("; compared with BYOL: identity (outputs collapsed in 10 of 10)")
    assert f"{FAILED} (passes, but its outputs collapsed): BYOL: online σ;" in text
    assert f"{REPRODUCED}: BYOL: online log σ" in text
    half = judge(variance={"SimSiam: identity": [0.05] * 5 + [1.0] * 5})
    assert half.collapsed("SimSiam: identity") == (5, 10)
    assert not half.mostly_collapsed("SimSiam: identity")
    assert half.collapsed("clustering: DINO") == (0, 0)


def test_a_failed_run_leaves_a_comparison_undecided():
    judged = judge(linear_end={"SimSiam: linear": [9.0] * 9 + [float("nan")]})
    assert verdict("A linear predictor", judged) == OPEN
    assert verdict("has a positive gap", judged) == BUILT
    assert verdict("Accuracies on CIFAR", judged) == UNTESTED


def test_a_run_becomes_a_row(monkeypatch):
    monkeypatch.setattr(training, "train", train_study)
    short = [option for option in PLAN["shared"] if "epochs" not in option]
    short += ["max_epochs=2", "scheduler.warmup_epochs=0", "backbone.kwargs.width=8"]
    monkeypatch.setitem(PLAN, "shared", [*short, "knn.every_n_epochs=0"])
    monkeypatch.setattr(runs, "PROBED", (1, 2))
    monkeypatch.setattr(runs, "WARMUP", 0)
    monkeypatch.setitem(ROWS, "symmetric: v", ["method=vanilla"])
    row = runs.measure("symmetric: v", 1)
    assert set(row) == set(RECORDED.columns) - {"settings"}
    assert (row["epochs"], row["gap epochs"], row["status"]) == ("2", "0", training.OK)


@pytest.mark.process
@pytest.mark.long
def test_an_untrained_network_has_the_recorded_accuracy():
    recorded = RECORDED[RECORDED["row"] == runs.UNTRAINED].iloc[0]
    row = runs.measure(runs.UNTRAINED, int(recorded["seed"]))
    assert float(row["knn end"]) == pytest.approx(float(recorded["knn end"]), abs=1)
