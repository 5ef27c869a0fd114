"""One page with figures and tables of runs: ``python -m rdm_solo.report FOLDER...``."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rdm_solo import cli, runs
from rdm_solo.plots.grouping import Group, groups, not_counted, whole
from rdm_solo.report import figures, verdicts
from rdm_solo.report.html import Report, page
from rdm_solo.report.markup import Html, join, tag, typeset
from rdm_solo.report.places import relative, verbatim
from rdm_solo.runs.files import write_whole

__all__ = ["missing", "opened", "table", "write"]

log = logging.getLogger("rdm_solo")

NAME = "report.html"


def write(paths: Sequence[Path], out: Path | None = None, checkpoints: bool = True) -> Path:
    """Draw the runs in these folders and write the page; its path.

    ``checkpoints=False`` leaves out what is recomputed from them (the paper's Figure 5).
    """
    found, broken = runs.survey(paths)
    if not found:
        raise ValueError(next(iter(broken.values())))
    folder = out or _folder(paths)
    cli.make_folder(folder, "--out FOLDER")
    begun = [run for run in found if run.epochs]
    grouped = groups(begun) if begun else []
    pictures, absent = figures.draw(grouped, folder) if begun else ([], [])
    parts = [figures.predictions] + [figures.roles] * checkpoints
    for part in parts if begun else []:
        more, lacking = part(grouped, folder)
        pictures, absent = [*pictures, *more], [*absent, *lacking]
    pictures.sort(key=lambda picture: picture.title.partition(" ")[0])  # 1., 2., ..., Predicted
    places = [*(run.folder for run in found), *broken]
    problems = [verbatim(line, places) for line in [*broken.values(), *missing(found)]]
    undrawn = [verbatim(line, places) for line in absent]
    made = Report(*_title(paths, found), grouped, pictures, problems, undrawn)
    write_whole(folder / NAME, page(made))
    if grouped:
        print(table(grouped))
    for sentence in [*broken.values(), *missing([run for run in found if not run.epochs])]:
        print(f"left out: {sentence}")
    return folder / NAME


def _folder(paths: Sequence[Path]) -> Path:
    return paths[0] / "report" if len(paths) == 1 else Path("report")


def _title(paths: Sequence[Path], found: Sequence[runs.Run]) -> tuple[str, Html]:
    """The page's title as text, and as its heading."""
    if len(found) == 1:
        title = f"{found[0].label}, seed {found[0].seed}"
        return title, typeset(title)
    names = list(dict.fromkeys(relative(paths)))
    return ", ".join(names), join(*(tag("code", name) for name in names), between=", ")


def missing(found: Sequence[runs.Run]) -> list[str]:
    """A sentence for each run that is incomplete, lacks a column, or is there twice."""
    lines = []
    seen: dict[tuple[str, int], list[runs.Run]] = {}
    for run in found:
        lacks = list(run.missing)
        if run.epochs:
            for column in ("erank/gap", "feature/variance", "train/loss"):
                if not math.isfinite(run.last(column)):
                    lacks.append(f"{column} was never measured")
            if not any(math.isfinite(run.last(c)) for c in ("val/acc1", "val/knn_acc1")):
                lacks.append("no accuracy (no labels, no validation images, or switched off)")
        if lacks:
            lines.append(f"{run.label}, seed {run.seed} ({run.folder}): {'; '.join(lacks)}.")
    for group in (
        groups([run for run in found if run.epochs]) if any(r.epochs for r in found) else ()
    ):
        for run in group.runs:
            seen.setdefault((group.label, run.seed), []).append(run)
    for (label, seed), same in seen.items():
        if len(same) > 1:
            names = ", ".join(str(run.folder) for run in same)
            lines.append(
                f"{label}: seed {seed} is there {len(same)} times ({names}). Each counts as a run "
                "of its own in n, means and bands, which makes spreads too small."
            )
    return lines


def table(grouped: Sequence[Group]) -> str:
    """The settings, their last ranks and the verdicts, as text; runs behind are named beneath."""
    head = ["setting", "n", "online", "target", "leads?", "low-pass?", "collapsed?"]
    rows = [head]
    for group in grouped:
        counted = whole(group)
        answers = [verdict.answer for verdict in verdicts.verdicts(counted)]
        last = (group.last(f"erank/{branch}") for branch in ("online", "target"))
        ranks = [verdicts.spread(values, 1) for values in last]
        rows.append([group.label, str(len(counted)), *ranks, *answers])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)
    return "\n".join([*lines, *not_counted(grouped)])


def opened(path: Path) -> str:
    """Open the page where a desktop is; what came of it, in a sentence."""
    here = path.resolve().as_uri()
    desktop = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if not desktop:
        return f"--open: this machine shows no desktop; open {here} in a browser."
    try:
        done = webbrowser.open(here)
    except webbrowser.Error:
        done = False
    return f"opened {here}" if done else f"--open: no browser took it; open {here} yourself."


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rdm_solo.report",
        description="Draw the paper's figures of runs or sweeps on one page that needs no network.",
    )
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="of a run or of a sweep; run=FOLDER, as other commands have it, is the same",
    )
    parser.add_argument(
        "--out", metavar="FOLDER", help="for page and figures (default: FOLDER/report, or ./report)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument(
        "--no-checkpoints",
        action="store_true",
        help="leave out what loads models, the paper's Figure 5",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)  # and no other: fontTools tells of every glyph in a PDF
    cli.say_anything()
    arguments = _arguments(argv)
    # run=FOLDER is what the other commands take.
    paths = [Path(given.removeprefix("run=")).expanduser() for given in arguments.folders]
    out = Path(arguments.out).expanduser() if arguments.out else None
    with cli.sentences():
        written = write(paths, out, not arguments.no_checkpoints)
    drawn = len(list(written.parent.glob("*.png")))
    print(f"\n{written} ({drawn} figures as PNG and PDF beside it)")
    if arguments.open:
        print(opened(written))
