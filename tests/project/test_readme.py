"""README and CONTRIBUTING list what is there; test_docs.py has links, Python and commands."""

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


def test_it_is_short():
    assert len(README.splitlines()) <= 150


def test_contributing_has_every_room_and_no_other():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| room | what is in it |")[1]
    first = re.findall(r"^\| ([^|]+) \|", table.split("\n\n")[0], re.M)
    named = {name for cell in first for name in re.findall(r"`([\w.]+/?)`", cell)}
    package = ROOT / "rdm_solo"
    rooms = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    # Files directly in the package start a command from its room, or are what all rooms stand on.
    ground = {path.name for path in package.glob("*.py") if "__main__" not in path.read_text()}
    assert named == rooms | ground - {"__init__.py"}


def test_few_files_stand_directly_in_the_package():
    assert len(list((ROOT / "rdm_solo").glob("*.py"))) <= 10


def test_every_room_is_installed():
    listed = re.findall(r"^    rdm_solo\.(\w+)$", (ROOT / "setup.cfg").read_text(), flags=re.M)
    rooms = {path.parent.name for path in (ROOT / "rdm_solo").glob("*/__init__.py")}
    assert set(listed) == rooms | {"conf"}
