"""The study of the warnings of collapse: its plan, its labels, its judgement, and a run of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rdm_solo.evidence import table
from rdm_solo.evidence.collapse import definitions, judging, page, runs, sets, study
from rdm_solo.spectra.collapse import COMPLETE, UNIFORM, WRONG_WAY, Bounds

ROOT = Path(__file__).resolve().parents[2]
KNN, RANK, VARIANCE = 60.0, 9.0, 0.9  # of a healthy run on the digits


def row(**changed) -> dict[str, str]:
    """A healthy run's row, before training and of 15 epochs; series changed from some epoch on."""
    series = {
        **{"knn": [50.0] + [KNN] * 15, "held_out_rank": [RANK] * 16},
        **{"held_out_variance": [VARIANCE] * 16, "variance": [VARIANCE] * 15},
        **{"centred": [RANK] * 15, "gap": [0.1] * 15, "erank": [1.0] * 15},
    }
    for name, (start, value) in changed.items():
        first = start if len(series[name]) == 16 else start - 1
        series[name][first:] = [value] * (len(series[name]) - first)
    about = {"data": "digits", "part": "test", "setting": "healthy SimSiam", "method": "simsiam"}
    joined = {name: " ".join(map(str, values)) for name, values in series.items()}
    return {**about, "dimensions": "32", "diverged": "", "versions": "torch=2", **joined}


@pytest.mark.parametrize(
    ("changed", "events"),
    [
        ({}, {}),
        ({"knn": (9, 51.9)}, {"features": 9}),
        ({"knn": (9, 52.0)}, {}),
        ({"knn": (2, 40.0)}, {"features": 6}),  # not judged before
        ({"knn": (14, 40.0)}, {}),  # two epochs are too few
        ({"held_out_variance": (8, 0.049)}, {"one point": 8}),
        ({"held_out_rank": (8, 1.99)}, {"few directions": 8}),
        ({"held_out_rank": (8, 1.0), "knn": (10, 1.0)}, {"features": 10, "few directions": 8}),
    ],
)
def test_labels(changed, events):
    assert judging.events(row(**changed)) == events


def test_a_run_that_comes_back_has_not_collapsed():
    found = row(knn=(7, 40.0))
    words = found["knn"].split()
    assert judging.events(found) == {"features": 7}
    assert judging.events({**found, "knn": " ".join([*words[:-1], "60"])}) == {}


def low_knn(*epochs: int) -> dict[str, str]:
    """A healthy run's row but for kNN in these epochs."""
    values = [50.0, *(40.0 if epoch in epochs else KNN for epoch in range(1, 16))]
    return {**row(), "knn": " ".join(map(str, values))}


@pytest.mark.parametrize(
    ("low", "start", "event"),
    [
        ((7, 8, 9), 6, 7),
        ((7, 8, 10, 11, 12), 6, 10),  # two in a row are too few
        ((4, 5, 6, 7), 6, None),  # two of the four are judged
        ((4, 5, 6, 7, 8), 6, 6),
        ((4, 5, 6, 7), 4, 4),
        ((1, 2, 3), 4, None),
        ((1, 2, 3), 1, 1),
        ((13, 14, 15), 6, 13),
        ((14, 15), 6, None),
    ],
)
def test_the_first_of_three_epochs_in_a_row(low, start, event):
    found = judging.first_in_a_row(low_knn(*low), start)
    assert found == ({} if event is None else {"features": event})


def test_other_definitions_and_labels_change_what_was_named():
    back = judging.judge({**row(variance=(11, 1e-3)), "knn": low_knn(10, 11, 12)["knn"]}, Bounds())
    kept = judging.judge(row(variance=(11, 1e-3), held_out_rank=(11, 1.0)), Bounds())
    assert judging.named([back, kept]) == (1, 1)  # the first one came back
    for start, named in ((6, (2, 2)), (11, (1, 1))):
        other = judging.redefined([back, kept], partial(judging.first_in_a_row, start=start))
        assert judging.named(other) == named
    other = judging.redefined([back, kept], partial(judging.first_in_a_row, start=6), ["features"])
    assert [run.events for run in other] == [{"features": 10}, {}]
    assert judging.named(other) == (1, 1)
    late = judging.judge({**back.row, "knn": low_knn(7, 8, 9)["knn"]}, Bounds())
    assert late.warnings == {COMPLETE: 12}
    assert judging.named(judging.redefined([late], partial(judging.first_in_a_row, start=6))) == (
        (0, 1)
    )


@pytest.mark.parametrize(("event", "in_time"), [(6, False), (9, False), (10, True), (12, True)])
def test_a_collapse_must_be_named_within_two_epochs(event, in_time):
    found = judging.judge(row(variance=(11, 1e-3), knn=(event, 40.0)), Bounds(warmup=3))
    assert found.warnings == {COMPLETE: 12}  # the second epoch in a row
    assert (found.collapsed, found.named) == (True, in_time)


def test_a_negative_gap_alarms_but_names_no_collapse():
    wrong = row(gap=(3, -0.1))
    healthy, collapsed = (judging.judge(r, Bounds()) for r in (wrong, row(gap=(3, -1), knn=(6, 1))))
    assert healthy.warnings == {WRONG_WAY: 5}
    assert judging.alarms([healthy]) == (1, 1)
    induced = judging.judge({**wrong, "setting": "wrong way"}, Bounds())
    assert judging.alarms([induced]) == (0, 0)
    assert judging.unlabelled([induced, healthy]) == (1, 1)
    fine = judging.judge(row(), Bounds())
    assert judging.alarms_as_planned([induced, healthy, collapsed, fine]) == (2, 3)
    assert judging.named([healthy, collapsed]) == (0, 1)


def test_assignments_are_judged_where_there_is_a_softmax():
    assert judging.judge(row(), Bounds(warmup=0)).warnings == {}
    assert judging.judge({**row(), "method": "swav"}, Bounds(warmup=0)).warnings == {UNIFORM: 2}


def test_bounds_that_alarm_too_often_are_not_chosen():
    # kNN survives in twenty runs with a variance of 0.04; one with 0.01 collapses.
    rows = [row(variance=(4, 0.04)) for _ in range(20)] + [row(variance=(4, 0.02), knn=(6, 1.0))]
    bounds, named, alarms = page.choice(rows)[0]
    assert (named, alarms) == ((1, 1), (0, 20))
    assert 0.02 < bounds.variance <= 0.04


def test_a_planned_run_draws_the_same_whoever_asks():
    planned = list(runs.planned())
    assert len({run.name for run in planned}) == len(planned) >= 200
    for setting in ("rate too high, DINO", "weak online filter, BYOL", "duplicated data, SwAV"):
        first, second = [run for run in planned if run.setting == setting][:2]
        assert runs.draw(first) == runs.draw(first)
        assert runs.draw(first).seed != runs.draw(second).seed


@pytest.mark.parametrize("data", ["rows", "blobs"])
def test_a_run_becomes_a_row(data, monkeypatch, tmp_path):
    short = [*runs.PLAN["shared"], "max_epochs=2", "scheduler.warmup_epochs=1"]
    monkeypatch.setitem(runs.PLAN, "shared", short)
    found = runs.measure(runs.Planned("judge", data, "no batch norm, BYOL", 0))
    assert tuple(name for name in runs.HEAD if name not in found) == ()
    assert len(runs.series(found, "knn")) == 3
    assert all(len(runs.series(found, name)) == 2 for name in runs.MEASURED)
    study.add(tmp_path / "table.csv", found)
    study.add(tmp_path / "table.csv", {**found, "name": "another"})
    assert [line["name"] for line in table.rows(tmp_path / "table.csv")] == [
        found["name"],
        "another",
    ]


def test_rows_of_numbers_are_the_same_for_each_seed_of_a_run():
    one, again, other = (
        sets.RowData(32, seed, sets.TRAIN).train_dataloader() for seed in (1, 1, 2)
    )
    first, second, third = (next(iter(loader))[1][0] for loader in (one, again, other))
    assert first.equal(second)
    assert not first.equal(third)
    one.set_epoch(1)
    assert not first.equal(next(iter(one))[1][0])


def test_the_page_counts_by_each_definition():
    kept = {**row(variance=(6, 1e-3)), "knn": low_knn(*range(6, 16))["knn"], "name": "kept"}
    back = {**low_knn(7, 8, 9), "name": "back"}
    text = definitions.section(judging.judge_all([kept, back]))
    counts = ["1 of 1", "1 of 2", "1 of 2", "1 of 2"]
    rows = text.split("|---|---|---|\n")[1].splitlines()[:4]
    assert [line.split("|")[2].split(" (")[0].strip() for line in rows] == counts
    assert "95 % is reached by this page's definition: 1 of 1 (100.0 %" in text
    words = " ".join(text.split())
    assert "For 1 of the 1 collapses this page's event is epoch 6, the first" in words
    assert "the first that is judged; 0 had the label in the epoch before" in words
    assert "of the 2 events that are counted from epoch 1 on, 0 are too early" in words
    assert "In 1 runs a label held" in text
    assert (
        "\n- digits: healthy SimSiam; features in epochs 7 to 9; at the end kNN +10.0 points"
        in text
    )
    assert definitions.section(judging.judge_all([back])) == ""


def test_the_recorded_page_is_that_of_the_recorded_table():
    rows = table.rows(ROOT / "docs/collapse.csv")
    assert (ROOT / "docs/collapse.md").read_text() == page.page(rows)


def test_the_packages_bounds_are_the_ones_that_the_other_parts_chose():
    bounds = Bounds()
    _, chosen = (ROOT / "docs/collapse.md").read_text().split("| fewest |", 1)
    first = chosen.splitlines()[2]
    assert first.startswith(f"| {bounds.variance:g} | {bounds.erank:g} | {bounds.fewest:g} |")
