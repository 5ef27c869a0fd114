"""Callbacks run behind those whose results they read, in whichever order they are listed."""

from __future__ import annotations

import random

import pytest
from support.small_runs import DRAWN, configure, rows

from rdm_solo import train
from rdm_solo.callbacks.order import in_order

READS = {
    "CollapseWatch": {"Diagnostics"},
    "Pictures": {"Diagnostics"},
    "EpochTable": {"Diagnostics", "WeightedKNN"},
    "RankFigure": {"EpochTable"},
}


@pytest.mark.parametrize("seed", range(5))
def test_a_shuffled_list_is_put_in_order(seed, tmp_path):
    callbacks = list(train.build(configure(*DRAWN), tmp_path).trainer.callbacks)
    random.Random(seed).shuffle(callbacks)
    names = [type(callback).__name__ for callback in in_order(callbacks)]
    assert sorted(names) == sorted(type(callback).__name__ for callback in callbacks)
    for reader, sources in READS.items():
        assert all(names.index(source) < names.index(reader) for source in sources)


def test_a_run_with_a_shuffled_list_gives_the_same_table(tmp_path):
    tables = []
    for name, seed in (("as_listed", None), ("shuffled", 3)):
        parts = train.build(configure(*DRAWN), tmp_path / name)
        if seed is not None:
            random.Random(seed).shuffle(parts.trainer.callbacks)
            parts.trainer.callbacks = in_order(parts.trainer.callbacks)
        (tmp_path / name).mkdir(exist_ok=True)
        parts.trainer.fit(parts.model, datamodule=parts.data)
        tables.append(rows(tmp_path / name))
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("overrides", "absent"),
    [
        (["~callbacks.pictures"], "Pictures"),
        (["callbacks.ranks=null"], "RankFigure"),
        (["callbacks.watch=null"], "CollapseWatch"),
        (["trainer.enable_progress_bar=false"], "Progress"),
        (["trainer.enable_progress_bar=true", "~callbacks.progress"], "TQDMProgressBar"),
    ],
)
def test_callbacks_can_be_left_out(overrides, absent, tmp_path):
    options = ["trainer.enable_progress_bar=true", *overrides]
    parts = train.build(configure(*DRAWN, *options), tmp_path)
    names = [type(callback).__name__ for callback in parts.trainer.callbacks]
    assert absent not in names
    assert {"Diagnostics", "WeightedKNN", "EpochTable"} <= set(names)
    assert names.index("Diagnostics") < names.index("EpochTable")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["+callbacks.mine._target_=nowhere.Mine"], "nowhere"),
        (["+callbacks.mine._target_=os.getcwd"], "callbacks.mine must name a class"),
        (["+callbacks.mine.every=3"], "callbacks.mine"),
        (["+callbacks.mine=[1]"], r"callbacks.mine must name a class .*, got \[1\]"),
        (["callbacks.knn=5"], "callbacks.knn must name a class .*, got 5"),
        (["trainer.enable_progress_bar=no"], "enable_progress_bar must be true or false"),
        (["+callbacks.knn.every=3"], "callbacks.knn cannot be made: .* 'every'"),
    ],
)
def test_what_is_no_callback_is_refused_in_one_sentence(overrides, says, tmp_path):
    with pytest.raises(ValueError, match=says) as refused:
        train.build(configure(*DRAWN, *overrides), tmp_path)
    assert len(str(refused.value).splitlines()) == 1


def test_a_circle_is_refused():
    class A:
        after = ("B",)

    class B:
        after = ("A",)

    with pytest.raises(ValueError, match="wait for each other: A, B"):
        in_order([A(), B()])
