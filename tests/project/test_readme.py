"""The README says what is there; test_docs.py has its links, its Python and its commands."""

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


def test_its_modules_exist():
    for path in re.findall(r"^    (rdm_solo/\S+) ", README, re.M):
        assert (ROOT / path).exists(), path
