"""The study of the warnings of collapse: its plan, its labels, its judgement, and a run of it."""

from __future__ import annotations

import pytest
from conftest import ROOT
from support import study_runs

from rdm_solo.spectra.collapse import COMPLETE, WRONG_WAY, Bounds
from studies import table, training
from studies.collapse import choosing, judging, page, plan, runs

KNN, RANK, VARIANCE = 60.0, 9.0, 0.9  # of a healthy run on the digits
RECORDED = table.read(ROOT / "docs" / "collapse.csv")


def row(**changed) -> dict[str, str]:
    """A healthy run's row, before training and of 15 epochs; series changed from some epoch on."""
    series = {
        "knn": [50.0] + [KNN] * 15,
        "held_out_rank": [RANK] * 16,
        "held_out_variance": [VARIANCE] * 16,
        "variance": [VARIANCE] * 15,
        "centred": [RANK] * 15,
        "gap": [0.1] * 15,
        "erank": [1.0] * 15,
    }
    for name, (start, value) in changed.items():
        first = start if len(series[name]) == 16 else start - 1
        series[name][first:] = [value] * (len(series[name]) - first)
    about = {"data": "digits", "part": "test", "setting": "healthy SimSiam", "method": "simsiam"}
    joined = {name: " ".join(map(str, values)) for name, values in series.items()}
    return {**about, "dimensions": "32", "diverged": "", "versions": "torch=2", **joined}


def low_knn(*epochs: int) -> dict[str, str]:
    """A healthy run's row but for kNN in these epochs."""
    values = [50.0, *(40.0 if epoch in epochs else KNN for epoch in range(1, 16))]
    return {**row(), "knn": " ".join(map(str, values))}


def test_the_recorded_page_is_that_of_the_recorded_table_and_of_the_package():
    text = page.page(RECORDED)
    assert text == (ROOT / "docs/collapse.md").read_text(encoding="utf-8")
    bounds = Bounds()
    best = text.split("| fewest |", 1)[1].splitlines()[2]
    assert best.startswith(f"| {bounds.variance:g} | {bounds.erank:g} | {bounds.fewest:g} |")


@pytest.mark.parametrize(
    ("changed", "events"),
    [
        ({}, {}),
        ({"knn": (9, 51.9)}, {"features": 9}),
        ({"knn": (2, 40.0)}, {"features": 6}),  # not judged before
        ({"knn": (14, 40.0)}, {}),  # two epochs are too few
        ({"held_out_variance": (8, 0.049)}, {"one point": 8}),
        ({"held_out_rank": (8, 1.99)}, {"few directions": 8}),
        ({"held_out_rank": (8, 1.0), "knn": (10, 1.0)}, {"features": 10, "few directions": 8}),
    ],
)
def test_labels(changed, events):
    assert judging.events(row(**changed)) == events


@pytest.mark.parametrize(
    ("low", "start", "event"),
    [
        ((7, 8, 10, 11, 12), 6, 10),  # two in a row are too few
        ((4, 5, 6, 7, 8), 6, 6),
        ((14, 15), 6, None),
    ],
)
def test_the_first_of_three_epochs_in_a_row(low, start, event):
    starts = judging.first_in_a_row(low_knn(*low), start)
    assert starts == ({} if event is None else {"features": event})


@pytest.mark.parametrize(("event", "in_time"), [(9, False), (10, True)])
def test_a_collapse_must_be_warned_of_within_two_epochs(event, in_time):
    run = judging.judge(row(variance=(11, 1e-3), knn=(event, 40.0)), Bounds(warmup=3))
    assert run.warnings == {COMPLETE: 12}  # the second epoch in a row
    assert judging.in_time([run]) == (in_time, 1)


def test_a_negative_gap_is_an_alarm_but_no_warning_of_a_collapse():
    wrong = row(gap=(3, -0.1))
    healthy, collapsed = (judging.judge(r, Bounds()) for r in (wrong, row(gap=(3, -1), knn=(6, 1))))
    assert healthy.warnings == {WRONG_WAY: 5}
    assert judging.alarms([healthy]) == (1, 1)
    assert judging.in_time([healthy, collapsed]) == (0, 1)
    induced = judging.judge({**wrong, "setting": "wrong way"}, Bounds())
    assert judging.alarms([induced]) == (0, 0)
    assert judging.unlabelled([induced, healthy]) == (1, 1)
    fine = judging.judge(row(), Bounds())
    assert judging.alarms_as_planned([induced, healthy, collapsed, fine]) == (2, 3)


def test_bounds_that_alarm_too_often_are_not_chosen():
    # kNN survives in twenty runs with a variance of 0.04; one with 0.02 collapses.
    rows = [row(variance=(4, 0.04)) for _ in range(20)] + [row(variance=(4, 0.02), knn=(6, 1.0))]
    bounds, in_time, alarms = choosing.bounds_in_order(rows)[0]
    assert (in_time, alarms) == ((1, 1), (0, 20))
    assert 0.02 < bounds.variance <= 0.04


def test_a_planned_run_always_draws_what_the_table_recorded():
    recorded = {row["name"]: row for row in RECORDED}
    planned = {run.name: run for run in plan.planned()}
    assert set(planned) == set(recorded)
    assert runs.missing(RECORDED) == []
    for part in ("choose", "others"):
        name = next(name for name in planned if name.startswith(part) and "/digits/" in name)
        drawn = plan.draw(planned[name])
        options = recorded[name]["options"].split(" ")
        assert drawn.options[len(plan.PLAN["shared"]) :] == options
        assert recorded[name]["distinct"] == str(drawn.distinct)


def test_a_run_becomes_a_row(monkeypatch):
    monkeypatch.setattr(training, "train", study_runs.train)
    short = [*plan.PLAN["shared"], "max_epochs=2", "scheduler.warmup_epochs=1"]
    monkeypatch.setitem(plan.PLAN, "shared", short)
    measured = runs.measure(plan.Planned("judge", "rows", "no batch norm, BYOL", 0))
    assert set(measured) == set(plan.HEAD)
    assert len(table.series(measured["knn"])) == 3
    assert all(len(table.series(measured[name])) == 2 for name in (*plan.READ, "gap"))
