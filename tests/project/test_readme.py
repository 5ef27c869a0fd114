"""README and CONTRIBUTING list what is there; test_docs.py has links, Python and commands."""

import re

import pytest
from conftest import ROOT

import rdm_solo.__main__
from rdm_solo.cli.config_files import config_folder

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def first_column(text: str, heading: str) -> set[str]:
    """Return the names between backticks in the first column of the table with that heading."""
    body = text.split(f"| {heading} |")[1].split("\n\n")[0]
    names = set()
    for cell in re.findall(r"^\| (`[^|]*) \|", body, re.M):
        names.update(re.findall(r"`([a-z]\w*)[^`]*`", cell))
    return names


@pytest.mark.parametrize("group", ["filter", "method"])
def test_every_option_and_no_other_is_in_the_table(group):
    names = {path.stem for path in (config_folder() / group).glob("*.yaml")}
    listed = first_column(README, f"`{group}=`")
    # Behind a name in brackets stand its default and options.
    assert {name for name in listed if name not in ("p", "method")} == names


def test_every_command_and_every_room_and_no_other_is_in_the_tables():
    assert first_column(README, "`rdm-solo`") == set(rdm_solo.__main__.COMMANDS)
    rooms = {path.parent.name for path in (ROOT / "rdm_solo").glob("*/__init__.py")}
    assert first_column(CONTRIBUTING, "room") == rooms


def test_there_are_few_commands_and_few_modules_at_the_top():
    assert len(rdm_solo.__main__.COMMANDS) <= 10
    assert len(list((ROOT / "rdm_solo").glob("*.py"))) <= 10
