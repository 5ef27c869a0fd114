"""What all studies share: recorded pages, resuming, tests of differences."""

import itertools
import random

import pandas as pd
import pytest

from studies import study
from studies.alarms.page import STUDY as ALARMS
from studies.evidence.page import STUDY as EVIDENCE
from studies.intervals import difference, holm
from studies.mechanism.page import STUDY as MECHANISM
from studies.methods.page import STUDY as METHODS

STUDIES = {
    "alarms": ALARMS,
    "evidence": EVIDENCE,
    "mechanism": MECHANISM,
    "methods": METHODS,
}


@pytest.mark.parametrize("name", STUDIES)
def test_recorded_pages_follow_from_the_recorded_table(name):
    recorded = STUDIES[name]
    table = recorded.read()
    for path, text in recorded.pages(table).items():
        assert text == path.read_text(encoding="utf-8")
    assert recorded.missing(table) == []
    first_key = table.loc[0, list(recorded.key)].tolist()
    (run,) = recorded.missing(table[1:])
    assert list(map(str, run)) == first_key


@pytest.mark.parametrize("name", ["evidence", "mechanism"])
def test_every_recorded_run_is_planned(name):
    """Learning rates are searched and chosen again from the recorded accuracies."""
    recorded = STUDIES[name]
    table = recorded.read()
    planned = set()
    for run in recorded.planned(table):
        planned.add(tuple(map(str, run)))
    keys = table[list(recorded.key)].itertuples(index=False, name=None)
    assert planned == set(keys)


def test_a_study_resumes_after_a_failed_run(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "ROOT", tmp_path)
    (tmp_path / "studies" / "tiny").mkdir(parents=True)
    errors = [RuntimeError("the first try of b")]
    measured = []

    def measure(name, seed):
        if name == "b" and errors:
            raise errors.pop()
        measured.append(name)
        return {"name": name, "seed": str(seed), f"value of {name}": "0.10"}

    runs = [("a", 1), ("b", 1), ("c", 1)]
    key = ["name", "seed"]
    tiny = study.Study("tiny", "", "page.md", key, lambda table: runs, measure, dict)
    with pytest.raises(RuntimeError):
        tiny.train(jobs=1, most=None)
    assert measured[0] == "a"
    tiny.train(jobs=1, most=1)
    tiny.train(jobs=1, most=None)
    assert sorted(measured) == ["a", "b", "c"]
    table = tiny.read()
    assert table["name"].tolist() == measured
    assert table["value of a"].tolist().count("0.10") == 1


def test_a_difference_is_the_same_in_all_seeds():
    test = difference([2.0, 2.0])
    assert test["low"] == test["high"] == 2
    assert test["p"] == 0
    assert difference([2.0, 2.0], 2.0)["p"] == 1


def test_holm_is_the_closed_test_of_bonferroni():
    rng = random.Random(0)
    for _ in range(20):
        p = pd.Series([rng.random() ** 3 for _ in range(6)])
        closed = dict.fromkeys(p.index, 0.0)
        for n in range(1, 7):
            for tests in itertools.combinations(p.index, n):
                local = min(1.0, n * p[list(tests)].min())
                for test in tests:
                    closed[test] = max(closed[test], local)
        assert holm(p).to_dict() == pytest.approx(closed, rel=1e-12)
