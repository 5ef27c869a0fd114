"""Settings of runs: which runs are one, and labels that no two settings share."""

import itertools

import pytest
from omegaconf import OmegaConf
from support.report_pages import run

from rdm_solo.runs.groups import by_setting


def with_options(seed: int = 0, **options):
    member = run(-0.5, seed=seed)
    member.config.optimizer = OmegaConf.create(options)
    return member


@pytest.mark.parametrize(
    "values",
    [["a", "b"], ["f(x)", "f(x"], ["(a", "a"], ["a", "a) #2"]],
    ids=["plain", "ends in a bracket", "begins with a bracket", "is numbered"],
)
def test_no_two_settings_share_a_label(values):
    """The fourth option that differs is not in the label."""
    several = itertools.product(values, range(3))
    result = by_setting([with_options(one=v, two=v, three=v, four=four) for v, four in several])
    assert len({group.label for group in result}) == len(result) == 6
    plain = {f"SimSiam, target filter σ^-0.5 (one={v}, two={v}, three={v})" for v in values}
    assert plain <= {group.label for group in result}
    assert result[1].label.endswith(") #2")
    assert result[2].label.endswith(") #3")
    assert all(group.label.endswith(group.suffix) for group in result)


def test_exponents_that_rounding_tells_apart_are_one_setting():
    exponents = (-0.3, -0.1 - 0.2, -0.3 - 1e-14)
    assert len(set(exponents)) == 3
    (one,) = by_setting([run(p, seed=seed) for seed, p in enumerate(exponents)])
    assert (one.label, len(one.runs)) == ("SimSiam, target filter σ^-0.3", 3)
    rates = [with_options(lr=lr) for lr in (0.1 + 0.2, 0.3, 0.4)]
    assert [group.suffix for group in by_setting(rates)] == [" (lr=0.3)", " (lr=0.4)"]
    different = by_setting([run(p) for p in (-0.3, -0.3000001, -0.30000001192092896)])
    assert len({group.label for group in different}) == 3
