"""The report as one HTML page, by ``templates/page.html``, that needs no other file."""

import datetime
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rdm_solo import __version__
from rdm_solo.messages import listed
from rdm_solo.report import answers, tables
from rdm_solo.report.commands import commands
from rdm_solo.report.evaluations import comparable
from rdm_solo.report.figures import Picture
from rdm_solo.report.paper_comparison import against_paper
from rdm_solo.report.ranking import rankings
from rdm_solo.report.rules import RULES
from rdm_solo.report.tables import Table
from rdm_solo.report.typesetting import typeset
from rdm_solo.report.verdicts import dimensions
from rdm_solo.runs.columns import ACCURACY, charts
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, counted_runs, run_name

NO_ACCURACY = (
    "No accuracy was measured: there are no labels or no validation images, or it was switched off."
)
NO_COMMANDS = "The commands are unknown: the folders have no .hydra/overrides.yaml."


class Section(NamedTuple):
    """A numbered section: tables, then headed lists, then the figures with its key."""

    key: str
    heading: str
    tables: Sequence[Table] = ()
    lists: Sequence[tuple[str, Sequence[str]]] = ()
    pictures: Sequence[Picture] = ()


def page(
    title: str,
    groups: Sequence[Group],
    names: Sequence[str] = (),
    pictures: Sequence[Picture] = (),
    problems: Sequence[str] = (),
    absent: Sequence[str] = (),
) -> str:
    """Return the page; its heading lists the folders' ``names``, or is the title.

    ``problems`` say what runs lack, ``absent`` which figures are not drawn and why.
    """
    environment = Environment(
        loader=PackageLoader("rdm_solo.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["typeset"] = typeset
    # Escaped, not typeset: they contain paths.
    missing = [("", [*map(escape, problems)]), ("Not drawn", [*map(escape, absent)])]
    last = Section("missing", "Incomplete, missing, not drawn", (), missing)
    sections = [*_sections(groups), last, Section("rules", "How we judge", (), [("", RULES)])]
    sections = [
        section._replace(
            tables=[table for table in section.tables if table.rows],
            lists=[(heading, lines) for heading, lines in section.lists if lines],
            pictures=[picture for picture in pictures if picture.section == section.key],
        )
        for section in (sections if groups else [last])
    ]
    return environment.get_template("page.html").render(
        title=title,
        groups=groups,
        names=names,
        problems=problems,
        first=[picture for picture in pictures if picture.section == "first"],
        sections=[section for section in sections if any(section[2:])],
        answers=first_answers(comparable(groups)),
        rankings=rankings(comparable(groups)),
        unequal=_unequal_epochs(groups),
        today=datetime.date.today().isoformat(),
        version=__version__,
    )


def _sections(groups: Sequence[Group]) -> list[Section]:
    """Return the sections about runs, by the reader's questions."""
    paper = against_paper(groups)  # with all evaluations
    groups = comparable(groups)
    runs = [run for group in groups for run in group.runs]
    accuracies = [group.last(column.name) for group in groups for column in charts()[ACCURACY]]
    warnings = [
        f"{run_name(run)}, epoch {warning.get('epoch', '?')}: {warning.get('text', '')}"
        for run in runs
        for warning in run.summary.get("warnings") or []
    ]
    repeat = [Markup("<code>{}</code>").format(line) for g in groups for line in commands(g)]
    return [
        Section(
            "alive",
            "Is it alive?",
            [tables.health(groups)],
            [("Warnings during training", warnings)],
        ),
        Section("good", "How good is it?", (), [("", [] if any(accuracies) else [NO_ACCURACY])]),
        Section("best", "Which setting is best?", [*map(tables.ranking, rankings(groups))]),
        Section("branches", "What do the branches' spectra look like?"),
        Section("mechanism", "Does the mechanism hold?", [tables.mechanism(groups)]),
        Section("ranks", "Other measures of rank", tables.measures(groups), [("", _few(runs))]),
        Section(
            "ran",
            "What exactly was run?",
            [tables.settings(groups)],
            [("Commands that repeat the runs", repeat or [NO_COMMANDS])],
        ),
        Section("values", "All values", [*tables.last_values(groups), tables.each(groups)]),
        Section("paper", "Compared with the paper", [paper]),
    ]


def first_answers(groups: Sequence[Group]) -> list[answers.Answer]:
    """Return what the first screen says about one setting, or about several."""
    if len(groups) == 1:
        return [answers.alive(groups[0]), answers.good(groups[0])]
    return [answers.overview(groups)] if groups else []


def _unequal_epochs(groups: Sequence[Group]) -> str:
    epochs = sorted({counted_runs(group)[0].epochs for group in groups})
    if len(epochs) < 2:
        return ""
    return f"Settings have {epochs[0]} to {epochs[-1]} epochs, which favours the longer ones."


def _few(runs: Sequence[Run]) -> list[str]:
    """Return warnings about spectra of too few rows, each with its runs."""
    names: dict[str, list[str]] = {}
    for run in runs:
        if warning := few_rows(run):
            names.setdefault(warning, []).append(run_name(run))
    return [f"{listed(members)}: {warning}" for warning, members in names.items()]


def few_rows(run: Run) -> str:
    """Return a warning if the last measured epoch had no more rows than dimensions."""
    last = {name: array[-1] for name, array in run.spectra.items() if len(array)}
    rows, k = last.get("rows", np.inf), len(last.get("lam_target", ()))
    if not run.described.softmax:  # sampled spectra have as many eigenvalues as rows
        k = max(k, dimensions(run))
    if rows > k:
        return ""
    return (
        f"spectra of {rows:.0f} rows and {k} dimensions: no rank can exceed {rows:.0f}, and all "
        "ranks are lower than with more rows (diagnostics.max_rows)."
    )
