"""Checks of options accept numbers of any type and name what they refuse."""

import math
from fractions import Fraction

import numpy as np
import pytest

from rdm_solo.ground.values import check_bool, check_choice, check_integer, check_number

NOT_NUMBERS = [True, np.True_, math.nan, math.inf, -math.inf, "1", None, [2], 1j]


@pytest.mark.parametrize("limits", [{}, {"minimum": 0.25}, {"maximum": 1}, {"above": 0}])
def test_numbers_of_any_type_within_limits_are_returned_as_floats(limits):
    for value in (1, 0.5, Fraction(1, 4), np.float32(0.5), np.int64(1)):
        number = check_number("x", value, **limits)
        assert type(number) is float
        assert number == value


def test_integers_bools_and_choices_are_returned():
    for value in (1, 2**31 - 1, np.int64(3)):
        number = check_integer("n", value, 1)
        assert type(number) is int
        assert number == value
    assert check_bool("s", False) is False
    assert check_choice("c", "one", ("one", "two")) == "one"


@pytest.mark.parametrize(
    ("check", "limits", "values", "allowed"),
    [
        (
            check_number,
            {"minimum": 0, "maximum": 1},
            [*NOT_NUMBERS, -0.1, 1.1, 10**400],
            "a number from 0 to 1",
        ),
        (check_number, {"minimum": 0}, [-1e-9], "a number of at least 0"),
        (check_number, {"above": 0}, [0], "a number above 0"),
        (
            check_integer,
            {"minimum": 1},
            [*NOT_NUMBERS, 0, 2.0, 2**31, -(10**30)],
            "an integer of at least 1",
        ),
        (check_integer, {"maximum": 1}, [2], "an integer from 0 to 1"),
        (
            check_bool,
            {"alternative": "null"},
            [0, None, "false"],
            "true or false, or null",
        ),
        (
            check_choice,
            {"allowed": ["one", "two"]},
            [["one"], None, "One"],
            "one of one, two",
        ),
    ],
)
def test_a_refusal_names_the_option_what_is_allowed_and_the_value(check, limits, values, allowed):
    for value in values:
        with pytest.raises(ValueError, match=f"^x must be {allowed}") as refusal:
            check("x", value, **limits)
        assert repr(value)[:200] in str(refusal.value)
