"""Checks of options accept numbers of any type and name what they refuse."""

import math
from fractions import Fraction

import numpy as np
import pytest

from rdm_solo.ground.values import check_bool, check_choice, check_integer, check_number

NOT_NUMBERS = [True, np.True_, math.nan, math.inf, -math.inf, "1", None, [2], 1j]
NOT_INTEGERS = [0, -1, 2.0, 2**31, -(10**30), *NOT_NUMBERS]
FROM_0_TO_1 = {"minimum": 0, "maximum": 1}


@pytest.mark.parametrize("limits", [{}, {"minimum": 0}, {"maximum": 2.5}, {"above": 0}])
def test_a_number_within_limits_is_returned(limits):
    assert check_number("x", 0.5, **limits) == 0.5


@pytest.mark.parametrize("value", [0, 1, 0.5, Fraction(1, 4), np.float32(0.5), np.int64(1)])
def test_a_number_of_any_type_is_returned_as_a_float(value):
    number = check_number("x", value, 0, 1)
    assert type(number) is float
    assert number == value


@pytest.mark.parametrize("value", [1, 3, 2**31 - 1, np.int64(3)])
def test_an_integer_of_any_type_is_returned_as_an_int(value):
    number = check_integer("n", value, 1)
    assert type(number) is int
    assert number == value


def test_an_allowed_bool_or_choice_is_returned():
    assert check_bool("s", False) is False
    assert check_choice("c", "one", ("one", "two")) == "one"


def refuses(check, limits, value, words) -> None:
    """Check that the message names the option, what is allowed, and the value."""
    with pytest.raises(ValueError, match=rf"^x must be {words}, got ") as refused:
        check("x", value, **limits)
    assert repr(value)[:200] in str(refused.value)


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_a_value_that_is_not_a_finite_number_is_refused(value):
    refuses(check_number, {}, value, "a finite number")


@pytest.mark.parametrize("value", NOT_INTEGERS)
def test_a_value_that_is_not_a_positive_integer_is_refused(value):
    refuses(check_integer, {"minimum": 1}, value, "an integer of at least 1")


@pytest.mark.parametrize(
    ("limits", "value", "words"),
    [
        (FROM_0_TO_1, -0.1, "a number from 0 to 1"),
        (FROM_0_TO_1, 1.1, "a number from 0 to 1"),
        (FROM_0_TO_1, 10**400, "a number from 0 to 1"),
        ({"minimum": 0}, -1e-9, "a number of at least 0"),
        ({"maximum": 2.5}, 2.6, "a number of at most 2.5"),
        ({"above": 0}, 0, "a number above 0"),
    ],
)
def test_a_number_outside_its_limits_is_refused(limits, value, words):
    refuses(check_number, limits, value, words)


@pytest.mark.parametrize("value", [0, None, "false"])
def test_a_value_that_is_not_a_bool_is_refused(value):
    refuses(check_bool, {"alternative": "null"}, value, "true or false, or null")


@pytest.mark.parametrize("value", [["one"], None, "One"])
def test_a_value_that_is_not_a_choice_is_refused(value):
    refuses(check_choice, {"allowed": ["one", "two"]}, value, "one of one, two")
