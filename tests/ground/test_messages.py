"""Checks of values that a user gave: what is refused, and in which words."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from rdm_solo.messages import check_choice, check_number, check_switch, check_whole


@pytest.mark.parametrize("value", [1, 3, 2**31 - 1, np.int64(3)])
def test_a_whole_number_comes_back_as_an_int(value):
    assert type(check_whole("n", value, 1)) is int
    assert check_whole("n", value, 1) == value


@pytest.mark.parametrize(
    "value",
    [0, -1, True, False, np.True_, 2.0, math.nan, math.inf, "2", None, [2], 2**31, -(10**30)],
)
def test_what_is_no_whole_number_is_refused_in_a_sentence(value):
    with pytest.raises(ValueError, match=r"^n must be a whole number .*, got .*\.$") as refused:
        check_whole("n", value, 1)
    assert str(refused.value).endswith(f"got {value!r}.")


@pytest.mark.parametrize("value", [0, 1, 0.5, Fraction(1, 4), np.float32(0.5), np.int64(1)])
def test_a_number_comes_back_as_a_float(value):
    assert type(check_number("x", value, 0, 1)) is float
    assert check_number("x", value, 0, 1) == value


@pytest.mark.parametrize(
    "value", [-0.1, 1.1, True, np.True_, math.nan, math.inf, -math.inf, "1", None, 1j, 10**400]
)
def test_what_is_no_number_is_refused_in_a_sentence(value):
    with pytest.raises(ValueError, match=r"^x must be a number from 0 to 1, got .*\.$"):
        check_number("x", value, 0, 1)


@pytest.mark.parametrize(
    ("limits", "outside", "words"),
    [
        ({}, math.inf, "a finite number"),
        ({"least": 0}, -1e-9, "a number of at least 0"),
        ({"most": 2.5}, 2.6, "a number of at most 2.5"),
        ({"above": 0}, 0, "a number above 0"),
        ({"below": 1}, 1.0, "a number below 1"),
        ({"least": 0, "below": 1}, 1, "a number of at least 0 and below 1"),
        ({"above": 0, "most": 1}, 0.0, "a number above 0 and at most 1"),
    ],
)
def test_each_limit_is_kept_and_named(limits, outside, words):
    assert check_number("x", 0.5, **limits) == 0.5
    with pytest.raises(ValueError, match=r"^x must be") as refused:
        check_number("x", outside, **limits)
    assert str(refused.value) == f"x must be {words}, got {outside!r}."


def test_switches_and_choices():
    assert check_switch("s", False) is False
    assert check_choice("c", "one", ("one", "two")) == "one"
    for value in (0, None, "false"):
        with pytest.raises(ValueError, match=r"^s must be true or false, or null, got "):
            check_switch("s", value, alternative="null")
    for value in (["one"], None, "One"):
        with pytest.raises(ValueError, match=r"^c must be one of one, two, got "):
            check_choice("c", value, ("one", "two"))
