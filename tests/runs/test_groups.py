"""Settings of runs: which runs are one, which count, their means, and labels that differ."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from support.report_pages import run

from rdm_solo.runs import groups
from rdm_solo.runs.groups import by_setting

LABEL = "SimSiam, target filter σ^-0.5"


def with_options(seed: int = 0, **options):
    member = run(-0.5, seed=seed)
    member.config.optimizer = OmegaConf.create(options)
    return member


def watched(seed: int, own_seed: int = 0, **config):
    """Return a run of a watched loop, whose own config may also have its seed."""
    member = run(None, seed=seed, method="own method", filter="none")
    member.config.watched = {"config": {"seed": own_seed, **config}}
    return member


def labels(*runs) -> list[str]:
    return [group.label for group in by_setting(runs)]


@pytest.mark.parametrize("other", ["b", "a) #2"])
def test_no_two_settings_share_a_label(other):
    runs = []
    for value, fourth in itertools.product(["a", other], range(3)):
        # Only three options that differ are in the label.
        runs.append(with_options(one=value, two=value, three=value, four=fourth))
    result = labels(*runs)
    assert len(set(result)) == 6
    assert result[0] == f"{LABEL} (one=a, two=a, three=a)"


def test_runs_of_the_same_seed_are_never_seeds_of_each_other():
    """Equal settings with equal seeds differ in something that their configs do not tell."""
    folders = [Path("a/first"), Path("a/second"), Path("b/first")]
    repeated = [run(-0.5, 0, folder=folder) for folder in folders]
    assert labels(*repeated[:2]) == [f"{LABEL} (first)", f"{LABEL} (second)"]
    # The other seeds of the setting cannot tell which of the two they belong to.
    other_seed = run(-0.5, 1, folder=Path("c/third"))
    split = by_setting([*repeated, other_seed])
    names = ["a/first", "a/second", "b/first", "c/third"]
    assert [group.label for group in split] == [f"{LABEL} ({name})" for name in names]
    assert all(len(group.runs) == 1 for group in split)
    other_setting = with_options(0, lr=0.1)
    assert f"{LABEL} (lr=unset, first)" in labels(*repeated[:2], other_setting)


def test_the_config_of_a_watched_loop_is_part_of_its_setting():
    first = watched(seed=0, lr=0.1, model={"width": 8})
    same = watched(seed=1, lr=0.1, model={"width": 8}, own_seed=1)
    other = watched(seed=0, lr=0.2, model={"width": 8})
    (group,) = by_setting([first, same])
    assert group.label == "own method"
    assert labels(first, same, other) == ["own method (lr=0.1)", "own method (lr=0.2)"]
    assert first.setting["model.width"] == "8"
    assert labels(watched(0), watched(1)) == ["own method"]


def test_exponents_that_rounding_tells_apart_are_one_setting():
    exponents = [-0.3, -0.1 - 0.2, -0.3 - 1e-14]
    assert len(set(exponents)) == 3
    members = [run(p, seed) for seed, p in enumerate(exponents)]
    assert labels(*members) == ["SimSiam, target filter σ^-0.3"]
    rates = [0.1 + 0.2, 0.3, 0.4]
    members = [with_options(seed, lr=rate) for seed, rate in enumerate(rates)]
    assert labels(*members) == [f"{LABEL} (lr=0.3)", f"{LABEL} (lr=0.4)"]
    different = [-0.3, -0.3000001, -0.30000001192092896]
    assert len(set(labels(*map(run, different)))) == 3


def test_settings_without_a_finished_epoch_are_dropped_but_tell_the_others_labels():
    first = run(options={"optimizer.lr": 0.1})
    unstarted = run(-1.0, epochs=0)
    diverged = replace(run(options={"optimizer.lr": 9.0}, epochs=0), diverged=1)
    (group,) = groups.started_groups([first, unstarted, diverged])
    assert group.label == f"{LABEL} (lr=0.1)"
    assert groups.started_groups([unstarted]) == []


@pytest.mark.parametrize(
    ("seeds", "digits", "text"),
    [
        ([[1, 2], [1, 4]], 1, "3.0 ± 1.4"),
        ([[1, 2]], 0, "2"),
        ([[1, 2], [3, np.nan]], 1, "2.0 (n = 1)"),
        ([[1, np.nan], [3, np.nan]], 1, "2.0 ± 1.4 (epoch 1)"),
        ([[np.nan, np.nan]], 1, "–"),
        ([[0, -0.001]], 2, "0.00"),
    ],
)
def test_last_values_name_their_epoch_and_number(seeds, digits, text):
    runs = [run(seed=seed, epochs=2, own=values) for seed, values in enumerate(seeds)]
    assert groups.format_latest(runs, "own", digits) == text


def test_a_value_that_was_measured_but_is_not_finite_hides_the_one_before():
    measured = {"own": np.array([True, True])}
    broken = replace(run(epochs=2, own=[1, np.nan]), measured=measured)
    assert groups.latest([broken], "own") == (2, [])


def test_a_spectrum_stacks_the_seeds_that_measured_the_last_epoch():
    first = run(seed=0)
    second = run(seed=1)
    earlier = replace(run(seed=2), spectra=run(epochs=2).spectra)
    without = replace(run(seed=3), spectra={})
    (group,) = by_setting([first, second, earlier, without])
    epoch, stacks = group.spectrum()
    assert epoch == 3
    expected = np.stack([first.spectra["lam_online"][-1]] * 2)
    np.testing.assert_array_equal(stacks["lam_online"], expected)
    (empty,) = by_setting([without])
    assert empty.spectrum() == (0, {})
