"""The report as HTML: one page, by ``templates/page.html``, that needs nothing beside itself."""

import datetime
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rdm_solo import __version__
from rdm_solo.messages import listed
from rdm_solo.report import answers, ranking, tables
from rdm_solo.report.evaluations import comparable
from rdm_solo.report.figures import Picture
from rdm_solo.report.measured import few_rows
from rdm_solo.report.paper_comparison import against_paper
from rdm_solo.report.rules import RULES
from rdm_solo.report.typesetting import typeset
from rdm_solo.report.what_ran import commands, ran
from rdm_solo.runs.groups import Group, counted_runs, run_name


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
    groups = comparable(groups)  # each setting is held against the paper's with what it has
    several = len(groups) > 1
    return environment.get_template("page.html").render(
        title=title,
        groups=groups,
        names=names,
        pictures=pictures,
        problems=problems,
        absent=absent,
        today=datetime.date.today().isoformat(),
        version=__version__,
        answers=first_answers(groups),
        best=ranking.best(groups) if several else [],
        uneven=_uneven(groups),
        health=tables.health(groups),
        accuracies=tables.accuracies(groups),
        rankings=[*map(tables.ranking, ranking.best(groups))] if several else [],
        against_p=tables.against_p(groups),
        mechanism=tables.mechanism(groups),
        warnings=[line for group in groups for line in _warnings(group, several)],
        few=_few(groups),
        measures=tables.measures(groups),
        settings=ran(groups),
        commands=[line for group in groups for line in commands(group)],
        values=[*tables.last_values(groups), tables.each(groups)],
        paper_table=paper_table,
        not_in_paper=not_in_paper,
        rules=RULES,
    )


def first_answers(groups: Sequence[Group]) -> list[answers.Answer]:
    """What the first screen says of one setting, or of how many of several are alive."""
    if len(groups) == 1:
        return [answers.alive(groups[0]), answers.good(groups[0])]
    return [answers.roll_call(groups)] if groups else []


def _uneven(groups: Sequence[Group]) -> str:
    """A sentence where settings were trained for unequal times."""
    epochs = sorted({counted_runs(group)[0].epochs for group in groups})
    if len(epochs) < 2:
        return ""
    return (
        f"The settings have from {epochs[0]} to {epochs[-1]} epochs, which favours the longer ones."
    )


def _few(groups: Sequence[Group]) -> list[str]:
    """The warnings about too few rows, each with the runs that it is about."""
    said: dict[str, list[str]] = {}
    for run in [run for group in groups for run in group.runs]:
        if warning := few_rows(run):
            said.setdefault(warning, []).append(run_name(run))
    return [f"{warning} This holds for {listed(runs)}." for warning, runs in said.items()]


def _warnings(group: Group, named: bool) -> list[str]:
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
                seed = f"seed {run.seed}" if len(group.runs) > 1 else ""
                who = ", ".join(filter(None, [group.label if named else "", seed]))
                who = who[:1].upper() + who[1:]
                lines[kind] = f"{who}: {warning['text']}" if who else str(warning["text"])
    return list(lines.values())
