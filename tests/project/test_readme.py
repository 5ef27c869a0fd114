"""The tables of README and CONTRIBUTING list every option, command and room, and no other."""

import re

import pytest
from conftest import ROOMS, ROOT

from rdm_solo.__main__ import COMMANDS
from rdm_solo.cli.config_files import config_folder

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def first_column(text: str, heading: str) -> set[str]:
    """Return the names between backticks in the first column of the table with that heading."""
    _, _, rest = text.partition(f"| {heading} |")
    table, _, _ = rest.partition("\n\n")
    names = set()
    for cell in re.findall(r"^\| (`[^|]*) \|", table, re.M):
        names.update(re.findall(r"`([a-z]\w*)[^`]*`", cell))
    return names


@pytest.mark.parametrize("group", ["filter", "method"])
def test_the_table_of_a_group_lists_its_options(group):
    names = {path.stem for path in config_folder().glob(f"{group}/*.yaml")}
    # The default and the options of a name follow it in brackets.
    assert first_column(README, f"`{group}=`") - {"p", "method"} == names


def test_the_tables_list_every_command_and_every_room():
    assert first_column(README, "`rdm-solo`") == set(COMMANDS)
    assert first_column(CONTRIBUTING, "room") == set(ROOMS)


def test_there_are_few_commands_and_few_modules_at_the_top():
    assert len(COMMANDS) <= 10
    modules = list(ROOT.glob("rdm_solo/*.py"))
    assert len(modules) <= 10
