"""What all studies share: recorded pages, resuming, tests of differences."""

import itertools
import random

import pandas as pd
import pytest
from scipy import stats

from studies import study
from studies.alarms.judging import shares
from studies.alarms.page import STUDY as ALARMS
from studies.evidence.page import STUDY as EVIDENCE
from studies.intervals import difference, holm, mean_of_groups
from studies.mechanism.page import STUDY as MECHANISM
from studies.methods.page import STUDY as METHODS
from studies.switch.page import STUDY as SWITCH

STUDIES = [
    pytest.param(ALARMS, marks=pytest.mark.long),
    EVIDENCE,
    MECHANISM,
    METHODS,
    SWITCH,
]


@pytest.mark.parametrize("recorded", STUDIES, ids=lambda recorded: recorded.name)
def test_recorded_pages_follow_from_the_recorded_table(recorded):
    table = recorded.read()
    for path, text in recorded.pages(table).items():
        assert text == path.read_text(encoding="utf-8")
    assert recorded.missing(table) == []
    (run,) = recorded.missing(table[1:])
    first_key = table.loc[0, list(recorded.key)].tolist()
    assert list(map(str, run)) == first_key


def test_a_study_resumes_after_a_failed_run(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "ROOT", tmp_path)
    (tmp_path / "studies" / "tiny").mkdir(parents=True)
    errors = [RuntimeError("the first try of b")]
    measured = []

    def measure(name, seed):
        if name == "b" and errors:
            raise errors.pop()
        measured.append(name)
        return {f"value of {name}": "0.10"}

    runs = [("a", 1), ("b", 1), ("c", 1)]
    tiny = study.Study("tiny", "", "", ["name", "seed"], lambda table: runs, measure, dict)
    with pytest.raises(RuntimeError):
        tiny.train(jobs=1, most=None)
    assert measured[0] == "a"
    tiny.train(jobs=1, most=1)
    tiny.train(jobs=1, most=None)
    assert sorted(measured) == ["a", "b", "c"]
    table = tiny.read()
    assert table["name"].tolist() == measured
    assert table["value of a"].tolist().count("0.10") == 1


def test_a_warning_is_right_more_often_where_more_runs_fail():
    """Bayes: of 1000 runs, 10, 50 or 100 fail, and 9, 45 or 90 of these are found."""
    counted = pd.DataFrame({"detected": [90], "collapses": [100], "false": [5], "healthy": [100]})
    (rates,) = shares(counted).to_dict("records")
    assert rates["detected"] == 90
    assert rates["false"] == 5
    expected = {1: 9 / (9 + 49.5), 5: 45 / (45 + 47.5), 10: 90 / (90 + 45)}
    for percent, share in expected.items():
        assert rates[f"right_{percent}"] == pytest.approx(100 * share)


def test_a_difference_is_the_same_in_all_seeds():
    test = difference([2.0, 2.0])
    assert test["low"] == test["high"] == 2
    assert test["p"] == 0
    assert difference([2.0, 2.0], 2.0)["p"] == 1


def test_the_mean_of_two_groups_has_welchs_interval():
    """The mean of a and b is half of the difference of a and -b."""
    a, b = [1.0, 2.5, 3.0, 7.0], [4.0, 4.5, 5.5]
    minus_b = [-value for value in b]
    expected = stats.ttest_ind(a, minus_b, equal_var=False).confidence_interval(0.95)
    actual = mean_of_groups([a, b])
    assert 2 * actual["low"] == pytest.approx(expected.low)
    assert 2 * actual["high"] == pytest.approx(expected.high)


def test_holm_is_the_closed_test_of_bonferroni():
    rng = random.Random(0)
    for _ in range(5):
        p = pd.Series([rng.random() ** 3 for _ in range(6)])
        closed = pd.Series(0.0, p.index)
        for n in range(1, 7):
            for tests in map(list, itertools.combinations(p.index, n)):
                local = min(1, n * p[tests].min())
                closed[tests] = closed[tests].clip(lower=local)
        pd.testing.assert_series_equal(holm(p), closed, rtol=1e-12)
