"""The page of the trial, and the appendix with all its numbers."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from rdm_solo import plots
from rdm_solo.runs.files import write_atomically
from rdm_solo.runs.groups import mean_std
from studies.markdown import table
from studies.mechanism import verdicts
from studies.mechanism.figures import PANELS, figure
from studies.mechanism.plan import MEASURED, OK, PLAN, SEEDS, TUNING, Cell, stages
from studies.mechanism.runs import cell_of
from studies.mechanism.verdicts import METHODS, Comparison, values
from studies.table import Row

HERE = Path(__file__).parent
APPENDIX = HERE / "appendix.md"


def write(rows: list[Row], out: Path) -> None:
    """Write the page with its figures beside it, and the appendix beside the table of runs."""
    write_atomically(out, page(rows))
    write_atomically(APPENDIX, appendix(rows))
    for question, panels in PANELS.items():
        if answers := answered_by(rows, question):
            with matplotlib.rc_context({"savefig.pad_inches": 0}):
                drawing = figure(answers[-1][1], panels)
                plots.save(drawing, out.parent / "pictures", f"mechanism_{question}", ("png",))


def page(rows: list[Row]) -> str:
    """Return the page: a sentence, a figure and an explanation for each question."""
    counted = [row for row in rows if int(row["seed"]) not in TUNING]
    hours = sum(float(row["seconds"]) for row in rows) / 3600
    text = HERE.joinpath("page.md").read_text(encoding="utf-8")
    questions = "\n\n".join(_part(rows, question) for question in PANELS)
    return text.format(runs=len(counted), hours=hours, questions=questions)


def answered_by(rows: list[Row], question: str) -> list[tuple[str, list[Row]]]:
    """Return name and rows of each complete stage that answers a question; the last one decides."""
    if unfinished(rows, question):
        return []
    answers = [("", _of_seeds(rows, SEEDS))]
    if question in PLAN["second"]["questions"] and not unfinished(rows, "second"):
        answers.append((", at a tuned rate", _of_seeds(rows, PLAN["second"]["seeds"])))
    return answers


def unfinished(rows: list[Row], question: str) -> int:
    """Return how many runs of a question or stage are missing."""
    stage = stages()[RUNS_OF.get(question, question)]
    counted = _of_seeds(rows, stage.seeds)
    return sum(len(stage.seeds) - len(values(counted, cell)) for cell in stage.cells)


def _of_seeds(rows: list[Row], seeds: Sequence[int]) -> list[Row]:
    return [row for row in rows if int(row["seed"]) in seeds]


class _Numbers:
    """Numbers for the texts: ``{erank[power on textures]}`` is a column's mean in a cell.

    ``{linear[power vs identity on digits 10]}`` is a difference with its interval, after 10 epochs.
    """

    def __init__(self, rows: list[Row], column: str) -> None:
        self.rows, self.column = rows, column

    def __getitem__(self, key: str) -> str:
        settings, place = key.split(" on ")
        data, *epochs = place.split()
        first, *others = (Cell(name, data, *map(int, epochs)) for name in settings.split(" vs "))
        if not others:
            return f"{statistics.fmean(values(self.rows, first, self.column).values()):.1f}"
        result = verdicts.test(self.rows, Comparison(first, others[0], self.column))
        return f"{result.mean:.1f} ({result.low:.1f} to {result.high:.1f})"


def _part(rows: list[Row], question: str) -> str:
    """Return a question's heading, its sentence, its figure and its explanation."""
    asks = PLAN["questions"][question]["asks"]
    if not (answers := answered_by(rows, question)):
        missing = unfinished(rows, question)
        return f"## {asks}\n\n**Not answered yet:** {missing} runs are missing."
    rule, in_words = ANSWERS[question]
    given, *tuned = (in_words(rule(counted)[0]) for _, counted in answers)
    sentence = f"{given[0].upper()}{given[1:]}"
    if tuned:
        sentence = f"At tuned learning rates: {tuned[0]} At the recipe's rate: {given}"
    numbers = {column: _Numbers(answers[-1][1], column) for column in MEASURED}
    text = HERE.joinpath("answers", f"{question}.md").read_text(encoding="utf-8")
    picture = f"![{asks}](pictures/mechanism_{question}.png)"
    return f"## {asks}\n\n**{sentence}**\n\n{picture}\n\n{text.format(**numbers).strip()}"


def _schedule(answers: Mapping[Any, str]) -> str:
    sentences = []
    for method in METHODS:
        places: dict[str, list[str]] = {}
        for cell, word in answers.items():
            if isinstance(cell, Cell) and cell.setting.startswith(method):
                places.setdefault(f"{word} on {cell.data}", []).append(str(cell.epochs))
        listed = ", ".join(f"{place} ({', '.join(n)})" for place, n in places.items())
        change = f"On digits {answers[method]} with longer training."
        sentences.append(f"{method}: σ^-0.5 is {listed}. {change}")
    return " ".join(sentences)


def _recommended(answers: Mapping[str, tuple[bool, list[str]]]) -> str:
    sentences = []
    for method, (is_best, names) in answers.items():
        listed = ", ".join("learnable" if name == "learnable" else f"σ^{name}" for name in names)
        several = (
            f"none is significantly best; highest mean on both (within a point): {listed or 'none'}"
        )
        sentences.append(f"{method}: {f'use {listed}' if is_best else several}.")
    return " ".join(sentences)


RUNS_OF = {"recommended": "schedule"}
BY_COLUMN = "{0[linear]} by accuracy, {0[erank]} by rank."
Rule = Callable[[list[Row]], tuple[Any, verdicts.Results]]
ANSWERS: dict[str, tuple[Rule, Callable[[Any], str]]] = {
    "sufficient": (verdicts.sufficient, "{}.".format),
    "necessary": (verdicts.necessary, BY_COLUMN.format),
    "rate": (verdicts.rate, "by the plan's rule, {}.".format),
    "schedule": (verdicts.schedule, _schedule),
    "spectrum": (verdicts.spectrum, "{}.".format),
    "recommended": (verdicts.recommended, _recommended),
}


def appendix(rows: list[Row]) -> str:
    """Return a table for each stage; a cell of two questions is in both."""
    tables, planned = [], set()
    for name, stage in stages().items():
        lines = []
        counted = _of_seeds(rows, stage.seeds)
        for cell in stage.cells:
            measured = {column: list(values(counted, cell, column).values()) for column in MEASURED}
            numbers = [
                mean_std(listed, 2 if column == "slope" else 1) if listed else "–"
                for column, listed in measured.items()
            ]
            count = len(measured["linear"])
            rate = "".join({row["rate"] for row in counted if cell_of(row) == cell}) or "–"
            lines.append([*map(str, cell), rate, str(count), *numbers])
        head = ["setting", "data", "epochs", "rate", "n", *MEASURED]
        asks = PLAN["questions"].get(name, {"asks": "The first two questions at a tuned rate"})
        tables.append(f"## {asks['asks']}\n\n{table(head, lines)}")
        planned |= {(cell, seed) for cell in stage.cells for seed in stage.seeds}
    tuning = sum(int(row["seed"]) in TUNING for row in rows)
    text = HERE.joinpath("page_appendix.md").read_text(encoding="utf-8")
    return text.format(
        runs=len(rows),
        counted=len(rows) - tuning,
        planned=len(planned),
        tuning=tuning,
        diverged=sum(row["status"] != OK for row in rows),
        numbers="\n\n".join(tables),
        tests="\n\n".join(_tests(q, *each) for q in ANSWERS for each in answered_by(rows, q)),
    )


def _tests(question: str, stage: str, rows: list[Row]) -> str:
    """Return a table with the tests of a question in a stage."""
    lines = []
    for each, (result, p) in ANSWERS[question][0](rows)[1].items():
        about = [f"{each}: slope", "digits", "all", "linear"]
        if isinstance(each, Comparison):
            about = [f"{each.cell.setting} − {each.other.setting}", *map(str, each.cell[1:])]
            about.append(each.column)
        numbers = [f"{x:.2f}" for x in (result.mean, result.low, result.high, result.zero)]
        lines.append([*about, *numbers, f"{p:.2g}"])
    head = ["difference", "data", "epochs", "of", "mean", "low", "high", "against", "p"]
    return f"## {PLAN['questions'][question]['asks'][:-1]}{stage}\n\n{table(head, lines)}"
