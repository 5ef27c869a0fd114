"""Settings of runs: which runs are one, and labels that no two settings share."""

from __future__ import annotations

import itertools

import pytest
from omegaconf import OmegaConf
from support.report_pages import run

from rdm_solo.runs.groups import by_setting


def with_options(seed: int = 0, **options):
    found = run(-0.5, seed=seed)
    found.config.optimizer = OmegaConf.create(options)
    return found


VALUES = {
    "plain": ["a", "b"],
    "ends in a bracket": ["f(x)", "f(x"],
    "begins with a bracket": ["(a", "a"],
    "has a number sign": ["a#1", "a#2"],
    "is numbered": ["a", "a) #2"],
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_no_two_settings_share_a_label(values):
    """The fourth option that differs is not in the label."""
    several = itertools.product(values, range(3))
    runs = [with_options(one=v, two=v, three=v, four=four) for v, four in several]
    found = by_setting(runs)
    assert len({group.label for group in found}) == len(found) == 6
    plain = {f"SimSiam, h(σ) = σ^-0.5 (one={v}, two={v}, three={v})" for v in values}
    assert plain <= {group.label for group in found}
    assert [group.label.endswith(f") #{i}") for i, group in zip((2, 3), found[1:])] == [True] * 2
    assert all(group.label.endswith(group.suffix) for group in found)


def test_a_filter_that_is_named_like_anothers_label_has_another():
    runs = [with_options(lr=1), with_options(lr=2)]
    others = []
    for name, lr in (("x", 1), ("x", 2), ("x (lr=1)", 1)):
        other = with_options(lr=lr)
        other.config.filter.name, other.config.p = name, None
        others.append(other)
    found = by_setting([*runs, *others])
    assert len({group.label for group in found}) == 5


def test_exponents_that_rounding_tells_apart_are_one_setting():
    exponents = (-0.3, -0.1 - 0.2, -0.3 - 1e-14)
    assert len(set(exponents)) == 3
    (one,) = by_setting([run(p, seed=seed) for seed, p in enumerate(exponents)])
    assert (one.label, len(one.runs)) == ("SimSiam, h(σ) = σ^-0.3", 3)
    whole = [run(-1, seed=0), run(-1.0, seed=1)]
    assert len(by_setting(whole)) == 1
    dirty = [with_options(lr=lr) for lr in (0.1 + 0.2, 0.3, 0.4)]
    assert [group.suffix for group in by_setting(dirty)] == [" (lr=0.3)", " (lr=0.4)"]


def test_exponents_that_differ_are_settings_of_their_own():
    found = by_setting([run(p) for p in (-0.3, -0.3000001, -0.30000001192092896)])
    assert len({group.label for group in found}) == 3
