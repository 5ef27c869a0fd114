"""Render the report with ``templates/page.html`` as one self-contained HTML page."""

import datetime
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rdm_solo import __version__
from rdm_solo.report import answers, tables
from rdm_solo.report.explanations import RULES
from rdm_solo.report.figures import OPEN, SLOW, Picture
from rdm_solo.report.judged import Setting
from rdm_solo.report.paper_comparison import paper_rows
from rdm_solo.runs.columns import ACCURACY
from rdm_solo.runs.groups import run_name

ON_REQUEST = "The option --all-figures adds Figure 5."


def page(
    settings: Sequence[Setting],
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
    environment.filters["last_value"] = tables.last_value
    environment.filters["run_name"] = run_name
    sections: dict[str, Any] = {}
    if settings:
        runs = [run for setting in settings for run in setting.group.runs]
        folders = [run.folder for run in runs]
        measured = set()
        for setting in settings:
            for name, values in setting.last.items():
                if values:
                    measured.add(name)
        sections = {
            "runs": runs,
            "measured": measured,
            "overview_columns": tables.OVERVIEW,
            "accuracy_chart": ACCURACY,
            "run_columns": tables.RUN_COLUMNS,
            "measures": tables.MEASURES,
            "other_columns": tables.OTHERS,
            "answers": answers.first_answers(settings),
            "pictures": pictures[:OPEN],
            "caveats": tables.caveats(settings),
            "rules": RULES,
            "more_pictures": pictures[OPEN:],
            "on_request": "" if any(picture.plot in SLOW for picture in pictures) else ON_REQUEST,
            "folders": dict(zip(folders, tables.relative(folders))),
            "facts": list(map(tables.facts, settings)),
            "versions": tables.package_versions(runs),
            "commands": tables.commands(settings),
            "paper_rows": paper_rows(settings),
        }
    return environment.get_template("page.html").render(
        sections,
        title=answers.title(settings) if settings else ", ".join(names),
        settings=settings,
        names=names,
        problems=problems,
        failures=failures,
        today=datetime.date.today().isoformat(),
        version=__version__,
    )


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
