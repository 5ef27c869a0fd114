"""Which settings are ranked and compared, by which accuracies, and the paper's numbers beside."""

from dataclasses import replace

import numpy as np
import pytest
from support.report_pages import run, seeds, settings

from rdm_solo import runs
from rdm_solo.cli import arguments
from rdm_solo.report import answers, entry, judged
from rdm_solo.report.tables import paper_rows
from rdm_solo.report.verdicts import Verdict
from rdm_solo.runs.columns import LINEAR

LONG = {"epochs": 100, "lr": 30.0}
SAME = {"lr": 30, "epochs": 100.0}  # equal numbers are one protocol
SHORT = {"epochs": 10, "lr": 30}
FALLEN = {"feature__spread": [0.9, 1e-3, 1e-3]}
ACCURATE = "Which is the most accurate?"


def ranked(*members) -> dict[str, Verdict]:
    verdicts = answers.rankings(settings(*members))
    return {verdict.question: verdict for verdict in verdicts}


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ([80, 81, 82], "No other setting"),
        ([89.9, 90.0, 90.1], "Within one standard deviation"),
        ([88, 89.9, 91.8], "Within one standard deviation"),
        ([89.8, 89.9, 90.0], "No other setting"),
    ],
)
def test_what_is_within_the_larger_standard_deviation_is_no_worse(other, sentence):
    winners = seeds(-0.5, [90, 91, 92])
    others = seeds(-1.0, other)
    best = ranked(*winners, *others)[ACCURATE]
    assert best.answer == "SimSiam, target filter σ^-0.5"
    assert best.numbers[1].startswith(sentence)


def test_no_setting_wins_with_a_single_seed_each():
    (first,) = seeds(-1, [84.2])
    (second,) = seeds(-0.5, [83.1])
    # Seeds of another setting do not tell the two apart.
    several = ranked(first, second, *seeds(-0.7, [83, 84, 85]))[ACCURATE]
    assert several.answer == "undecided (one seed each): 83.1 to 84.2 %"
    assert "σ^-0.7" in several.numbers[1]
    best = ranked(first, *seeds(-0.7, [60, 61, 62]))[ACCURATE]
    assert best.answer == "SimSiam, target filter σ^-1"


def test_what_collapsed_or_diverged_is_not_ranked():
    fallen = seeds(-1.0, [99, 99], **FALLEN)
    diverged = [replace(one, diverged=4) for one in seeds(-0.7, [98, 98])]
    one_seed_fell = seeds(-0.3, [95, 95])
    one_seed_fell[0].metrics["feature/spread"] = np.array([0.9, 1e-3, 1e-3])
    healthy = seeds(-0.5, [90, 91])
    result = ranked(*healthy, *fallen, *diverged, *one_seed_fell)
    assert result[ACCURATE].answer == "SimSiam, target filter σ^-0.3"
    assert "σ^-1" not in result[ACCURATE].numbers[1]
    assert ranked(*fallen, *diverged) == {}


def record(top1: float, protocol=LONG, seed: int = 0):
    return {"seed": seed, "top1": top1, "top5": 99.0, "protocol": protocol}


def evaluated(p: float, seed: int = 0, dataset: str = "digits", **linear):
    one = run(p, seed, options={"dataset.name": dataset}, val__acc1=[np.nan] * 3)
    one.linear.update(linear)
    return one


def test_linear_accuracy_comes_before_knn_where_as_many_have_it():
    (first,) = seeds(-0.5, [90])
    (second,) = seeds(-1.0, [80])
    first.linear["protocol"] = [record(70)]
    assert answers.compared_accuracy(settings(first)) == LINEAR
    assert answers.compared_accuracy(settings(first, second)).name == "val/knn_acc1"


def test_settings_are_compared_by_what_most_runs_on_their_data_set_have():
    members = [
        evaluated(-0.5, 0, cached=[record(70)]),
        evaluated(-0.5, 1, cached=[record(70, SAME), record(72, SAME, seed=1)]),
        evaluated(-0.7, 0, cached=[record(95, SHORT), record(60)]),
        evaluated(-1.0, 0, protocol=[record(99)]),
        evaluated(-0.5, 0, dataset="imagenet", cached=[record(50, SHORT)]),
    ]
    best = ranked(*members)["Which is the most accurate on digits?"]
    assert best.answer == "SimSiam, target filter σ^-0.5, digits"
    assert best.numbers[0] == "by linear: 70.5 ± 0.7 %"
    assert "σ^-1" in best.numbers[1]
    first, *others = settings(*members)
    assert first.last(LINEAR.name) == [70, 71]
    assert first.text(LINEAR) == "70.5 ± 0.7"
    assert [setting.last(LINEAR.name) for setting in others] == [[60], [], [50]]
    (problem,) = [line for line in entry.incomplete(members) if "is not compared" in line]
    assert "σ^-1, seed 0" in problem
    # A tie goes to the paper's kind.
    assert judged.last([members[0], members[3]], LINEAR.name) == [99]


def test_the_papers_number_stands_beside_a_run_of_its_setting(tmp_path):
    preset = ["experiment=cifar10/simsiam_target_pow", "p=-0.5", "max_epochs=100"]
    cfg = arguments.compose("config", preset)
    epochs = {"epoch": np.arange(1, 101)}
    member = runs.RunFolder(tmp_path, cfg, epochs, linear={"protocol": [record(78.0)]})
    (row,) = paper_rows(settings(member))
    assert (row["paper"], row["runs"], row["n"]) == ("78.17", "78.00", "1")
    assert "none known" in row["differences"]
    cfg.batch_size = 128
    (row,) = paper_rows(settings(replace(member)))
    assert "batch_size=128 (preset: 256)" in row["differences"]
    cfg.p = -0.9
    assert paper_rows(settings(replace(member))) == []
