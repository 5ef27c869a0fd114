"""What all studies share: a table with one row per run, and pages that are written from it."""

import argparse
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from tqdm.contrib.concurrent import thread_map

from rdm_solo.runs.files import write_atomically
from studies.training import ROOT


@dataclass(frozen=True)
class Study:
    """A plan of runs, the measurement of one run, and the analysis that the pages show.

    ``planned(table)`` lists the runs. A run is a tuple with its values of the columns ``key``.
    ``measure(*run)`` trains it and returns the other columns of its row. ``analyse(table)`` returns
    the values that the templates ``page.md`` and ``page_appendix.md`` name. ``draw(table, folder)``
    saves figures.
    """

    name: str
    description: str
    page: str
    key: Sequence[str]
    planned: Callable[[pd.DataFrame], Sequence[Any]]
    measure: Callable[..., dict[str, str]]
    analyse: Callable[[pd.DataFrame], dict[str, Any]]
    draw: Callable[[pd.DataFrame, Path], None] | None = None

    @property
    def folder(self) -> Path:
        return ROOT / "studies" / self.name

    def read(self) -> pd.DataFrame:
        """Return the table. All cells are text; an empty text means not measured."""
        path = self.folder / "runs.csv"
        if not path.exists():
            return pd.DataFrame(columns=self.key)
        return pd.read_csv(path, dtype=str, keep_default_na=False)

    def missing(self, table: pd.DataFrame) -> list[Any]:
        """Return the planned runs that the table lacks."""
        rows = table[list(self.key)]
        present = set(rows.itertuples(index=False, name=None))
        runs = dict.fromkeys(self.planned(table))  # a run of two questions is planned twice
        return [run for run in runs if tuple(map(str, run)) not in present]

    def row(self, *run: Any) -> dict[str, str]:
        """Train a run and return its row of the table."""
        key = map(str, run)
        return dict(zip(self.key, key)) | self.measure(*run)

    def train(self, jobs: int, most: int | None) -> None:
        """Train missing runs, ``jobs`` at a time. After a failure no further run starts."""
        lock = threading.Lock()

        def train_one(run: Any) -> None:
            row = pd.DataFrame([self.row(*run)])
            with lock:
                table = pd.concat([self.read(), row])
                write_atomically(self.folder / "runs.csv", table.to_csv(index=False))

        # The results of the first runs can decide which runs follow.
        while runs := self.missing(self.read())[:most]:
            thread_map(train_one, runs, max_workers=jobs, unit="run")
            if most is not None:
                break

    def pages(self, table: pd.DataFrame) -> dict[Path, str]:
        """Return the page in ``docs/`` and the appendix beside the table."""
        templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(self.folder),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        templates.filters["distinct"] = distinct
        values = self.analyse(table)
        page = templates.get_template("page.md")
        appendix = templates.get_template("page_appendix.md")
        return {
            ROOT / self.page: page.render(values, table=table),
            self.folder / "appendix.md": appendix.render(values, table=table),
        }

    def main(self) -> None:
        """Run the study's command: train missing runs, then write the pages if none is missing."""
        parser = argparse.ArgumentParser(
            prog=f"python -m studies.{self.name}",
            description=f"{self.description} A finished run adds a row to the table, and runs with "
            "a row are not repeated. To repeat a run, remove its row.",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
        parser.add_argument("--most", type=int, help="most runs to train; 0 only writes the pages")
        options = parser.parse_args()
        self.train(options.jobs, options.most)
        table = self.read()
        if missing := self.missing(table):
            parser.exit(message=f"{len(missing)} runs are missing; the pages are not written.\n")
        for path, text in self.pages(table).items():
            write_atomically(path, text)
            print(f"{path}: written from the {len(table)} runs of the study {self.name}")
        if self.draw:
            self.draw(table, ROOT / "docs")


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return columns of text as numbers; an empty cell is NaN."""
    return table.replace("", math.nan).astype(float)


def distinct(column: pd.Series) -> list[str]:
    """Return the different texts of a column in order, without the empty one."""
    return sorted(set(column) - {""})


def cells(values: dict[str, float]) -> dict[str, str]:
    """Return numbers as cells of a table."""
    return {name: f"{value:.7g}" for name, value in values.items()}


def joined(values: Sequence[float]) -> str:
    """Return a cell with one number per epoch, "-" where nothing was measured.

    >>> joined([10.5, math.nan, 20])
    '10.5 - 20'
    """
    return " ".join("-" if math.isnan(value) else f"{value:.4g}" for value in values)


def series(cell: str) -> list[float]:
    """Return the numbers of a cell that has one per epoch.

    >>> series("10.5 - 20")
    [10.5, nan, 20.0]
    """
    return [math.nan if word == "-" else float(word) for word in cell.split()]


def last_measured(cell: str) -> float:
    """Return the last finite number of such a cell; NaN if there is none.

    >>> last_measured("10.5 20 -"), last_measured("")
    (20.0, nan)
    """
    finite = filter(math.isfinite, series(cell))
    return [math.nan, *finite][-1]
