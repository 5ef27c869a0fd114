"""Callbacks run behind those whose results they read, in whichever order they are listed."""

from __future__ import annotations

import random

import pytest
from support.small_runs import DRAWN, configure

from rdm_solo import train
from rdm_solo.callbacks.order import in_order

READS = {
    "CollapseWatch": {"Diagnostics", "WeightedKNN"},
    "Pictures": {"Diagnostics"},
    "EpochTable": {"Diagnostics", "WeightedKNN"},
    "RankFigure": {"EpochTable"},
}


def names(callbacks) -> list[str]:
    return [type(callback).__name__ for callback in callbacks]


def test_a_shuffled_list_is_put_in_order(tmp_path):
    listed = list(train.build(configure(*DRAWN), tmp_path).trainer.callbacks)
    for seed in range(5):
        random.Random(seed).shuffle(listed)
        ordered = names(in_order(listed))
        assert sorted(ordered) == sorted(names(listed))
        for reader, sources in READS.items():
            assert all(ordered.index(source) < ordered.index(reader) for source in sources)


@pytest.mark.parametrize(
    ("overrides", "absent"),
    [
        (["~callbacks.pictures"], "Pictures"),
        (["callbacks.watch=null"], "CollapseWatch"),
        (["trainer.enable_progress_bar=false"], "Progress"),
        (["trainer.enable_progress_bar=true", "~callbacks.progress"], "TQDMProgressBar"),
    ],
)
def test_callbacks_can_be_left_out(overrides, absent, tmp_path):
    options = ["trainer.enable_progress_bar=true", *overrides]
    left = names(train.build(configure(*DRAWN, *options), tmp_path).trainer.callbacks)
    assert absent not in left
    assert {"Diagnostics", "WeightedKNN", "EpochTable"} <= set(left)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("+callbacks.mine._target_=nowhere.Mine", "nowhere"),
        ("+callbacks.mine._target_=os.getcwd", "callbacks.mine must name a class"),
        ("callbacks.knn=5", "callbacks.knn must name a class .*, got 5"),
        ("+callbacks.knn.every=3", "callbacks.knn cannot be made: .* 'every'"),
    ],
)
def test_an_entry_that_makes_no_callback_is_refused(override, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        train.build(configure(*DRAWN, override), tmp_path)


def test_a_circle_is_refused():
    class A:
        after = ("B",)

    class B:
        after = ("A",)

    with pytest.raises(ValueError, match="wait for each other: A, B"):
        in_order([A(), B()])
