"""Checks of values that a user passed: what is accepted, and what a refusal names."""

import importlib.util
import math
import sys
from fractions import Fraction

import numpy as np
import pytest

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.packages import check_installed
from rdm_solo.ground.values import check_bool, check_choice, check_integer, check_number

NO_NUMBERS = [True, np.True_, math.nan, math.inf, -math.inf, "1", None, [2], 1j]
NO_INTEGERS = [0, -1, 2.0, 2**31, -(10**30), *NO_NUMBERS]
NO_SWITCHES = [0, None, "false"]
NO_CHOICES = [["one"], None, "One"]


def test_what_is_allowed_is_returned_and_numbers_as_int_or_float():
    assert check_bool("s", False) is False
    assert check_choice("c", "one", ("one", "two")) == "one"
    for limits in ({}, {"minimum": 0}, {"maximum": 2.5}, {"above": 0}):
        assert check_number("x", 0.5, **limits) == 0.5
    for value in (1, 3, 2**31 - 1, np.int64(3)):
        number = check_integer("n", value, 1)
        assert (type(number), number) == (int, value)
    for value in (0, 1, 0.5, Fraction(1, 4), np.float32(0.5), np.int64(1)):
        number = check_number("x", value, 0, 1)
        assert (type(number), number) == (float, value)


REFUSED = [
    *((check_number, {}, value, "a finite number") for value in NO_NUMBERS),
    (check_number, {"minimum": 0, "maximum": 1}, -0.1, "a number from 0 to 1"),
    (check_number, {"minimum": 0, "maximum": 1}, 1.1, "a number from 0 to 1"),
    (check_number, {"minimum": 0, "maximum": 1}, 10**400, "a number from 0 to 1"),
    (check_number, {"minimum": 0}, -1e-9, "a number of at least 0"),
    (check_number, {"maximum": 2.5}, 2.6, "a number of at most 2.5"),
    (check_number, {"above": 0}, 0, "a number above 0"),
    *((check_integer, {"minimum": 1}, value, "an integer of at least 1") for value in NO_INTEGERS),
    *((check_bool, {"alternative": "null"}, x, "true or false, or null") for x in NO_SWITCHES),
    *((check_choice, {"allowed": ["one", "two"]}, x, "one of one, two") for x in NO_CHOICES),
]


@pytest.mark.parametrize(("check", "limits", "value", "words"), REFUSED)
def test_a_refusal_names_the_option_what_is_allowed_and_the_value(check, limits, value, words):
    with pytest.raises(ValueError, match=rf"^x must be {words}, got ") as refused:
        check("x", value, **limits)
    assert repr(value)[:200] in str(refused.value)


SOLO = "pip install --no-deps solo-learn==1.0.2"


@pytest.mark.parametrize(
    ("modules", "files", "commands"),
    [
        ("hydra", [], ["pip install '.[train]'"]),
        ("solo", [], [SOLO]),
        ("solo wandb hydra", ["uv"], ["uv pip install '.[wandb,train]'", f"uv {SOLO}"]),
        ("solo hydra", ["uv", "pyproject.toml"], ["uv sync --inexact"]),
        ("wandb", ["uv", "pyproject.toml"], ["uv sync --inexact --extra wandb"]),
    ],
)
def test_missing_packages_are_named_with_what_installs_them(
    modules, files, commands, tmp_path, monkeypatch
):
    check_installed("a run", "sys", "math")
    (tmp_path / "pyvenv.cfg").write_text("home = /usr\n" + "uv = 0.13\n" * ("uv" in files))
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(
        "rdm_solo.ground.packages.__file__", str(tmp_path / "rdm_solo" / "ground" / "packages.py")
    )
    names = modules.replace(" ", ", ").replace("solo", "solo-learn")
    with pytest.raises(UserError, match=f"a run needs {names};") as refused:
        check_installed("a run", *modules.split())
    assert [line.strip() for line in str(refused.value).splitlines()[1:]] == commands
