"""Render the report with ``templates/page.html`` as one self-contained HTML page."""

import datetime
import re
from collections.abc import Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rdm_solo import __version__
from rdm_solo.report import answers, tables
from rdm_solo.report.figures import OPEN, SLOW, Picture
from rdm_solo.report.measured import comparable
from rdm_solo.report.paper_comparison import paper_table
from rdm_solo.report.rules import RULES
from rdm_solo.report.tables import Table
from rdm_solo.runs.groups import Group, run_name

ON_REQUEST = "The option --all-figures adds the ranks that Theorem 4 predicts, and Figure 5."


class Section(NamedTuple):
    """A part of the page that opens on a click: tables, headed lists, figures."""

    key: str
    heading: str
    tables: Sequence[Table] = ()
    lists: Sequence[tuple[str, Sequence[str]]] = ()
    pictures: Sequence[Picture] = ()


def page(
    groups: Sequence[Group],
    names: Sequence[str] = (),
    pictures: Sequence[Picture] = (),
    problems: Sequence[str] = (),
    failures: Sequence[str] = (),
) -> str:
    """Return the page of runs in folders of these names.

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
    name = "Incomplete, missing, not drawn"
    sections = [
        section._replace(
            tables=[table for table in section.tables if table.rows],
            lists=[(heading, lines) for heading, lines in section.lists if lines],
        )
        for section in (*_sections(groups, pictures[OPEN:]), Section("missing", name, (), missing))
    ]
    return environment.get_template("page.html").render(
        title=answers.title(groups) if groups else ", ".join(names),
        groups=groups,
        names=names,
        problems=problems,
        pictures=pictures[:OPEN],
        table=_first_table(comparable(groups)) if groups else None,
        sections=[section for section in sections if any(section[2:])],
        answers=answers.first_answers(comparable(groups)),
        today=datetime.date.today().isoformat(),
        version=__version__,
    )


def _first_table(groups: Sequence[Group]) -> Table:
    """Return the open table, which does not repeat the numbers at the top of the page."""
    if len(groups) > 1:
        return tables.overview(groups)
    return tables.all_runs(groups) if len(groups[0].runs) > 1 else tables.machine(groups)


def _sections(groups: Sequence[Group], pictures: Sequence[Picture]) -> list[Section]:
    """Return the sections about runs."""
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
    first, drawn = _first_table(groups), any(picture.plot in SLOW for picture in pictures)
    values = [tables.overview(groups), tables.other_values(groups), tables.all_runs(groups)]
    return [
        Section(
            "verdicts",
            "Why these verdicts?",
            [tables.judgements(groups)],
            [("Warnings during training", warnings), ("How we judge", RULES)],
        ),
        Section("figures", "More figures", (), [("", [] if drawn else [ON_REQUEST])], pictures),
        Section("ranks", "Other measures of rank", [tables.measures(groups)]),
        Section("values", "All values", [t for t in values if t.caption != first.caption]),
        Section(
            "settings",
            "What exactly was run?",
            [tables.settings(groups)],
            [("Commands that repeat the runs", repeat)],
        ),
        Section("paper", "Compared with the paper", [paper]),
    ]


def typeset(text: str) -> Markup:
    """Escape text and typeset exponents and the indices of λ and C; return markup unchanged.

    >>> typeset("σ^-0.5 < λ_z")
    Markup('σ<sup>-0.5</sup> &lt; λ<sub>z</sub>')
    """
    if isinstance(text, Markup):
        return text
    html = str(escape(text)).replace("filter σ", "filter\N{NO-BREAK SPACE}σ")
    html = re.sub(r"\^(\([^)\n]*\)|[-+]?[\w.]*\w)", r"<sup>\1</sup>", html)
    return Markup(re.sub(r"(?<=[λC])_(\w)", r"<sub>\1</sub>", html))
