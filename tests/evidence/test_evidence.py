"""Verdicts follow their rules, and the page follows the runs."""

from __future__ import annotations

import json

import pytest

from rdm_solo.evidence import claims, page, study
from rdm_solo.evidence.claims import CLAIMS, FAILED, GUARANTEED, OPEN, REPRODUCED

NAMES = [f"{row.family}: {row.name}" for row in study.ROWS]
COLUMNS = ["variance", "linear end", "linear third", "gap share", "alignment", "monotonicity"]
COLUMNS += ["alignment weighted", "alignment positive", "monotonicity directional"]
COLUMNS += ["erank projection last", "erank online rise", "erank target rise"]


def invented(**changes: dict[str, list[float]]):
    """Runs with the same numbers in every row, but for the changes: column -> row -> values."""
    runs = {name: {column: [1.0, 1.1, 0.9] for column in COLUMNS} for name in NAMES}
    for column, rows in changes.items():
        for row, values in rows.items():
            runs[row][column.replace("_", " ")] = values
    return runs


def verdict(says: str, runs) -> str:
    (claim,) = [claim for claim in CLAIMS if says in claim.says]
    return claim.judge(runs).verdict


@pytest.mark.parametrize(
    ("values", "expected"),
    [([5.0, 5.1, 4.9], REPRODUCED), ([-3.0, -3.1, -2.9], FAILED), ([1.5, 0.5, 1.0], OPEN)],
)
def test_a_difference_needs_two_standard_errors(values, expected):
    runs = invented(linear_end={"SimSiam: learnable": values})
    assert verdict("SymSimSiam's accuracy is below", runs) == expected


def test_rows_that_differ_among_themselves_are_mixed():
    rows = {f"SimSiam: {name}": [9.0, 9.1, 8.9] for name in claims.ONLINE[:2]}
    found = verdict("Fixed online low-pass", invented(erank_projection_last=rows))
    assert found.startswith(f"{REPRODUCED}: SimSiam: online σ, SimSiam: online log σ; {OPEN}: ")


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.9, 1.0, 0.8], REPRODUCED), ([-20.0, -20.1, -19.9], FAILED), ([-30, 1, 20], OPEN)],
)
def test_closeness_needs_evidence_and_not_its_absence(values, expected):
    runs = invented(linear_end={"SimSiam: linear": values})
    assert verdict("A linear predictor comes close", runs) == expected


def test_centring_is_judged_where_the_last_bn_does_not_do_its_work():
    says = "Centring alone"
    lost = {"symmetric: vanilla, no last BN": [0.01, 0.02, 0.0]}
    assert verdict(says, invented(variance=lost)) == FAILED  # one seed at 0.9 with centring
    kept = {"symmetric: SymSimSiam, no last BN": [0.99, 0.98, 0.99]}
    assert verdict(says, invented(variance=lost | kept)) == REPRODUCED
    assert verdict(says, invented(variance=kept)) == FAILED


def test_what_a_filter_forces_is_called_that_only_when_it_is_seen():
    fixed = [*claims.ONLINE, *claims.TARGET]
    rows = {f"{family}: {name}": [1.0] * 3 for family in ("SimSiam", "BYOL") for name in fixed}
    assert verdict("has a positive gap", invented(gap_share=rows)) == GUARANTEED
    rows["BYOL: online σ"] = [1.0, 0.9, 1.0]
    assert verdict("has a positive gap", invented(gap_share=rows)).startswith(FAILED)


def test_both_branches_have_to_rise():
    runs = invented(erank_online_rise={"BYOL: learnable": [0.2, -0.1, 0.2]})
    assert verdict("Both outputs' ranks rise", runs) == f"{FAILED} by BYOL: learnable"
    assert verdict("Both outputs' ranks rise", invented()) == REPRODUCED


def test_a_run_is_measured_once_and_read_back(tmp_path, monkeypatch):
    short = [s for s in study.SHARED if "epochs" not in s]
    short += ["max_epochs=2", "scheduler.warmup_epochs=0", "backbone.kwargs.width=4"]
    monkeypatch.setattr(study, "SHARED", short)
    monkeypatch.setattr(study, "PROBED", (1, 2))
    monkeypatch.setattr(study, "WARMUP", 0)
    monkeypatch.setattr(study, "ROWS", [study.Row("symmetric", "v", ("method=vanilla",))])
    for seed in (0, 1):
        folder = study.measure(study.ROWS[0], seed, tmp_path)
    written = (folder / "probe.json").stat().st_mtime_ns
    assert study.measure(study.ROWS[0], 1, tmp_path) == folder
    assert (folder / "probe.json").stat().st_mtime_ns == written

    runs = study.collect([0, 1], tmp_path)
    probes = [
        json.loads((tmp_path / "vanilla" / str(s) / "probe.json").read_text()) for s in (0, 1)
    ]
    assert runs["symmetric: v"]["knn end"] == [probe["2"]["knn"] for probe in probes]
    assert runs["symmetric: v"]["linear third"] == [probe["1"]["linear"] for probe in probes]
    assert runs["symmetric: v"]["gap share"] == [0, 0]

    monkeypatch.setattr(page, "CLAIMS", [])
    facts = study.facts([0, 1], tmp_path, [])
    text = page.page(runs, {}, facts)
    mean = sum(probe["2"]["knn"] for probe in probes) / 2
    assert f"→ {mean:.1f} ±" in text
    assert "seeds: 0, 1" in text
    assert "torch" in facts["versions"]

    monkeypatch.setattr(study, "SHARED", [*short, "optimizer.lr=0.1"])
    with pytest.raises(ValueError, match="run with other settings"):
        study.measure(study.ROWS[0], 1, tmp_path)


def test_raw_pixels_are_known():
    found = study.untrained(None)
    assert found["knn"] == pytest.approx(97.5, abs=0.01)
    assert 94 < found["linear"] < 98
