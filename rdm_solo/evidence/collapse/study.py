"""Whether the warnings of collapse are right: ``python -m rdm_solo.evidence.collapse``."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rdm_solo.evidence import command, processes, table
from rdm_solo.evidence.collapse.page import page
from rdm_solo.evidence.collapse.runs import HEAD, is_here, measure, planned
from rdm_solo.runs.files import write_whole


def add(path: Path, row: Mapping[str, str]) -> None:
    """Write the table with one more row."""
    table.write(path, HEAD, [*table.rows(path), row])


def run_missing(path: Path, jobs: int, most: int | None) -> None:
    """The planned runs that the table lacks and solo-learn can train, ``jobs`` at a time."""
    done = {row["name"] for row in table.rows(path)}
    missing = [run for run in planned() if run.name not in done and is_here(run)][:most]
    processes.run_all(measure, [(run,) for run in missing], jobs, partial(add, path))


def main() -> None:
    command.run(
        "collapse",
        "Train the runs of study.yaml, label each by kNN and by the directions of its outputs on "
        "clean samples, and judge the warnings of collapse by them. Each run adds a row to the "
        "table when it ends, so that an interrupted command goes on where it stopped.",
        run_missing,
        lambda rows, out: write_whole(out, page(rows)),
    )
