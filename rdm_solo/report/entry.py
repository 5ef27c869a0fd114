"""Run ``rdm-solo report``: parse its arguments and write the page and figures."""

import argparse
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rdm_solo.cli import terminal
from rdm_solo.ground.errors import UserError
from rdm_solo.report import figures
from rdm_solo.report.judged import Setting, compared_evaluations, evaluations, judge
from rdm_solo.report.page import page
from rdm_solo.report.tables import relative
from rdm_solo.runs import files
from rdm_solo.runs.files import write_atomically
from rdm_solo.runs.folder import RunFolder, scan
from rdm_solo.runs.groups import format_latest, run_name, started_groups, text_table

NAME = "report.html"
REQUIRED = ("erank/gap", "feature/variance", "train/loss")


def write(paths: Sequence[Path], out: Path | None = None, slow: bool = False) -> Path:
    """Draw the runs in these folders and write the page; return its path.

    ``slow`` adds Figure 5, which is recomputed from checkpoints.
    """
    members, errors = scan(paths)
    if not members:
        raise UserError(next(iter(errors.values())))
    folder = out or Path("report")
    if out is None and len(paths) == 1:
        folder = files.inside(paths[0], "report")
    files.make_results_folder(folder, "--out FOLDER")
    groups = started_groups(members)
    settings = judge(groups)
    pictures, failures = figures.draw(groups, folder, slow)
    if settings:
        print(verdict_table(settings))
    unreadable = list(errors.values())
    problems = unreadable + incomplete(members)
    html = page(settings, relative(paths), pictures, problems, failures)
    write_atomically(folder / NAME, html)
    unstarted = [run for run in members if not run.epochs]
    for sentence in unreadable + incomplete(unstarted):
        print(f"left out: {sentence}")
    return folder / NAME


def incomplete(members: Sequence[RunFolder]) -> list[str]:
    """Describe each run that is incomplete or lacks a column."""
    compared = compared_evaluations(started_groups(members))
    lines = []
    for run in members:
        problems = list(run.missing)
        if run.epochs:
            for column in REQUIRED:
                epoch, _ = run.latest(column)
                if not epoch:
                    problems.append(f"{column} was never measured")
            evaluation = compared[run.dataset]
            if run.linear and evaluation and evaluation not in evaluations(run):
                reason = f"most runs on {run.dataset} use other features or another protocol"
                problems.append(f"its linear accuracy is not compared: {reason}")
        if problems:
            lines.append(f"{run_name(run)} ({run.folder}): {'; '.join(problems)}.")
    return lines


def verdict_table(settings: Sequence[Setting]) -> str:
    """Return a text table of the settings with their last ranks and verdicts."""
    head = ["online", "target"]
    all_watched = all(setting.group.first.watched for setting in settings)
    if not all_watched:
        head += ["leads?", "low-pass?"]
    head.append("alive?")
    cells = {}
    for setting in settings:
        row = [
            format_latest(setting.counted, "erank/online", 1),
            format_latest(setting.counted, "erank/target", 1),
        ]
        if not all_watched:
            row += [setting.lead.answer, setting.low_pass.answer]
        cells[setting.group] = [*row, setting.health.answer]
    return text_table(list(cells), head, cells.__getitem__)


def folder_path(argument: str) -> Path:
    """Return the folder of an argument such as ``runs/byol``, ``run=runs/byol`` or ``~/runs``."""
    return Path(argument.removeprefix("run=")).expanduser()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="rdm-solo report",
        description="Write one self-contained page with figures, verdicts and tables of runs.",
    )
    parser.add_argument(
        "folders",
        nargs="+",
        type=folder_path,
        metavar="FOLDER",
        help="folder of a run or of a sweep; run=FOLDER works as well",
    )
    parser.add_argument(
        "--out",
        type=folder_path,
        metavar="FOLDER",
        help="folder for the page and its figures (default: FOLDER/report, or ./report)",
    )
    parser.add_argument(
        "--all-figures",
        action="store_true",
        help="also draw the paper's Figure 5, which takes seconds per setting and needs a "
        "checkpoint and the packages for training",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    terminal.log_to_terminal()
    arguments = parser.parse_args(argv)
    with terminal.errors_without_traceback():
        path = write(arguments.folders, arguments.out, arguments.all_figures)
        print(f"\n{path} (with its figures as PNG and PDF in the same folder)")
    if arguments.open:
        webbrowser.open(path.resolve().as_uri())  # does nothing where there is no browser
