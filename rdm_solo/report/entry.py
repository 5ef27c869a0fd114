"""The command ``python -m rdm_solo.report``: its arguments, and the files that it writes."""

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rdm_solo import cli, runs
from rdm_solo.messages import UserError
from rdm_solo.report import evaluations, figures, verdicts
from rdm_solo.report.page import page
from rdm_solo.report.typesetting import relative
from rdm_solo.runs import reading
from rdm_solo.runs.columns import ACCURACY, charts
from rdm_solo.runs.files import write_whole
from rdm_solo.runs.groups import (
    Group,
    begun_groups,
    counted_runs,
    groups,
    judged_runs,
    latest_in_words,
    run_name,
    text_table,
)

NAME = "report.html"


def write(paths: Sequence[Path], out: Path | None = None, checkpoints: bool = True) -> Path:
    """Draw the runs in these folders and write the page; return its path.

    ``checkpoints=False`` leaves out what is recomputed from them (the paper's Figure 5).
    """
    members, broken = runs.survey(paths)
    if not members:
        raise UserError(next(iter(broken.values())))
    folder = out or (reading.inside(paths[0], "report") if len(paths) == 1 else Path("report"))
    cli.make_folder(folder, "--out FOLDER")
    grouped = begun_groups(members)
    pictures, absent = figures.draw(grouped, folder, checkpoints) if grouped else ([], [])
    alone = len(members) == 1
    names = [] if alone else list(dict.fromkeys(relative(paths)))
    html = page(
        run_name(members[0]) if alone else ", ".join(names),
        grouped,
        names,
        pictures,
        problems=[*broken.values(), *incomplete(members)],
        absent=absent,
    )
    write_whole(folder / NAME, html)
    if grouped:
        print(verdict_table(grouped))
    for sentence in [*broken.values(), *incomplete([run for run in members if not run.epochs])]:
        print(f"left out: {sentence}")
    return folder / NAME


def incomplete(members: Sequence[runs.Run]) -> list[str]:
    """Return a sentence for each run that is incomplete, lacks a column, or is there twice."""
    lines = []
    begun = [run for run in members if run.epochs]
    grouped = groups(begun) if begun else []
    not_compared = evaluations.not_compared(grouped)
    for run in members:
        lacks = list(run.missing)
        if run.epochs:
            needed = ("erank/gap", "feature/variance", "train/loss")
            lacks += filter(None, (_lacks(run, column) for column in needed))
            if not any(run.last_measured(column.name) for column in charts()[ACCURACY]):
                lacks.append("no accuracy (no labels, no validation images, or switched off)")
        if run in not_compared:
            lacks.append(not_compared[run])
        if lacks:
            lines.append(f"{run_name(run)} ({run.folder}): {'; '.join(lacks)}.")
    same: dict[tuple[str, int], list[str]] = defaultdict(list)
    for group in grouped:
        for run in group.runs:
            same[group.label, run.seed].append(str(run.folder))
    for (label, seed), folders in same.items():
        if len(folders) > 1:
            lines.append(
                f"{label}: seed {seed} is there {len(folders)} times ({', '.join(folders)}). Each "
                "counts as a run in n, means and bands, which makes spreads too small."
            )
    return lines


def _lacks(run: runs.Run, column: str) -> str:
    epoch = run.last_measured(column)
    if epoch == 0:
        return f"{column} was never measured"
    if math.isnan(run.last(column)):
        return f"{column} is not finite in epoch {epoch}"
    return "" if epoch == run.last_epoch else f"{column} was last measured in epoch {epoch}"


def verdict_table(grouped: Sequence[Group]) -> str:
    """Return the settings, their last ranks and the verdicts, as text."""
    head = ["online", "target", "leads?", "low-pass?", "collapsed?"]
    return text_table(
        grouped,
        head,
        lambda group: [
            *(latest_in_words(counted_runs(group), f"erank/{b}", 1) for b in ("online", "target")),
            *(verdict.answer for verdict in verdicts.verdicts(judged_runs(group))),
        ],
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m rdm_solo.report",
        description="Draw the paper's figures of runs or sweeps on one page that needs no network.",
    )
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="folder of a run or of a sweep; run=FOLDER works as well",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder for the page and its figures (default: FOLDER/report, or ./report)",
    )
    parser.add_argument(
        "--no-checkpoints",
        action="store_true",
        help="leave out the paper's Figure 5, which rebuilds models from checkpoints",
    )
    cli.log_to_terminal()
    arguments = parser.parse_args(argv)
    paths = [Path(folder.removeprefix("run=")).expanduser() for folder in arguments.folders]
    out = Path(arguments.out).expanduser() if arguments.out else None
    with cli.errors_as_sentences():
        path = write(paths, out, not arguments.no_checkpoints)
    drawn = len(list(path.parent.glob("*.png")))
    print(f"\n{path} ({drawn} figures as PNG and PDF beside it)")
