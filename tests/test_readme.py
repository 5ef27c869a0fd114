"""The README says what is there, and its Python runs."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

from rdm_solo.cli import config_folder

README = (ROOT / "README.md").read_text()


def options_in(table: str) -> set[str]:
    """The names in the first column of the table with that heading."""
    body = README.split(f"| `{table}=` |")[1].split("\n\n")[0]
    first = re.findall(r"^\| (`[^|]*) \|", body, re.M)
    return {name for cell in first for name in re.findall(r"`([a-z]\w*)`", cell)}


@pytest.mark.parametrize("group", ["filter", "method"])
def test_every_option_and_no_other_is_in_the_table(group):
    files = (config_folder() / group).glob("*.yaml")
    assert options_in(group) == {path.stem for path in files}


def test_the_python_in_it_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    names: dict[str, object] = {}
    exec(code, names)
    import torch

    x = torch.randn(8, 4)
    assert names["online"](x).shape == x.shape


def test_its_pictures_and_modules_exist():
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).is_file(), path
    for path in re.findall(r"^    (rdm_solo/\w+\.py) ", README, re.M):
        assert (ROOT / path).is_file(), path


def test_its_commands_name_options_that_exist():
    from rdm_solo.cli import check_arguments

    joined = re.sub(r"\\\n\s+", "", README)
    commands = re.findall(r"^    uv run python -m rdm_solo\.train (.+)$", joined, re.M)
    assert len(commands) >= 3
    for command in commands:
        check_arguments(command.split())
