"""Render the report with ``templates/page.html`` as one self-contained HTML page."""

import datetime
import re
from collections.abc import Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rdm_solo import __version__
from rdm_solo.report import tables
from rdm_solo.report.answers import first_answers
from rdm_solo.report.figures import FIRST, Picture
from rdm_solo.report.measured import comparable
from rdm_solo.report.paper_comparison import paper_table
from rdm_solo.report.ranking import rankings
from rdm_solo.report.rules import RULES
from rdm_solo.report.tables import Table
from rdm_solo.runs.groups import Group, run_name


class Section(NamedTuple):
    """A numbered section: tables, then headed lists, then the figures of section ``key``."""

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
    failures: Sequence[str] = (),
) -> str:
    """Return the page. Its heading lists the folders' ``names`` if there are any, else the title.

    ``problems`` list what runs lack, ``failures`` the figures that are not drawn and why.
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
    missing = [("", [*map(escape, problems)]), ("Not drawn", [*map(escape, failures)])]
    missing_section = Section("missing", "Incomplete, missing, not drawn", (), missing)
    sections = [
        section._replace(
            tables=[table for table in section.tables if table.rows],
            lists=[(heading, lines) for heading, lines in section.lists if lines],
            pictures=[picture for picture in pictures if picture.section == section.key],
        )
        for section in [*_sections(groups), missing_section]
    ]
    rules = [Section("rules", "How we judge", (), [("", RULES)])] if groups else []
    return environment.get_template("page.html").render(
        title=title,
        groups=groups,
        names=names,
        problems=problems,
        first=[picture for picture in pictures if picture.section == FIRST],
        sections=[section for section in [*sections, *rules] if any(section[2:])],
        answers=first_answers(comparable(groups)),
        today=datetime.date.today().isoformat(),
        version=__version__,
    )


def _sections(groups: Sequence[Group]) -> list[Section]:
    """Return the sections about runs, one for each question."""
    if not groups:
        return []
    paper = paper_table(groups)  # before evaluations that cannot be compared are removed
    groups = comparable(groups)
    warnings = [
        f"{run_name(run)}, epoch {warning.get('epoch', '?')}: {warning.get('text', '')}"
        for group in groups
        for run in group.runs
        for warning in run.summary.get("warnings") or []
    ]
    lines = [line for group in groups for line in tables.commands(group)]
    repeat = [Markup("<code>{}</code>").format(line) for line in lines]
    return [
        Section(
            "alive",
            "Is it alive?",
            [tables.health(groups)],
            [("Warnings during training", warnings)],
        ),
        Section("good", "How good is it?"),
        Section("best", "Which setting is best?", [*map(tables.ranking, rankings(groups))]),
        Section("branches", "What do the branches' spectra look like?"),
        Section("mechanism", "Does the mechanism hold?", [tables.mechanism(groups)]),
        Section("ranks", "Other measures of rank", tables.measures(groups)),
        Section(
            "settings",
            "What exactly was run?",
            [tables.settings(groups)],
            [("Commands that repeat the runs", repeat)],
        ),
        Section("values", "All values", [*tables.last_values(groups), tables.all_runs(groups)]),
        Section("paper", "Compared with the paper", [paper]),
    ]


def typeset(text: str) -> Markup:
    """Escape text and typeset exponents and the indices of λ and C; return markup unchanged.

    >>> typeset("σ^-0.5 < λ_z")
    Markup('σ<sup>-0.5</sup> &lt; λ<sub>z</sub>')
    """
    if isinstance(text, Markup):
        return text
    html = re.sub(r"\^(\([^)\n]*\)|[-+]?[\w.]*\w)", r"<sup>\1</sup>", str(escape(text)))
    return Markup(re.sub(r"(?<=[λC])_(\w)", r"<sub>\1</sub>", html))
