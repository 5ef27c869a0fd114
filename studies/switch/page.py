"""The study's command, and what its pages say about the table."""

import argparse
from typing import Any

import pandas as pd

from rdm_solo.runs.files import write_atomically
from studies.study import Study
from studies.switch.runs import ARMS, UNSWITCHED, Unit, missing, planned, train


def analyse(table: pd.DataFrame) -> dict[str, Any]:
    """Return the values that the pages name."""
    return {}


def planned_runs(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the keys of all rows that the plan names."""
    keys = []
    for unit in planned():
        for arm in (UNSWITCHED, *ARMS[unit.setting]):
            keys.append((*map(str, unit), arm))
    return keys


STUDY = Study(
    name="switch",
    description="Remove an asymmetry in the middle of training and put it back.",
    page="docs/mechanism.md",
    key=(*Unit._fields, "arm", "cpu seconds"),
    planned=planned_runs,
    measure=lambda *key: {},
    analyse=analyse,
)


def main() -> None:
    """Train missing runs, or write the pages."""
    parser = argparse.ArgumentParser(prog="python -m studies.switch", description=STUDY.description)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--most", type=int, help="most units to train; 0 only writes the pages")
    options = parser.parse_args()
    if options.most != 0:
        train(STUDY.folder / "runs.csv", STUDY.read, options.jobs, options.most)
    table = STUDY.read()
    if units := missing(table):
        parser.exit(message=f"{len(units)} units are missing; the pages are not written.\n")
    for path, text in STUDY.pages(table).items():
        write_atomically(path, text)
