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
from studies.mechanism.plan import MEASURED, OK, PLAN, SEEDS, TUNING, Cell, stages
from studies.mechanism.runs import rate_of
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
                drawing = figure(decisive(rows, question), panels)
                plots.save(drawing, out.parent / "pictures", f"mechanism_{question}", ("png",))


def page(rows: list[Row]) -> str:
    """Return the page: a sentence and a figure for each question."""
    parts = {question: _part(rows, question) for question in PANELS}
    counted = [row for row in rows if int(row["seed"]) not in TUNING]
    first = [row for row in rows if int(row["seed"]) in SEEDS]
    hours = sum(float(row["seconds"]) for row in rows) / 3600
    text = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    numbers = {name: _Numbers(first, name) for name in ("linear", "erank")}
    return text.format(runs=len(counted), hours=hours, **numbers, **parts)


def decisive(rows: list[Row], question: str) -> list[Row]:
    """Return the rows that answer a question: those of the second stage if it is complete."""
    second = question in PLAN["second"]["questions"] and not unfinished(rows, "second")
    seeds = PLAN["second"]["seeds"] if second else SEEDS
    return [row for row in rows if int(row["seed"]) in seeds]


class _Numbers:
    """What a page writes as ``{erank[power textures]}``: a column's mean in a cell of 30 epochs.

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
    first = [row for row in rows if int(row["seed"]) in SEEDS]
    answer, last = (ANSWERS[question](each) for each in (first, decisive(rows, question)))
    if decisive(rows, question) != first:
        answer = f"With a tuned learning rate, on fresh seeds: {last} At the recipe's: {answer}"
    return f"## {asks}\n\n**{answer}**\n\n{picture}"


def unfinished(rows: list[Row], question: str) -> int:
    """Return how many runs of a question or stage are missing."""
    stage = stages()[RUNS_OF.get(question, question)]
    counted = [row for row in rows if int(row["seed"]) in stage.seeds]
    return sum(len(stage.seeds) - len(values(counted, cell)) for cell in stage.cells)


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
    """Return a table for each stage; a cell of two questions is in both."""
    tables, planned = [], set()
    for name, stage in stages().items():
        lines = []
        counted = [row for row in rows if int(row["seed"]) in stage.seeds]
        for cell in stage.cells:
            columns = {column: list(values(counted, cell, column).values()) for column in MEASURED}
            digits = {"slope": 2}
            numbers = [
                mean_std(column, digits.get(name, 1)) if column else "–"
                for name, column in columns.items()
            ]
            count = len(columns["linear"])
            rate = rate_of(rows, cell) if stage.rates and count else "–"
            lines.append([*map(str, cell), rate, str(count), *numbers])
        head = ["setting", "data", "epochs", "rate", "n", *MEASURED]
        asks = PLAN["questions"].get(name, {"asks": "The first two questions at a tuned rate"})
        tables.append(f"## {asks['asks']}\n\n{table(head, lines)}")
        planned |= {(cell, seed) for cell in stage.cells for seed in stage.seeds}
    tuning = sum(int(row["seed"]) in TUNING for row in rows)
    return NUMBERS.format(
        runs=len(rows),
        counted=len(rows) - tuning,
        planned=len(planned),
        tuning=tuning,
        diverged=sum(row["status"] != OK for row in rows),
        numbers="\n\n".join(tables),
    )
