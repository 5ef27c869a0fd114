"""The report as HTML: one page, by ``templates/page.html``, that needs nothing beside itself."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rdm_solo import __version__
from rdm_solo.report import tables
from rdm_solo.report.paper_comparison import against_paper
from rdm_solo.report.typesetting import typeset
from rdm_solo.report.verdicts import RULES, Verdict, verdicts
from rdm_solo.runs.groups import Group, counted_runs, runs_behind

__all__ = ["Picture", "Report", "page"]


@dataclass(frozen=True)
class Picture:
    """A drawn figure: what it shows and its numbers, its image as a data URI, its width in inches,
    and its files' names."""

    name: str
    title: str
    caption: Sequence[str]
    numbers: Sequence[str]
    image: str
    width: float
    files: Sequence[str]

    @property
    def alt(self) -> str:
        """What the image shows, for those who do not see it."""
        return f"{self.title}. {'; '.join(self.numbers) or self.caption[-1]}"


@dataclass(frozen=True)
class Report:
    """What the page shows: its title, from the folders' names unless it is of a single run;
    ``problems`` say what runs lack, ``absent`` which figures are not drawn and why."""

    title: str
    groups: Sequence[Group]
    names: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    problems: Sequence[Markup] = ()
    absent: Sequence[Markup] = ()


@dataclass(frozen=True)
class Card:
    """A setting at a glance."""

    title: str
    facts: str
    verdicts: Sequence[Verdict]
    warnings: Sequence[str] = field(default_factory=list)


def page(report: Report) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("rdm_solo.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["typeset"] = typeset
    groups = report.groups
    runs = [run for group in groups for run in group.runs]
    paper_table, not_in_paper = against_paper(groups)
    return environment.get_template("page.html").render(
        report=report,
        version=__version__,
        today=datetime.date.today().isoformat(),
        runs=runs,
        datasets=sorted({run.dataset for run in runs}),
        cards=[_card(group) for group in groups],
        settings=tables.ran(groups),
        commands=[line for group in groups for line in tables.commands(group)],
        values=[*tables.against_p(groups), *tables.last_values(groups), tables.each(groups)],
        paper_table=paper_table,
        not_in_paper=not_in_paper,
        rules=RULES,
    )


def _card(group: Group) -> Card:
    counted = counted_runs(group)
    seeds = ", ".join(str(seed) for seed in sorted(run.seed for run in counted))
    asked = group.first.config.get("max_epochs", "?")
    facts = (
        f"{group.first.dataset}; seed{'s' * (len(counted) > 1)} {seeds}; "
        f"{counted[0].epochs} of {asked} epochs"
    )
    left = ", ".join(f"seed {run.seed} ({run.epochs} of {asked})" for run in runs_behind(group))
    if left:
        facts += f"; not counted: {left}"
    return Card(group.label, facts, verdicts(counted), _warnings(group))


def _warnings(group: Group) -> list[str]:
    """The collapse watch's warnings: each kind once, in the words of the first run that had it."""
    kinds: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for run in group.runs:
        for warning in run.summary.get("warnings") or []:
            if isinstance(warning, dict) and "text" in warning:
                kinds[str(warning.get("kind"))].append((run.seed, warning))
    lines = []
    for (seed, first), *others in kinds.values():
        line = f"Seed {seed}: {first['text']}" if len(group.runs) > 1 else str(first["text"])
        alike = ", ".join(f"{seed} (epoch {_epoch(other)})" for seed, other in others)
        lines.append(f"{line} Likewise seed{'s' * (len(others) > 1)} {alike}." if alike else line)
    return lines


def _epoch(warning: dict[str, Any]) -> str:
    epoch = warning.get("epoch")
    return str(epoch) if isinstance(epoch, int) else "?"
