"""Linear accuracies that are averaged and ranked are of one kind and protocol."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.report_pages import run

from rdm_solo.report import entry, evaluations, measured, ranking
from rdm_solo.report.evaluations import common, comparable
from rdm_solo.report.page import page
from rdm_solo.runs.groups import groups

LONG, SHORT = {"epochs": 100, "lr": 30.0}, {"epochs": 10, "lr": 30}


def record(top1: float, protocol=LONG, seed: int = 0):
    return {"seed": seed, "top1": top1, "top5": 99.0, "protocol": protocol}


def evaluated(p: float, seed: int = 0, dataset: str = "digits", **linear):
    found = replace(run(p, seed=seed, val__acc1=[np.nan] * 3), linear=linear)
    found.config.dataset.name = dataset
    return found


def test_one_setting_averages_no_two_kinds():
    runs = [
        evaluated(-0.5, 0, protocol=[record(50)]),
        evaluated(-0.5, 1, cached=[record(80)]),
        evaluated(-0.5, 2, cached=[record(82)]),
        run(-0.5, seed=3),
    ]
    assert measured.linear_accuracies(runs) == [80, 82]
    assert measured.linear_accuracies(runs[:2]) == [50]  # on a tie the paper's kind


def test_one_protocol_under_several_seeds_of_the_classifier_is_one():
    seeds = [record(80, LONG, 0), record(90, {"lr": 30, "epochs": 100.0}, 1)]
    runs = [evaluated(-0.5, 0, cached=seeds), evaluated(-0.5, 1, cached=[record(70)])]
    assert measured.linear_accuracies(runs) == [85, 70]
    again = [record(60, SHORT), *seeds]
    assert measured.linear_accuracies([evaluated(-0.5, 0, cached=again)]) == [85]  # the latest


def test_settings_are_ranked_by_what_most_runs_have():
    runs = [
        *(evaluated(-0.5, seed, cached=[record(70 + seed)]) for seed in range(2)),
        *(evaluated(-0.7, seed, cached=[record(95, SHORT), record(60)]) for seed in range(2)),
        evaluated(-1.0, 0, protocol=[record(99)]),
        evaluated(-0.3, 0, cached=[record(98, SHORT)]),
    ]
    best = {b.question: b for b in ranking.best(comparable(groups(runs)))}
    accuracy = best["Which is the most accurate?"]
    assert [s.values for s in accuracy.standings] == [[70, 71], [60, 60]]
    assert "Not measured: SimSiam, h(σ) = σ^-1; SimSiam, h(σ) = σ^-0.3" in accuracy.others


def test_a_run_of_another_protocol_is_named_with_what_differs():
    runs = [
        *(evaluated(-0.5, seed, cached=[record(70)]) for seed in range(3)),
        evaluated(-0.5, 3, cached=[record(60, SHORT)]),
        evaluated(-1.0, 4, protocol=[record(99, SHORT), record(98)]),
        run(-1.0, seed=5),
    ]
    assert measured.linear_accuracies(runs) == [70, 70, 70]
    said = [line for line in entry.incomplete(runs) if "are compared by another" in line]
    assert len(said) == 2
    assert "seed 3" in said[0]
    assert (
        "its linear accuracy (cached features, epochs=10) is left out of comparisons and n, "
        "because those on digits are compared by another (cached features, epochs=100)"
    ) in said[0]
    assert "(augmented images) is left out" in said[1]


def test_each_data_set_has_its_own_protocol():
    runs = [
        evaluated(-0.5, 0, cached=[record(70)]),
        evaluated(-0.5, 1, cached=[record(71)]),
        evaluated(-0.5, 0, dataset="imagenet", cached=[record(50, SHORT)]),
    ]
    assert not evaluations.not_compared(groups(runs))
    assert [measured.linear_accuracies(g.runs) for g in comparable(groups(runs))] == [
        [70, 71],
        [50],
    ]


@pytest.mark.parametrize("protocol", [None, "sgd", [1]])
def test_a_protocol_that_is_none_is_one_of_its_own(protocol):
    odd = evaluated(-0.5, 2, cached=[record(90, protocol)])
    runs = [*(evaluated(-0.5, seed, cached=[record(70)]) for seed in range(2)), odd]
    assert measured.linear_accuracies(runs) == [70, 70]
    assert list(evaluations.not_compared(groups(runs))) == [odd]
    assert common([]) is None


def test_the_page_counts_the_compared_runs_alone():
    runs = [
        *(evaluated(-0.5, seed, cached=[record(70 + 2 * seed)]) for seed in range(2)),
        evaluated(-1.0, 0, protocol=[record(99.25)]),
    ]
    html = page("a sweep", groups(runs))
    assert "71.0 ± 1.4" in html
    assert "99.2" not in html
