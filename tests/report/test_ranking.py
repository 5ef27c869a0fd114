"""Which settings are ranked and compared, by which accuracies, and the paper's numbers beside."""

from dataclasses import replace

import numpy as np
import pytest
from support.report_pages import run, seeds, write

from rdm_solo import runs
from rdm_solo.cli import arguments
from rdm_solo.report import entry, measured, ranking, verdicts
from rdm_solo.report.measured import comparable
from rdm_solo.report.paper_comparison import paper_table
from rdm_solo.runs.columns import LINEAR
from rdm_solo.runs.groups import by_setting

LONG, SHORT = {"epochs": 100, "lr": 30.0}, {"epochs": 10, "lr": 30}
FALLEN = {"feature__spread": [0.9, 1e-3, 1e-3]}
ACCURATE = "Which is the most accurate?"


def ranked(*members) -> dict[str, verdicts.Verdict]:
    return {best.question: best for best in ranking.rankings(comparable(by_setting([*members])))}


@pytest.mark.parametrize(
    ("other", "tied"),
    [
        ([80, 81, 82], False),
        ([89.9, 90.0, 90.1], True),
        ([88, 89.9, 91.8], True),
        ([89.8, 89.9, 90.0], False),
    ],
)
def test_what_is_within_the_larger_standard_deviation_is_no_worse(other, tied):
    best = ranked(*seeds(-0.5, [90, 91, 92]), *seeds(-1.0, other))[ACCURATE]
    assert best.answer == "SimSiam, target filter σ^-0.5"
    column, others = best.numbers
    assert column == "by kNN"
    assert others.startswith("Within one standard deviation: " if tied else "No other")


def test_one_seed_each_has_no_spread():
    best = ranked(*seeds(-0.5, [90]), *seeds(-1.0, [89.9]))[ACCURATE]
    assert best.numbers[1].startswith("Not compared, because one seed each: SimSiam")


def test_what_collapsed_or_diverged_is_not_ranked():
    gone = [replace(one, diverged=4) for one in seeds(-0.7, [98, 98])]
    partly = [*seeds(-0.3, [95]), *seeds(-0.3, [0, 95], **FALLEN)[1:]]
    result = ranked(*seeds(-0.5, [90, 91]), *seeds(-1.0, [99, 99], **FALLEN), *gone, *partly)
    best = result[ACCURATE]
    assert best.answer == "SimSiam, target filter σ^-0.3"
    assert best.numbers[1] == "No other setting is within one standard deviation."
    assert ranked(*seeds(-1.0, [99], **FALLEN), *gone) == {}


def test_data_sets_are_ranked_apart():
    other = seeds(-0.5, [70], options={"dataset.name": "cifar10"})
    result = ranked(*seeds(-0.5, [90]), *other)
    assert "Which is the most accurate on cifar10?" in result
    alone = result["Which is the most accurate on digits?"]
    assert alone.answer.endswith(", digits")
    assert "No other setting is ranked" in alone.numbers[1]


def test_a_gap_that_the_filter_makes_is_no_merit():
    gap = ranked(*seeds(-0.5, [90]), *seeds(-1.0, [80]))["Which has the widest gap?"]
    assert "filter alone causes" in gap.numbers[0]
    learned = ranked(*seeds(None, [90]), *seeds(0.5, [80]))["Which has the widest gap?"]
    assert "filter alone causes" not in learned.numbers[0]


def record(top1: float, protocol=LONG, seed: int = 0):
    return {"seed": seed, "top1": top1, "top5": 99.0, "protocol": protocol}


def evaluated(p: float, seed: int = 0, dataset: str = "digits", **linear):
    one = run(p, seed, options={"dataset.name": dataset}, val__acc1=[np.nan] * 3)
    return replace(one, linear=linear)


def test_linear_accuracy_comes_before_knn_where_as_many_have_it():
    members = [replace(seeds(-0.5, [90])[0], linear={"protocol": [record(70)]})]
    assert ranking.accuracy(by_setting(members)) == LINEAR
    assert ranking.accuracy(by_setting([*members, *seeds(-1.0, [80])])).name == "val/knn_acc1"


TWO_SEEDS = [record(80), record(90, {"lr": 30, "epochs": 100.0}, 1)]


@pytest.mark.parametrize(
    ("linear", "means"),
    [
        ([("protocol", record(50)), ("cached", record(80)), ("cached", record(82))], [80, 82]),
        ([("protocol", record(50)), ("cached", record(80))], [50]),  # a tie: the paper's kind
        ([("cached", *TWO_SEEDS)], [85]),  # of the classifier, by one protocol
        ([("cached", record(60, SHORT), record(80))], [80]),  # the latest
        ([("cached", record(70)), ("cached", record(71)), ("cached", record(9, "?"))], [70, 71]),
        ([], []),
    ],
)
def test_linear_accuracies_are_of_one_kind_and_protocol(linear, means):
    members = [evaluated(-0.5, s, **{kind: list(r)}) for s, (kind, *r) in enumerate(linear)]
    assert measured.linear_accuracies([*members, run(seed=9)]) == means


def test_settings_are_compared_by_what_most_runs_on_their_data_set_have():
    members = [
        *(evaluated(-0.5, seed, cached=[record(70 + seed)]) for seed in range(2)),
        *(evaluated(-0.7, seed, cached=[record(95, SHORT), record(60)]) for seed in range(2)),
        evaluated(-1.0, 0, protocol=[record(99)]),
        evaluated(-0.5, 0, dataset="imagenet", cached=[record(50, SHORT)]),
    ]
    best = ranked(*members)["Which is the most accurate on digits?"]
    assert (best.answer, best.numbers[0]) == ("SimSiam, target filter σ^-0.5, digits", "by linear")
    assert "σ^-1" in best.numbers[1]
    values = [measured.last(group.runs, LINEAR.name) for group in comparable(by_setting(members))]
    assert values == [[70, 71], [60, 60], [], [50]]
    (line,) = (line for line in entry.incomplete(members) if "is not compared" in line)
    assert "σ^-1, seed 0" in line


@pytest.mark.parametrize("torn", ['{"protocol": [{"seed": 0, "to', '{"cached": 5}'])
def test_evaluations_that_cannot_be_read_are_named(torn, tmp_path):
    write(tmp_path / "run", None, 0)
    (tmp_path / "run" / "linear.json").write_text(torn)
    (one,) = runs.find([tmp_path / "run"])
    assert "linear.json cannot be read" in " ".join(entry.incomplete([one]))
    assert not measured.linear_accuracies([one])


@pytest.mark.parametrize(
    ("overrides", "differs"),
    [([], "none known"), (["batch_size=128"], "batch_size=128 (preset: 256)"), (["p=-0.9"], None)],
)
def test_the_papers_number_stands_beside_a_run_of_its_setting(overrides, differs, tmp_path):
    preset = ["experiment=cifar10/simsiam_target_pow", "p=-0.5", "max_epochs=100"]
    cfg = arguments.compose("config", [*preset, *overrides])
    epochs = {"epoch": np.arange(1, cfg.max_epochs + 1)}
    linear = {"protocol": [record(78.0)]}
    rows = paper_table(by_setting([runs.Run(tmp_path, cfg, epochs, linear=linear)])).rows
    if differs is None:
        assert rows == []
    else:
        (row,) = rows
        assert row[2:7] == ["100", "linear top-1 %", "78.17", "78.00", "1"]
        assert differs in row[-1]
