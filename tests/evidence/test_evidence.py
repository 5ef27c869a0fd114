"""Verdicts follow their rules, and the page follows the runs."""

import fnmatch
import json

import pytest
from conftest import ROOT

from rdm_solo.evidence import page, study
from rdm_solo.evidence.claims import FAILED, OPEN, REPRODUCED, judge

CLAIMS = study.STUDY["claims"]
COLUMNS = {column for claim in CLAIMS for column in claim.get("columns", [])}
GUARANTEED = "guaranteed by the filter"


def invented(**changes: dict[str, list[float]]):
    """Runs with the same numbers in every row, but for the changes: column -> row -> values."""
    runs = {name: {column: [1.0, 1.1, 0.9] for column in COLUMNS} for name in study.ROWS}
    for column, rows in changes.items():
        for row, values in rows.items():
            runs[row][column.replace("_", " ")] = values
    return runs


def verdict(says: str, runs) -> str:
    (claim,) = [claim for claim in CLAIMS if says in claim["says"]]
    return judge(claim, runs)[0]


def test_every_claim_names_rows_that_are_trained():
    for claim in CLAIMS[:-1]:
        for pattern in claim["rows"]:
            assert fnmatch.filter(study.ROWS, pattern), pattern
        # One test each, so that no rule is left out in silence.
        assert len(claim.keys() - {"says", "rule", "rows", "columns", "passed"}) == 1
    assert judge(CLAIMS[-1], invented()) == (OPEN, "no run")


@pytest.mark.parametrize(
    ("values", "expected"),
    [([5.0, 5.1, 4.9], REPRODUCED), ([-3.0, -3.1, -2.9], FAILED), ([1.5, 0.5, 1.0], OPEN)],
)
def test_a_difference_needs_two_standard_errors(values, expected):
    runs = invented(linear_end={"SimSiam: learnable": values})
    assert verdict("SymSimSiam's accuracy is below", runs) == expected


def test_rows_that_differ_among_themselves_are_mixed():
    rows = {f"SimSiam: {name}": [9.0, 9.1, 8.9] for name in ("online σ", "online log σ")}
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
    kept = {"symmetric: SymSimSiam, no last BN": [0.99, 0.98, 0.99]}
    lost = {"symmetric: vanilla, no last BN": [0.01, 0.02, 0.0]}
    assert verdict("Centring alone", invented()) == FAILED  # one seed at 0.9
    assert verdict("Centring alone", invented(variance=kept)) == REPRODUCED
    assert verdict("Without centring", invented()) == FAILED
    assert verdict("Without centring", invented(variance=lost)) == REPRODUCED


def test_what_a_filter_forces_is_called_that_only_when_it_is_seen():
    kinds = (": online", ": target")
    rows = {row: [1.0] * 3 for row in study.ROWS if any(kind in row for kind in kinds)}
    assert len(rows) == 16
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
    monkeypatch.setattr(study, "ROWS", {"symmetric: v": ["method=vanilla"]})
    for seed in (0, 1):
        study.measure("symmetric: v", seed, tmp_path)
    probes = [tmp_path / "vanilla" / str(seed) / "probe.json" for seed in (0, 1)]
    written = probes[1].stat().st_mtime_ns
    study.measure("symmetric: v", 1, tmp_path)
    assert probes[1].stat().st_mtime_ns == written

    runs = study.collect([0, 1], tmp_path)
    found = [json.loads(probe.read_text()) for probe in probes]
    assert runs["symmetric: v"]["knn end"] == [probe["2"]["knn"] for probe in found]
    assert runs["symmetric: v"]["linear third"] == [probe["1"]["linear"] for probe in found]
    assert runs["symmetric: v"]["gap share"] == [0, 0]
    assert runs["symmetric: v"].keys() >= COLUMNS

    facts = study.facts([0, 1], tmp_path, [])
    text = page.page(runs, {}, CLAIMS[-1:], facts)
    mean = sum(probe["2"]["knn"] for probe in found) / 2
    assert f"→ {mean:.1f} ±" in text
    assert "seeds: 0, 1" in text
    assert "torch" in facts["versions"]

    monkeypatch.setattr(study, "SHARED", [*short, "optimizer.lr=0.1"])
    with pytest.raises(ValueError, match="run with other settings"):
        study.measure("symmetric: v", 1, tmp_path)


def test_the_recorded_page_has_the_claims_of_today():
    text = (ROOT / "docs" / "evidence.md").read_text()
    for claim in CLAIMS:
        assert f"| {claim['says']} | {claim['rule']} | **" in text
    assert all(f"\n| {row} | " in text for row in study.ROWS)
    assert f"`{' '.join(study.SHARED)}`" in text
    assert page.TEXT in text


def test_raw_pixels_are_known():
    found = study.untrained(None)
    assert found["knn"] == pytest.approx(97.5, abs=0.01)
    assert 94 < found["linear"] < 98
