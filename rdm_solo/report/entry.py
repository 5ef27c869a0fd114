"""Run ``rdm-solo report``: parse its arguments and write the page and figures."""

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rdm_solo import runs
from rdm_solo.cli import terminal
from rdm_solo.ground.errors import UserError
from rdm_solo.report import figures
from rdm_solo.report.measured import comparable
from rdm_solo.report.page import page
from rdm_solo.report.tables import relative
from rdm_solo.report.verdicts import verdicts
from rdm_solo.runs import files
from rdm_solo.runs.columns import ACCURACY, charts
from rdm_solo.runs.files import write_atomically
from rdm_solo.runs.groups import (
    Group,
    by_setting,
    counted_runs,
    format_latest,
    judged_runs,
    run_name,
    started_groups,
    text_table,
)

NAME = "report.html"
REQUIRED = ("erank/gap", "feature/variance", "train/loss")


def write(paths: Sequence[Path], out: Path | None = None, slow: bool = False) -> Path:
    """Draw the runs in these folders and write the page; return its path.

    ``slow`` adds Theorem 4's predicted ranks, and Figure 5, which is recomputed from checkpoints.
    """
    members, errors = runs.scan(paths)
    if not members:
        raise UserError(next(iter(errors.values())))
    folder = out or (files.inside(paths[0], "report") if len(paths) == 1 else Path("report"))
    files.make_results_folder(folder, "--out FOLDER")
    grouped = started_groups(members)
    pictures, failures = figures.draw(grouped, folder, slow) if grouped else ([], [])
    names = list(dict.fromkeys(relative(paths)))
    problems = [*errors.values(), *incomplete(members)]
    write_atomically(folder / NAME, page(grouped, names, pictures, problems, failures))
    if grouped:
        print(verdict_table(grouped))
    for sentence in [*errors.values(), *incomplete([run for run in members if not run.epochs])]:
        print(f"left out: {sentence}")
    return folder / NAME


def incomplete(members: Sequence[runs.Run]) -> list[str]:
    """Describe each run that is incomplete, lacks a column, or is a duplicate."""
    lines = []
    begun = [run for run in members if run.epochs]
    grouped = by_setting(begun) if begun else []
    not_compared = {
        run
        for group, reduced in zip(grouped, comparable(grouped))
        for run, comparable_run in zip(group.runs, reduced.runs)
        if run.linear and not comparable_run.linear
    }
    for run in members:
        problems = list(run.missing)
        if run.epochs:
            problems += filter(None, (_missing(run, column) for column in REQUIRED))
            if not any(run.last_measured(column.name) for column in charts()[ACCURACY]):
                problems.append("no accuracy (no labels, no validation images, or switched off)")
        if run in not_compared:
            reason = f"most runs on {run.dataset} use other features or another protocol"
            problems.append(f"its linear accuracy is not compared: {reason}")
        if problems:
            lines.append(f"{run_name(run)} ({run.folder}): {'; '.join(problems)}.")
    folders_by_seed: dict[tuple[str, int], list[str]] = defaultdict(list)
    for group in grouped:
        for run in group.runs:
            folders_by_seed[group.label, run.seed].append(str(run.folder))
    return lines + [
        f"{label}: seed {seed} occurs {len(folders)} times ({', '.join(folders)}). Each counts "
        "in n, means and bands, so the standard deviations are too small."
        for (label, seed), folders in folders_by_seed.items()
        if len(folders) > 1
    ]


def _missing(run: runs.Run, column: str) -> str:
    epoch = run.last_measured(column)
    if epoch == 0:
        return f"{column} was never measured"
    if math.isnan(run.last(column)):
        return f"{column} is not finite in epoch {epoch}"
    return "" if epoch == run.last_epoch else f"{column} was last measured in epoch {epoch}"


def verdict_table(grouped: Sequence[Group]) -> str:
    """Return a text table of the settings with their last ranks and verdicts."""

    def cells(group: Group) -> list[str]:
        counted = counted_runs(group)
        ranks = [format_latest(counted, f"erank/{branch}", 1) for branch in ("online", "target")]
        return [*ranks, *(verdict.answer for verdict in verdicts(judged_runs(group)))]

    return text_table(grouped, ["online", "target", "leads?", "low-pass?", "alive?"], cells)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="rdm-solo report",
        description="Write one self-contained page with the paper's figures for runs or sweeps.",
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
        "--all-figures",
        action="store_true",
        help="also draw the ranks that Theorem 4 predicts and the paper's Figure 5; Figure 5 takes "
        "seconds per setting, and needs a checkpoint and the packages for training",
    )
    terminal.log_to_terminal()
    arguments = parser.parse_args(argv)
    paths = [Path(folder.removeprefix("run=")).expanduser() for folder in arguments.folders]
    out = Path(arguments.out).expanduser() if arguments.out else None
    with terminal.errors_without_traceback():
        path = write(paths, out, arguments.all_figures)
    print(f"\n{path} (with its figures as PNG and PDF in the same folder)")
