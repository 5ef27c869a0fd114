"""The report as HTML: one page, by ``templates/page.html``, that needs nothing beside itself."""

import datetime
from collections.abc import Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rdm_solo import __version__
from rdm_solo.report import tables
from rdm_solo.report.paper_comparison import against_paper
from rdm_solo.report.typesetting import typeset
from rdm_solo.report.verdicts import RULES, verdicts
from rdm_solo.runs.groups import Group, counted_runs, judged_runs, runs_behind, so_far


class Picture(NamedTuple):
    """A drawn figure: what it shows and its numbers, its image as a data URI, its width in inches,
    and its files' names."""

    name: str
    title: str
    caption: Sequence[str]
    numbers: Sequence[str]
    image: str
    width: float
    files: Sequence[str]


def page(
    title: str,
    groups: Sequence[Group],
    names: Sequence[str] = (),
    pictures: Sequence[Picture] = (),
    problems: Sequence[Markup] = (),
    absent: Sequence[Markup] = (),
) -> str:
    """The whole page; its title is of the folders' ``names`` unless it is of a single run.

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
    paper_table, not_in_paper = against_paper(groups)
    return environment.get_template("page.html").render(
        title=title,
        groups=groups,
        names=names,
        pictures=pictures,
        problems=problems,
        absent=absent,
        today=datetime.date.today().isoformat(),
        version=__version__,
        counted_runs=counted_runs,
        runs_behind=runs_behind,
        judged_runs=judged_runs,
        so_far=so_far,
        verdicts=verdicts,
        warnings=_warnings,
        settings=tables.ran(groups),
        commands=[line for group in groups for line in tables.commands(group)],
        values=[*tables.against_p(groups), *tables.last_values(groups), tables.each(groups)],
        paper_table=paper_table,
        not_in_paper=not_in_paper,
        rules=RULES,
    )


def _warnings(group: Group) -> list[str]:
    """The collapse watch's warnings: each kind once, in the words of the first run that had it."""
    lines: dict[str, str] = {}
    for run in group.runs:
        for warning in run.summary.get("warnings") or []:
            if not isinstance(warning, dict) or "text" not in warning:
                continue
            kind, epoch = str(warning.get("kind")), warning.get("epoch", "?")
            if kind in lines:
                lines[kind] += f" Likewise seed {run.seed} (epoch {epoch})."
            else:
                seed = f"Seed {run.seed}: " if len(group.runs) > 1 else ""
                lines[kind] = f"{seed}{warning['text']}"
    return list(lines.values())
