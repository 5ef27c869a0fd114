"""The report's HTML: one page that needs nothing beside itself."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from rdm_solo import __version__
from rdm_solo.plots.grouping import Group, behind, whole
from rdm_solo.report import tables
from rdm_solo.report.markup import Html, join, tag, typeset
from rdm_solo.report.tables import Table
from rdm_solo.report.verdicts import RULES, Verdict, verdicts

__all__ = ["Picture", "Report", "page"]

# Columns that hold words, which are set left and may break.
WORDS = ("filter", "folder", "network", "on", "here differs in", "what", "data", "seeds")
NUMBER = re.compile(r"[-–\d.,± →%a-z]{0,24}$")


@dataclass(frozen=True)
class Picture:
    """A drawn figure: what it shows and its numbers, its image as a data URI, its width in inches,
    and its files' names."""

    name: str
    title: str
    caption: Sequence[str]
    numbers: Sequence[str]
    alt: str
    image: str
    width: float
    files: Sequence[str]


@dataclass(frozen=True)
class Report:
    """What the page shows; ``problems`` say what runs lack, ``absent`` which figures are not drawn
    and why."""

    title: str
    heading: Html
    groups: Sequence[Group]
    pictures: Sequence[Picture] = field(default_factory=list)
    problems: Sequence[Html] = field(default_factory=list)
    absent: Sequence[Html] = field(default_factory=list)


def page(report: Report) -> str:
    """The whole page."""
    sections = [
        ("glance", "At a glance", _glance(report.groups)),
        ("missing", "Incomplete or missing", _problems(report.problems)),
        ("ran", "What was run", _ran(report.groups)),
        ("figures", "Figures", join(*map(_picture, report.pictures), _absent(report.absent))),
        ("numbers", "Numbers", _numbers(report.groups)),
        ("paper", "Beside the paper", _paper(report.groups)),
        (
            "rules",
            "How the verdicts are made",
            _list(RULES),
        ),
    ]
    if not report.groups:  # no epoch of any run has ended: there is nothing but the reasons
        sections = [section for section in sections if section[0] == "missing"]
    shown = [(key, title, body) for key, title, body in sections if body]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"rdm_solo {__version__}"),
        tag("title", f"{report.title} · rdm_solo"),
        Html(f"<style>\n{_style()}</style>"),
    )
    body = tag(
        "body",
        tag("a", "Skip to the verdicts", href="#main", class_="skip"),
        _header(report, shown),
        tag("main", *(_section(*section) for section in shown), id="main"),
        tag(
            "footer",
            f"Made by rdm_solo {__version__} on {datetime.date.today().isoformat()}. The page "
            "needs no network; the figures' PNG and PDF files lie beside it.",
        ),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _style() -> str:
    return (files("rdm_solo.report") / "report.css").read_text(encoding="utf-8")


def _header(report: Report, sections: Iterable[tuple[str, str, str]]) -> Html:
    runs = [run for group in report.groups for run in group.runs]
    data = sorted({run.dataset for run in runs})
    counts = (
        f"{_count(len(runs), 'run')} of {_count(len(report.groups), 'setting')} on "
        f"{', '.join(data)}."
        if runs
        else "No epoch of any run has ended."
    )
    links = (tag("li", tag("a", title, href=f"#{key}")) for key, title, _ in sections)
    return tag(
        "header",
        tag("h1", report.heading),
        tag("p", counts, class_="soft"),
        tag("nav", tag("ul", *links), aria_label="Sections"),
    )


def _count(number: int, what: str) -> str:
    """
    >>> _count(1, "run"), _count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def _section(key: str, title: str, body: str) -> Html:
    return tag(
        "section", tag("h2", title, id=f"{key}-title"), body, id=key, aria_labelledby=f"{key}-title"
    )


def _glance(groups: Sequence[Group]) -> Html:
    return tag("div", *map(_card, groups), class_="cards")


def _card(group: Group) -> Html:
    counted = whole(group)
    seeds = ", ".join(str(seed) for seed in sorted(run.seed for run in counted))
    asked = group.first.config.get("max_epochs", "?")
    facts = (
        f"{group.first.dataset}; seed{'s' * (len(counted) > 1)} {seeds}; "
        f"{counted[0].epochs} of {asked} epochs"
    )
    left = ", ".join(f"seed {run.seed} ({run.epochs} of {asked})" for run in behind(group))
    items = [join(tag("dt", v.question), _answer(v)) for v in verdicts(counted)]
    told = _watched(group)
    if told:
        lines = (tag("small", typeset(line)) for line in told)
        items.append(join(tag("dt", "What was said while it trained"), tag("dd", *lines)))
    return tag(
        "article",
        tag("h3", typeset(group.label)),
        tag("p", facts, f"; not counted: {left}" if left else "", class_="soft"),
        tag("dl", *items),
        class_="card",
    )


def _watched(group: Group) -> list[str]:
    """The watch's warnings: each kind once, in the words of the first run that had it."""
    kinds: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for run in group.runs:
        for warning in run.summary.get("warnings") or []:
            if isinstance(warning, dict) and "text" in warning:
                kinds.setdefault(str(warning.get("kind")), []).append((run.seed, warning))
    lines = []
    for (seed, first), *others in kinds.values():
        line = f"Seed {seed}: {first['text']}" if len(group.runs) > 1 else str(first["text"])
        alike = ", ".join(f"{seed} (epoch {_epoch(other)})" for seed, other in others)
        lines.append(f"{line} Likewise seed{'s' * (len(others) > 1)} {alike}." if alike else line)
    return lines


def _epoch(warning: dict[str, Any]) -> str:
    epoch = warning.get("epoch")
    return str(epoch + 1) if isinstance(epoch, int) else "?"


MARKS = {True: "✓ ", False: "✗ ", None: "○ "}


def _answer(verdict: Verdict) -> Html:
    kind = {True: "good", False: "bad", None: None}[verdict.good]
    mark = tag("span", MARKS[verdict.good], aria_hidden="true")
    extra = [tag("small", typeset(verdict.caveat), class_="soft")] if verdict.caveat else []
    return tag(
        "dd",
        tag("strong", mark, verdict.answer),
        tag("small", verdict.numbers),
        *extra,
        class_=kind,
    )


def _problems(problems: Sequence[str]) -> Html:
    if not problems:
        return Html()
    return _list(problems, class_="warn")


def _absent(absent: Sequence[str]) -> Html:
    if not absent:
        return Html()
    return join(tag("h3", "Not drawn"), _list(absent))


def _ran(groups: Sequence[Group]) -> Html:
    commands = [line for group in groups for line in tables.commands(group)]
    again = Html()
    if commands:
        again = join(tag("h3", "To repeat it"), *(tag("pre", tag("code", c)) for c in commands))
    else:
        again = tag("p", "No command can be told: the folders keep no .hydra/overrides.yaml.")
    return join(_table(tables.ran(groups)), again)


def _numbers(groups: Sequence[Group]) -> Html:
    shown = [*tables.against_p(groups), *tables.last_values(groups), tables.each(groups)]
    return join(*map(_table, shown))


def _paper(groups: Sequence[Group]) -> Html:
    table, why = tables.against_paper(groups)
    parts = [_table(table)] if table else []
    if why:
        parts.append(tag("p", "No row of the paper's tables is comparable with:"))
        parts.append(_list(why))
    return join(*parts)


def _table(table: Table) -> Html:
    words = [_is_words(name, i, table) for i, name in enumerate(table.head)]
    head = tag(
        "tr",
        *(
            tag("th", name, scope="col", class_="words" if w else None)
            for name, w in zip(table.head, words)
        ),
    )
    rows = [
        tag(
            "tr",
            tag("th", typeset(row[0]), scope="row"),
            *(
                tag("td", _cell(name, cell), class_="words" if w else None)
                for name, cell, w in zip(table.head[1:], row[1:], words[1:])
            ),
        )
        for row in table.rows
    ]
    made = tag("table", tag("caption", table.caption), tag("thead", head), tag("tbody", *rows))
    # A region that scrolls has to be reached with the keyboard.
    scroll = tag(
        "div", made, class_="scroll", tabindex="0", role="region", aria_label=table.caption
    )
    notes = tag("p", typeset(" ".join(table.notes)), class_="notes") if table.notes else Html()
    return join(scroll, notes)


def _cell(name: str, cell: str) -> Html:
    return tag("code", cell) if name == "folder" else typeset(cell)


def _is_words(name: str, column: int, table: Table) -> bool:
    return (
        name in WORDS
        or name.endswith("?")
        or not all(NUMBER.match(row[column]) for row in table.rows)
    )


def _list(lines: Sequence[str], **attributes: str) -> Html:
    return tag("ul", *(tag("li", typeset(line)) for line in lines), **attributes)


def _picture(picture: Picture) -> Html:
    links: list[str] = []
    for name in picture.files:
        kind = name.rpartition(".")[2].upper()
        links += [" · " if links else "", tag("a", kind, href=name, download=True)]
    image = tag(
        "img",
        src=picture.image,
        alt=picture.alt,
        width=str(round(96 * picture.width)),
    )
    caption = tag(
        "figcaption",
        *(tag("p", typeset(line)) for line in picture.caption),
        *([tag("p", "At the end of training:"), _list(picture.numbers)] if picture.numbers else []),
        tag("p", "This figure as ", *links, class_="soft"),
    )
    drawn = tag(
        "figure",
        tag(
            "div",
            image,
            class_="picture",
            tabindex="0",
            role="group",
            aria_label=f"{picture.title}, image",
        ),
        caption,
    )
    return tag("div", tag("h3", typeset(picture.title), id=picture.name), drawn, class_="whole")
