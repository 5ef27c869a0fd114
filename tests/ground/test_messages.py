"""Checks of values that a user passed: what is accepted, and what a refusal names."""

from __future__ import annotations

import importlib.util
import math
import sys
from fractions import Fraction

import numpy as np
import pytest

from rdm_solo.messages import (
    UserError,
    check_bool,
    check_choice,
    check_installed,
    check_integer,
    check_number,
)

NO_NUMBERS = [True, np.True_, math.nan, math.inf, "1", None, [2], 1j]


def test_numbers_are_returned_as_int_or_float():
    for value in (1, 3, 2**31 - 1, np.int64(3)):
        number = check_integer("n", value, 1)
        assert (type(number), number) == (int, value)
    for value in (0, 1, 0.5, Fraction(1, 4), np.float32(0.5), np.int64(1)):
        number = check_number("x", value, 0, 1)
        assert (type(number), number) == (float, value)


@pytest.mark.parametrize("value", [0, -1, 2.0, 2**31, -(10**30), *NO_NUMBERS])
def test_other_values_for_a_whole_number_are_refused(value):
    with pytest.raises(ValueError, match=r"^n must be an integer .*, got .*\.$") as refused:
        check_integer("n", value, 1)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("value", [-0.1, 1.1, -math.inf, 10**400, *NO_NUMBERS])
def test_other_values_for_a_number_are_refused(value):
    with pytest.raises(ValueError, match=r"^x must be a number from 0 to 1, got .*\.$"):
        check_number("x", value, 0, 1)


@pytest.mark.parametrize(
    ("limits", "outside", "words"),
    [
        ({}, math.inf, "a finite number"),
        ({"minimum": 0}, -1e-9, "of at least 0"),
        ({"maximum": 2.5}, 2.6, "of at most 2.5"),
        ({"above": 0}, 0, "above 0"),
    ],
)
def test_each_limit_is_kept_and_named(limits, outside, words):
    assert check_number("x", 0.5, **limits) == 0.5
    with pytest.raises(ValueError, match=words):
        check_number("x", outside, **limits)


def test_switches_and_choices():
    assert check_bool("s", False) is False
    assert check_choice("c", "one", ("one", "two")) == "one"
    for value in (0, None, "false"):
        with pytest.raises(ValueError, match="true or false, or null"):
            check_bool("s", value, alternative="null")
    for value in (["one"], None, "One"):
        with pytest.raises(ValueError, match="one of one, two"):
            check_choice("c", value, ("one", "two"))


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
    monkeypatch.setattr("rdm_solo.messages.__file__", str(tmp_path / "rdm_solo" / "messages.py"))
    names = modules.replace(" ", ", ").replace("solo", "solo-learn")
    with pytest.raises(UserError, match=f"a run needs {names};") as refused:
        check_installed("a run", *modules.split())
    assert [line.strip() for line in str(refused.value).splitlines()[1:]] == commands
