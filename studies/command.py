"""The command of a study: options, training of missing runs, the page."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from studies import table
from studies.training import run_all


def run(
    name: str,
    description: str,
    head: Sequence[str],
    missing: Callable[[list[table.Row]], list[Sequence[Any]]],
    measure: Callable[..., table.Row],
    write: Callable[[list[table.Row], Path], None],
    page: str,
) -> None:
    """Train the runs that the table lacks and write the page.

    ``head`` names the table's columns, ``missing(rows)`` lists the runs that the table lacks,
    ``measure(*run)`` trains one of them and returns its row, ``write(rows, out)`` writes the page.
    ``page`` is the page's default path.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m studies.{name}",
        description=f"{description} Each run adds a row to the table when it finishes, and runs "
        "with a row are not repeated. To repeat a run, remove its row.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    runs = Path("studies", name, "runs.csv")
    parser.add_argument("--table", type=Path, default=runs, help="table of runs")
    parser.add_argument("--out", type=Path, default=Path(page), help="page")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--most", type=int, help="most runs to train; 0 only writes the page")
    options = parser.parse_args()
    while tasks := missing(table.read(options.table))[: options.most]:  # some choose later runs
        run_all(measure, tasks, options.jobs, partial(table.add, options.table, head))
        if options.most is not None:
            break
    rows = table.read(options.table)
    write(rows, options.out)
    print(f"{options.out}: written from the {len(rows)} runs in {options.table}")
