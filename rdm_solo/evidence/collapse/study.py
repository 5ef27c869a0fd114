"""Whether the warnings of collapse are right: ``python -m rdm_solo.evidence.collapse``."""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rdm_solo import cli
from rdm_solo.evidence import processes, table
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
    parser = argparse.ArgumentParser(
        prog="python -m rdm_solo.evidence.collapse",
        description="Train the runs of study.yaml, label each by kNN and by the directions of its "
        "outputs on clean samples, and judge the warnings of collapse by them. Each run adds a row "
        "to the table when it ends, so that an interrupted command goes on where it stopped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    docs = Path("docs")
    parser.add_argument(
        "--table", type=Path, default=docs / "collapse.csv", help="file of the rows"
    )
    parser.add_argument("--out", type=Path, default=docs / "collapse.md", help="file for the page")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--most", type=int, help="runs to add at most; 0 writes the page alone")
    cli.say_anything()
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    run_missing(options.table, options.jobs, options.most)
    rows = table.rows(options.table)
    write_whole(options.out, page(rows))
    print(f"{options.out} is written from the {len(rows)} runs in {options.table}")
