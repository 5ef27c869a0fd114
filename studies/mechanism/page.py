"""The page of the trial, and the appendix with all its numbers."""

import statistics
from collections.abc import Callable
from pathlib import Path

import matplotlib

from rdm_solo import plots
from rdm_solo.runs.files import write_atomically
from rdm_solo.runs.groups import mean_std
from studies.intervals import difference
from studies.markdown import table
from studies.mechanism import verdicts
from studies.mechanism.figures import PANELS, figure
from studies.mechanism.plan import MEASURED, OK, PLAN, SEEDS, Cell, cells
from studies.mechanism.runs import TUNING, rate_of
from studies.mechanism.verdicts import METHODS, values
from studies.table import Row

APPENDIX = Path(__file__).with_name("appendix.md")
NUMBERS = """\
# The trial of the mechanism: all numbers

`python -m studies.mechanism` trains the settings of `plan.yaml` and writes this appendix, and its
page `docs/mechanism.md`, from the {runs} runs in `runs.csv`. {counted} of {planned} planned runs
are there, and {tuning} that chose learning rates; {diverged} diverged. Mean ± standard deviation
over n seeds. The rate is the base learning rate that was chosen, or the recipe's (–).

{numbers}
"""


def write(rows: list[Row], out: Path) -> None:
    """Write the page with its figures beside it, and the appendix beside the table of runs."""
    write_atomically(out, page(rows))
    write_atomically(APPENDIX, appendix(rows))
    for question, panels in PANELS.items():
        if not unfinished(rows, question):
            with matplotlib.rc_context({"savefig.dpi": 130}):
                drawing = figure(rows, panels)
                plots.save(drawing, out.parent / "pictures", f"mechanism_{question}", ("png",))


def page(rows: list[Row]) -> str:
    """Return the page: a sentence and a figure for each question."""
    parts = {question: _part(rows, question) for question in PANELS}
    counted = [row for row in rows if int(row["seed"]) in SEEDS]
    hours = sum(float(row["seconds"]) for row in rows) / 3600
    text = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    numbers = {name: _Numbers(rows, name) for name in ("linear", "erank", "gap")}
    return text.format(runs=len(counted), hours=hours, **numbers, **parts)


class _Numbers:
    """What a page writes as ``{gap[power textures]}``: a column's mean in a cell of 30 epochs.

    ``{linear[power vs identity textures]}`` is a difference with its interval.
    """

    def __init__(self, rows: list[Row], column: str) -> None:
        self.rows, self.column = rows, column

    def __getitem__(self, key: str) -> str:
        settings, data = key.rsplit(" ", 1)
        setting, _, other = settings.partition(" vs ")
        if not other:
            measured = values(self.rows, Cell(setting, data), self.column)
            return f"{statistics.fmean(measured.values()):.1f}"
        each = verdicts.compare(setting, other, data, self.column)
        test = difference(verdicts.pairs(self.rows, each))
        return f"{test.mean:.1f} ({test.low:.1f} to {test.high:.1f})"


def _part(rows: list[Row], question: str) -> str:
    """Return a question's heading, its sentence and its figure."""
    asks = PLAN["questions"][question]["asks"]
    if left := unfinished(rows, question):
        return f"## {asks}\n\n**Not answered yet:** {left} runs are missing."
    picture = f"![{asks}](pictures/mechanism_{question}.png)"
    return f"## {asks}\n\n**{ANSWERS[question](rows)}**\n\n{picture}"


def unfinished(rows: list[Row], question: str) -> int:
    """Return how many runs of a question are missing."""
    seeds = (values(rows, cell) for cell in cells(RUNS_OF.get(question, question)))
    return sum(len(SEEDS) - len(present) for present in seeds)


def _necessary(rows: list[Row]) -> str:
    answers, _ = verdicts.necessary(rows)
    return f"By linear accuracy: {answers['linear']}. By effective rank: {answers['erank']}."


def _schedule(rows: list[Row]) -> str:
    answers, _ = verdicts.schedule(rows)
    sentences = []
    for method in METHODS:
        words: dict[str, list[str]] = {}
        for cell, word in answers.items():
            if isinstance(cell, Cell) and cell.setting.startswith(method):
                words.setdefault(word, []).append(f"{cell.data} {cell.epochs}")
        found = "; ".join(f"{word} ({', '.join(places)})" for word, places in words.items())
        sentences.append(f"{method}, σ^-0.5: {found}. Over the length: {answers[method]}.")
    return " ".join(sentences)


def _recommended(rows: list[Row]) -> str:
    sentences = []
    for method, (is_best, names) in verdicts.recommended(rows)[0].items():
        listed = ", ".join("learnable" if name == "learnable" else f"σ^{name}" for name in names)
        close = f"nothing separates the settings; within a point of the best mean: {listed}"
        sentences.append(f"{method}: {f'use {listed}' if is_best else close}.")
    return " ".join(sentences)


def _sentence(answer: str) -> str:
    return f"{answer[0].upper()}{answer[1:]}."


RUNS_OF = {"recommended": "schedule"}
ANSWERS: dict[str, Callable[[list[Row]], str]] = {
    "sufficient": lambda rows: _sentence(verdicts.sufficient(rows)[0]),
    "necessary": _necessary,
    "rate": lambda rows: _sentence(verdicts.rate(rows)[0]),
    "schedule": _schedule,
    "spectrum": lambda rows: _sentence(verdicts.spectrum(rows)[0]),
    "recommended": _recommended,
}


def appendix(rows: list[Row]) -> str:
    """Return a table for each question; a cell of two questions is in both."""
    tables, everything = [], set()
    for question in PLAN["settings"]:
        lines = []
        for cell in cells(question):
            columns = {name: list(values(rows, cell, name).values()) for name in MEASURED}
            digits = {"slope": 2}
            numbers = [
                mean_std(column, digits.get(name, 1)) if column else "–"
                for name, column in columns.items()
            ]
            count = len(columns["linear"])
            rate = rate_of(rows, cell) if question in PLAN["tuned"] and count else "–"
            lines.append([*map(str, cell), rate, str(count), *numbers])
        head = ["setting", "data", "epochs", "rate", "n", *MEASURED]
        tables.append(f"## {PLAN['questions'][question]['asks']}\n\n{table(head, lines)}")
        everything |= set(cells(question))
    tuning = sum(int(row["seed"]) in TUNING for row in rows)
    return NUMBERS.format(
        runs=len(rows),
        counted=len(rows) - tuning,
        planned=len(SEEDS) * len(everything),
        tuning=tuning,
        diverged=sum(row["status"] != OK for row in rows),
        numbers="\n\n".join(tables),
    )
