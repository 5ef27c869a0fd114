"""Callbacks run behind those whose results they read, in whichever order they are listed."""

from __future__ import annotations

import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.small_runs import DRAWN, configure

from rdm_solo.callbacks.order import in_order
from rdm_solo.train.trainer import make_callbacks

READS = {
    "CollapseWatch": {"Diagnostics", "WeightedKNN"},
    "Pictures": {"Diagnostics"},
    "EpochTable": {"Diagnostics", "WeightedKNN"},
    "RankFigure": {"EpochTable"},
}


def configured(folder, *overrides: str) -> list:
    cfg = configure(*DRAWN, *overrides)
    return make_callbacks(cfg, folder, SimpleNamespace(filter_batch=16))


def names(callbacks) -> list[str]:
    return [type(callback).__name__ for callback in callbacks]


def test_a_shuffled_list_is_put_in_order(tmp_path):
    listed = configured(tmp_path)
    for seed in range(5):
        random.Random(seed).shuffle(listed)
        ordered = names(in_order(listed))
        assert sorted(ordered) == sorted(names(listed))
        for reader, sources in READS.items():
            assert all(ordered.index(source) < ordered.index(reader) for source in sources)


@pytest.mark.parametrize("override", ["~callbacks.watch", "callbacks.watch=null"])
def test_callbacks_can_be_left_out(override, tmp_path):
    assert set(names(configured(tmp_path))) - set(names(configured(tmp_path, override))) == {
        "CollapseWatch"
    }


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
        configured(tmp_path, override)


def test_a_circle_is_refused():
    class A:
        after = ("B",)

    class B:
        after = ("A",)

    with pytest.raises(ValueError, match="wait for each other: A, B"):
        in_order([A(), B()])


def test_diagnostics_load_only_what_they_use():
    count = "sum(name.startswith('rdm_solo') for name in sys.modules)"
    code = f"import sys, rdm_solo.callbacks.diagnostics; print({count})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 25
