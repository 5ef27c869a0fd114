"""Verdicts follow the plan, and the page follows the table of runs."""

import csv
import fnmatch
import itertools
import json
import random
import sys

import pytest
from conftest import ROOT
from scipy import stats
from support.drills import draws

from rdm_solo.evidence import page, study, table
from rdm_solo.evidence.claims import BUILT, FAILED, OPEN, REPRODUCED, UNTESTED, WAITS, Judge
from rdm_solo.evidence.intervals import difference, holm
from rdm_solo.methods.chosen_filter import FUNCTIONS
from rdm_solo.methods.descriptions import METHODS

CLAIMS = study.STUDY["claims"]
SEEDS = study.STUDY["seeds"]
TESTS = {"at_least", "at_most", "more_than", "above", "below", "close_to", "by_construction"}
WORDS = {"says", "rule", "rows", "columns", "controls", "margin", "alive"}


def invented(**changes: dict[str, list[float]]):
    """Runs with the same numbers in every row, but for the changes: column -> row -> values."""
    rng = random.Random(0)
    noise = [rng.gauss(0, 0.1) for _ in SEEDS]
    runs = {
        name: {seed: dict.fromkeys(table.MEASURED, 5 + noise[i]) for i, seed in enumerate(SEEDS)}
        for name in study.ROWS
    }
    for column, rows in changes.items():
        for row, values in rows.items():
            for seed, value in zip(SEEDS, values, strict=True):
                runs[row][seed][column.replace("_", " ")] = value
    return runs


def found(says: str, runs, failed=()):
    (claim,) = [claim for claim in CLAIMS if says in claim["says"]]
    return Judge(study.STUDY, runs, SEEDS, failed).verdict(claim)


def spaced(mean: float, half: float) -> list[float]:
    """Ten values around 5 + ``mean``."""
    return [5 + mean + half * (i - 4.5) / 4.5 for i in range(10)]


def test_the_plan_names_rows_and_controls_that_are_trained():
    assert len(SEEDS) >= 10
    for claim in CLAIMS[:-1]:
        for pattern in [*claim["rows"], *claim.get("controls", [])]:
            assert fnmatch.filter(study.ROWS, pattern), pattern
        assert len(TESTS & claim.keys()) == 1  # so that no rule is left out in silence
        assert claim.keys() <= TESTS | WORDS
        assert claim.get("controls") or claim.get("by_construction")
        assert set(claim["columns"]) <= set(table.MEASURED)
    assert found(CLAIMS[-1]["says"], invented()).verdict == UNTESTED


def test_intervals_are_students():
    rng = draws("intervals")
    for _ in range(20):
        pairs = [rng.gauss(rng.uniform(-1, 1), 1) for _ in range(rng.randint(2, 12))]
        for zero in (0.0, -1.0):
            ours, theirs = difference(pairs, zero), stats.ttest_1samp(pairs, zero)
            interval = theirs.confidence_interval(0.95)
            assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
            assert (ours.low, ours.high) == pytest.approx(tuple(interval), rel=1e-9)
    assert difference([2.0, 2.0]) == (2, 2, 2, 0)
    assert difference([0.0, 0.0]) == (0, 0, 0, 1)


def test_holm_is_the_closed_test_of_bonferroni():
    rng = draws("holm")
    for _ in range(20):
        p = {key: rng.random() ** 3 for key in range(6)}
        sets = [s for n in range(1, 7) for s in itertools.combinations(p, n)]
        local = {s: min(1.0, len(s) * min(p[key] for key in s)) for s in sets}
        closed = {key: max(local[s] for s in sets if key in s) for key in p}
        assert holm(p) == pytest.approx(closed, rel=1e-12)


def test_a_verdict_needs_p_after_the_correction():
    says = "SymSimSiam's accuracy is below"
    for mean, half, expected in [(3, 1, REPRODUCED), (-3, 1, FAILED), (0.5, 1, OPEN)]:
        runs = invented(linear_end={"SimSiam: learnable": spaced(mean, half)})
        assert found(says, runs).verdict == expected
    alone = difference([value - 5 for value in spaced(0.5, 1)])
    assert alone.p < 0.05  # which is too weak beside the other comparisons
    judge = Judge(study.STUDY, runs, SEEDS)
    assert len(judge.corrected) == len(judge.comparisons) > 40
    assert f"all {len(judge.comparisons)} comparisons" in page.plan(judge)


def test_rows_that_differ_among_themselves_are_named():
    rows = {f"SimSiam: {name}": spaced(9, 1) for name in ("online σ", "online log σ")}
    verdict = found("Fixed online low-pass", invented(erank_projection_last=rows)).verdict
    assert verdict.startswith(f"{REPRODUCED}: SimSiam: online σ, SimSiam: online log σ; {OPEN}: ")


@pytest.mark.parametrize(
    ("mean", "half", "expected"), [(0.5, 1, REPRODUCED), (-0.7, 1, OPEN), (-20, 1, FAILED)]
)
def test_closeness_needs_evidence_and_not_its_absence(mean, half, expected):
    away = {f"SimSiam: {name}": spaced(-9, 1) for name in ("identity", "wrong way, target σ^0.5")}
    away |= {"SimSiam: wrong way, online σ^-0.5": spaced(-9, 1)}
    runs = invented(linear_end=away | {"SimSiam: linear": spaced(mean, half)})
    assert found("A linear predictor comes close", runs).verdict == expected
    near = invented(linear_end={"SimSiam: linear": spaced(mean, half)})
    if expected == REPRODUCED:  # identity comes as close in these
        assert found("A linear predictor comes close", near).verdict.startswith(f"{OPEN} (passed")


def test_a_bound_is_for_the_worst_seed_and_controls_must_not_pass():
    rule = "Learned and hand-made asymmetry"
    claimed = ("learnable", "clustering: SwAV", "clustering: DINO")
    controls = {row: [0.0] * 10 for row in study.ROWS if not row.endswith(claimed)}
    good = {"SimSiam: learnable": [1.0] * 9 + [0.96]}
    result = found(rule, invented(gap_share=controls | good))
    assert result.verdict == REPRODUCED
    assert "SimSiam: learnable min 0.96;" in result.numbers
    assert "SimSiam: identity max 0.00;" in result.controls

    bad = {"SimSiam: learnable": [1.0] * 9 + [0.9]}
    verdict = found(rule, invented(gap_share=controls | bad)).verdict
    assert f"{FAILED}: SimSiam: learnable" in verdict

    one = {"BYOL: identity": [0.0] * 9 + [1.0]}
    verdict = found(rule, invented(gap_share=controls | good | one)).verdict
    assert f"{OPEN} (passed also by BYOL: identity): BYOL: learnable" in verdict
    assert f"{REPRODUCED}: SimSiam: learnable, clustering: SwAV, clustering: DINO" in verdict


def test_centring_is_judged_where_the_last_bn_does_not_do_its_work():
    kept = {"symmetric: SymSimSiam, no last BN": [0.99] * 9 + [0.96]}
    lost = {"symmetric: vanilla, no last BN": [0.01] * 9 + [0.04]}
    runs = invented(variance=kept | lost)
    for says, worst, best in (
        ("Centring", "min 0.96", "max 0.04"),
        ("Without", "max 0.04", "min 0.96"),
    ):
        result = found(says, runs)
        assert result.verdict == REPRODUCED
        assert result.numbers.endswith(worst)
        assert result.controls.endswith(best)
    assert found("Without", invented(variance=kept)).verdict == FAILED


def test_both_branches_have_to_rise():
    rise = {"BYOL: learnable": [0.2] * 9 + [-0.1]}
    verdict = found("Both outputs' ranks rise", invented(erank_online_rise=rise)).verdict
    assert f"{FAILED}: BYOL: learnable" in verdict


def test_what_collapsed_is_named_and_keeps_no_rank_up():
    low = {"BYOL: identity": [1.0] * 10, "BYOL: online σ": [1.5] * 10}
    low |= {row: [0.9] * 10 for row in study.ROWS if row.startswith(("BYOL: wrong", "BYOL: lin"))}
    result = found("The same in BYOL", invented(erank_projection_last=low))
    assert result.verdict.endswith("; compared with BYOL: identity (collapsed in 10 of 10)")
    assert f"{FAILED} (passes, but collapsed itself): BYOL: online σ;" in result.verdict
    assert f"{REPRODUCED}: BYOL: online log σ" in result.verdict
    assert "BYOL: wrong way, target σ^0.5 (collapsed in 10 of 10) -0.10 [" in result.controls
    still = invented(variance={"SimSiam: identity": [0.05] * 5 + [1.0] * 5})
    judge = Judge(study.STUDY, still, SEEDS)
    assert judge.collapsed("SimSiam: identity") == (5, 10)
    assert not judge.mostly_collapsed("SimSiam: identity")
    assert judge.collapsed("clustering: DINO") is None


def test_what_collapsed_is_a_control_of_each_claim_that_collapse_contradicts():
    runs = table.runs_of(study.lines_of(ROOT / "docs" / "evidence.csv"), SEEDS)
    bounds = study.STUDY["collapsed"]

    def matching(patterns):
        return {row for each in patterns for row in fnmatch.filter(study.ROWS, each)}

    for claim in CLAIMS:
        kind = next(iter(claim.keys() & TESTS), "none")
        if kind in {"below", "at_most", "by_construction", "none"}:  # the first two say: it fails
            continue
        # A claim on variance or rank is contradicted by what collapsed in that alone.
        measured = {name: bounds[name] for name in bounds if name in claim["columns"]} or bounds
        judge = Judge({**study.STUDY, "collapsed": measured}, runs, SEEDS)
        own = matching(claim["rows"])
        family = matching(row.partition(":")[0] + ":*" for row in own)
        low = {row for row in family - own if judge.mostly_collapsed(row)}
        assert low - {claim[kind]} <= matching(claim["controls"]), claim["says"]


def test_no_verdict_before_all_runs_and_none_without_the_failed():
    runs = invented()
    del runs["clustering: DINO"][SEEDS[3]]
    results = Judge(study.STUDY, runs, SEEDS).verdicts()
    assert {result.verdict for result in results} == {WAITS, BUILT, UNTESTED}
    text = page.page(study.STUDY, runs, {}, {}, SEEDS)
    assert (
        "Each trained row has 9 to 10 of 10 seeds. **1 of 340 runs are missing, so there is no"
        in text
    )
    assert "\n| clustering: DINO | 9 | " in text
    results = Judge(study.STUDY, runs, SEEDS, ["clustering: DINO"]).verdicts()
    assert WAITS not in {result.verdict for result in results}
    assert f"{FAILED}: clustering: DINO" in found("weighted by", runs, ["clustering: DINO"]).verdict
    del runs["SimSiam: linear"][SEEDS[3]]
    result = found("A linear predictor", runs, ["clustering: DINO", "SimSiam: linear"])
    assert result[:2] == (OPEN, "SimSiam: linear: a run failed")


def test_only_increasing_filters_of_one_network_hold_by_construction():
    (claim,) = [claim for claim in CLAIMS if claim.get("by_construction")]
    for row, options in study.ROWS.items():
        given = dict(option.split("=") for option in options)
        branch, _, name = given.get("filter", "").partition("_")
        low_pass = branch == "online" and name in FUNCTIONS and FUNCTIONS[name].increasing
        if name == "pow":
            low_pass = float(given["p"]) > 0 if branch == "online" else -1 <= float(given["p"]) < 0
        built = bool(low_pass) and not METHODS[given["method"]].momentum
        assert built == any(fnmatch.fnmatchcase(row, rows) for rows in claim["rows"]), row
    result = found(claim["says"], invented(gap_epochs={"SimSiam: online σ": [14] * 10}))
    assert "SimSiam: online σ: measured in 140 of " in result.numbers


def written(path, runs):
    """A table of these runs."""
    about = {"code": "c", "versions": "torch 2", "processor": "one", "seconds": "3"}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, table.HEAD, lineterminator="\n")
        writer.writeheader()
        for row, seeds in runs.items():
            for seed, values in seeds.items():
                own = about | {"settings": study.settings(row)}
                writer.writerow(table.line(row, seed, table.OK, values, own))


def test_the_command_trains_nothing_that_the_table_has(tmp_path, monkeypatch, capsys):
    values = {"knn end": 97.5, "linear end": 95.0}
    runs = {study.PIXELS: {40: values}, study.UNTRAINED: dict.fromkeys(SEEDS, values)}
    written(tmp_path / "runs.csv", runs | invented())
    monkeypatch.chdir(tmp_path)
    for option, out in (("--csv", "a.md"), ("--from", "b.md")):
        monkeypatch.setattr(sys, "argv", ["evidence", option, "runs.csv", "--out", out])
        study.main()
    assert (tmp_path / "a.md").read_text() == (tmp_path / "b.md").read_text()
    assert "Each trained row has 10 of 10 seeds. Mean" in (tmp_path / "a.md").read_text()
    assert "\n- runs: 340 of 340, 3 s each" in (tmp_path / "a.md").read_text()

    capsys.readouterr()
    intact = (tmp_path / "runs.csv").read_text()
    last = next(line for line in intact.splitlines() if line.startswith("SimSiam: linear,40,"))
    cells = last.split(",")
    for line, fault in (
        (last[:40], ", line 353, does not have the 30 columns"),
        (last, ", line 353, repeats a run"),
        (",".join([*cells[:25], "nan", *cells[26:]]), ", line 353, has seconds 'nan'"),
        (",".join([cells[0], "-1", *cells[2:]]), ", line 353, has seed '-1'"),
        (",".join([cells[0], "50", "ok", "", *cells[4:]]), ": 'SimSiam: linear', seed 50, lacks"),
    ):
        (tmp_path / "runs.csv").write_text(f"{intact}{line}\n")
        with pytest.raises(SystemExit):
            study.main()
        (said,) = capsys.readouterr().err.splitlines()[-1:]
        assert f"error: runs.csv{fault}" in said


def test_a_run_is_measured_and_goes_through_the_table(tmp_path, monkeypatch):
    short = [s for s in study.SHARED if "epochs" not in s]
    short += ["max_epochs=2", "scheduler.warmup_epochs=0", "backbone.kwargs.width=4"]
    monkeypatch.setattr(study, "SHARED", short)
    monkeypatch.setattr(study, "PROBED", (1, 2))
    monkeypatch.setattr(study, "WARMUP", 0)
    monkeypatch.setattr(study, "ROWS", {"symmetric: v": ["method=vanilla"]})
    path = tmp_path / "docs" / "runs.csv"
    table.add(path, study.measure("symmetric: v", 1, tmp_path))
    runs = table.runs_of(study.lines_of(path), [0, 1])["symmetric: v"]
    assert list(runs) == [1]
    for seed, values in runs.items():
        probe = json.loads((tmp_path / "vanilla" / str(seed) / "probe.json").read_text())
        assert values["knn end"] == pytest.approx(probe["2"]["knn"], rel=1e-6)
        assert values["linear third"] == pytest.approx(probe["1"]["linear"], rel=1e-6)
        assert values["gap epochs"] == values["gap share"] == 0
        assert values["epochs"] == 2
        assert set(values) == set(table.MEASURED)
    assert "torch" in table.read(path)[0]["versions"]

    monkeypatch.setattr(study, "SHARED", [*short, "optimizer.lr=1e30"])
    with pytest.raises(ValueError, match="is not of the study's settings of today"):
        study.lines_of(path)
    failed = study.measure("symmetric: v", 1, tmp_path)
    assert failed["status"].startswith("failed: ")
    assert not failed.keys() & set(table.MEASURED)
    assert list(table.failures([failed], [1])["symmetric: v"]) == [1]
    assert not table.runs_of([failed], [1])


def test_the_recorded_page_is_that_of_the_recorded_table(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    study.write_page(ROOT / "docs" / "evidence.csv", tmp_path / "page.md", SEEDS)
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / "evidence.md").read_text()


def test_raw_pixels_are_known():
    known = study.untrained(None)
    assert known["knn"] == pytest.approx(97.5, abs=0.01)
    assert 94 < known["linear"] < 98
