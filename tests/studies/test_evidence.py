"""Verdicts on the paper's claims follow the plan, and the page follows the table of runs."""

import itertools
import random

import pytest
from conftest import ROOT
from scipy import stats
from support.small_runs import train_study

from studies import table, training
from studies.evidence import page, runs
from studies.evidence.claims import BUILT, FAILED, OPEN, REPRODUCED, UNTESTED, WAITS, Judge, runs_of
from studies.evidence.plan import MEASURED, ROWS, SEEDS, STUDY
from studies.intervals import difference, holm, share

CLAIMS = STUDY["claims"]
RECORDED = table.read(ROOT / "studies" / "evidence" / "runs.csv")


def invented(**changes: dict[str, list[float]]):
    """Runs with the same numbers in every row, but for the changes: column -> row -> values."""
    rng = random.Random(0)
    noise = [rng.gauss(0, 0.1) for _ in SEEDS]
    rows = {
        name: {seed: dict.fromkeys(MEASURED, 5 + noise[i]) for i, seed in enumerate(SEEDS)}
        for name in ROWS
    }
    for column, of_rows in changes.items():
        for row, values in of_rows.items():
            for seed, value in zip(SEEDS, values, strict=True):
                rows[row][seed][column.replace("_", " ")] = value
    return rows


def verdict(says: str, rows, failed=()):
    (claim,) = [claim for claim in CLAIMS if says in claim["says"]]
    return Judge(STUDY, rows, SEEDS, failed).verdict(claim)


def spaced(mean: float, half: float) -> list[float]:
    """Ten values around 5 + ``mean``."""
    return [5 + mean + half * (i - 4.5) / 4.5 for i in range(10)]


def test_the_recorded_page_is_that_of_the_recorded_table():
    assert page.page(RECORDED) == (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert page.appendix(RECORDED) == page.APPENDIX.read_text(encoding="utf-8")
    assert runs.missing(RECORDED) == []
    assert runs.missing(RECORDED[1:]) == [(RECORDED[0]["row"], int(RECORDED[0]["seed"]))]


def test_statistics_are_scipys():
    rng = random.Random(0)
    for _ in range(20):
        pairs = [rng.gauss(rng.uniform(-1, 1), 1) for _ in range(rng.randint(2, 12))]
        ours, theirs = difference(pairs, -1.0), stats.ttest_1samp(pairs, -1.0)
        interval = theirs.confidence_interval(0.95)
        assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
        assert (ours.low, ours.high) == pytest.approx(tuple(interval), rel=1e-9)
        count, total = rng.randint(0, 30), 30
        exact = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
        assert share(count, total) == pytest.approx(tuple(exact), abs=1e-9)
    assert difference([2.0, 2.0]) == (2, 2, 2, 0, 0)


def test_holm_is_the_closed_test_of_bonferroni():
    rng = random.Random(0)
    for _ in range(20):
        p = {key: rng.random() ** 3 for key in range(6)}
        sets = [s for n in range(1, 7) for s in itertools.combinations(p, n)]
        local = {s: min(1.0, len(s) * min(p[key] for key in s)) for s in sets}
        closed = {key: max(local[s] for s in sets if key in s) for key in p}
        assert holm(p) == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize(
    ("mean", "expected"), [(3, REPRODUCED), (-3, FAILED), (0.5, OPEN)]
)  # 0.5 has p < 0.05 alone, but not among all comparisons
def test_a_verdict_needs_p_after_the_correction(mean, expected):
    rows = invented(linear_end={"SimSiam: learnable": spaced(mean, 1)})
    assert verdict("SymSimSiam's accuracy is below", rows).verdict == expected
    assert difference([value - 5 for value in spaced(mean, 1)]).p < 0.05


def test_a_bound_is_for_the_worst_seed_and_controls_must_not_pass():
    rule = "Learned and hand-made asymmetry"
    claimed = ("learnable", "clustering: SwAV", "clustering: DINO")
    controls = {row: [0.0] * 10 for row in ROWS if not row.endswith(claimed)}
    good = {"SimSiam: learnable": [1.0] * 9 + [0.96]}
    assert verdict(rule, invented(gap_share=controls | good)).verdict == REPRODUCED
    bad = {"SimSiam: learnable": [1.0] * 9 + [0.9]}
    text = verdict(rule, invented(gap_share=controls | bad)).verdict
    assert f"{FAILED}: SimSiam: learnable" in text
    control = {"BYOL: identity": [0.0] * 9 + [1.0]}
    text = verdict(rule, invented(gap_share=controls | good | control)).verdict
    assert f"{OPEN} (passed also by BYOL: identity): BYOL: learnable" in text
    rise = {"BYOL: learnable": [0.2] * 9 + [-0.1]}
    text = verdict("ranks of both outputs rise", invented(erank_online_rise=rise)).verdict
    assert f"{FAILED}: BYOL: learnable" in text


def test_a_collapsed_row_is_named_and_reproduces_no_rank():
    low = {"BYOL: identity": [1.0] * 10, "BYOL: online σ": [1.5] * 10}
    low |= {row: [0.9] * 10 for row in ROWS if row.startswith(("BYOL: wrong", "BYOL: lin"))}
    text = verdict("In BYOL both kinds", invented(erank_projection_last=low)).verdict
    assert text.endswith("; compared with BYOL: identity (outputs collapsed in 10 of 10)")
    assert f"{FAILED} (passes, but its outputs collapsed): BYOL: online σ;" in text
    assert f"{REPRODUCED}: BYOL: online log σ" in text
    half = invented(variance={"SimSiam: identity": [0.05] * 5 + [1.0] * 5})
    judge = Judge(STUDY, half, SEEDS)
    assert judge.collapsed("SimSiam: identity") == (5, 10)
    assert not judge.mostly_collapsed("SimSiam: identity")
    assert judge.collapsed("clustering: DINO") is None


def test_no_verdict_before_all_runs_and_none_without_the_failed():
    rows = invented()
    del rows["clustering: DINO"][SEEDS[3]]
    judge = Judge(STUDY, rows, SEEDS)
    assert {judge.verdict(claim).verdict for claim in CLAIMS} == {WAITS, BUILT, UNTESTED}
    assert f"{FAILED}: clustering: DINO" in verdict("weighted by", rows, ["clustering: DINO"])[0]
    del rows["SimSiam: linear"][SEEDS[3]]
    result = verdict("A linear predictor", rows, ["clustering: DINO", "SimSiam: linear"])
    assert result[:2] == (OPEN, "SimSiam: linear: a run failed")


def test_a_run_becomes_a_row(monkeypatch):
    monkeypatch.setattr(training, "train", train_study)
    short = [s for s in STUDY["shared"] if "epochs" not in s]
    short += ["max_epochs=2", "scheduler.warmup_epochs=0", "backbone.kwargs.width=8"]
    monkeypatch.setitem(STUDY, "shared", [*short, "knn.every_n_epochs=0"])
    monkeypatch.setattr(runs, "PROBED", (1, 2))
    monkeypatch.setattr(runs, "WARMUP", 0)
    monkeypatch.setitem(ROWS, "symmetric: v", ["method=vanilla"])
    values = runs_of([runs.measure("symmetric: v", 1)])["symmetric: v"][1]
    assert set(values) == set(MEASURED)
    assert (values["epochs"], values["gap epochs"]) == (2, 0)


@pytest.mark.process
@pytest.mark.long
def test_an_untrained_network_has_the_recorded_accuracy():
    recorded = next(row for row in RECORDED if row["row"] == runs.UNTRAINED)
    row = runs.measure(runs.UNTRAINED, int(recorded["seed"]))
    assert float(row["knn end"]) == pytest.approx(float(recorded["knn end"]), abs=1)
