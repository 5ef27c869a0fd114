"""Render the report with ``templates/page.html`` as one self-contained HTML page."""

import datetime
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rdm_solo import __version__
from rdm_solo.collapse.health import MOSTLY_MEAN
from rdm_solo.collapse.rules import DESTROYED, IN_A_ROW, MIN_GAP, WRONG_WAY
from rdm_solo.collapse.rules import RULES as COLLAPSE
from rdm_solo.report import answers, tables
from rdm_solo.report.figures import OPEN, SLOW, Picture
from rdm_solo.report.judged import Setting
from rdm_solo.report.verdicts import FINAL_EPOCHS, MIN_DIRECTIONAL, MIN_SORTED
from rdm_solo.runs.columns import ACCURACY
from rdm_solo.runs.groups import format_latest

_KINDS = [
    f"{rule.kind.capitalize()}: {rule.definition}." for rule in COLLAPSE if rule.kind != WRONG_WAY
]

# How the page judges runs, in words.
RULES = (
    "Means, bands and n include only the runs with the most epochs in each setting. Verdicts also "
    "include runs that diverged. All other runs are listed, drawn as thin lines, and judged one by "
    "one in the table of all runs.",
    "A setting is red if the outputs or features of all its seeds collapsed, or if one seed "
    f"diverged or has a {DESTROYED}. Otherwise it is amber if a rule below applies to any seed.",
    "The target leads in an epoch if its effective rank is above the online branch's by more than "
    f"{100 * MIN_GAP:g} %. Yes: it leads in at least 95 % of the measured epochs. No "
    f"longer: the online branch leads in each of the last {FINAL_EPOCHS}. A lead is not scored "
    "if there is no filter, if the filter may be low-pass or high-pass (such as log σ), or after a "
    "collapse. For contrastive and redundancy-reduction methods and ReSSL, which avoid collapse in "
    "other ways, we report the gap and the filter but do not judge them.",
    "The filter is low-pass if Spearman's rank correlation of the last epoch's curve with the "
    f"target's eigenvalues is at least {MIN_SORTED:g} for sorted eigenvalues and at least "
    f"{MIN_DIRECTIONAL:g} along the target's eigenvectors. The second test is stricter: the sorted "
    "curve rises wherever the target's spectrum is flatter, regardless of the directions.",
    f"Most rules below need the last {IN_A_ROW} measured epochs; a drop of kNN needs one. Apart "
    f"from a {DESTROYED}, many healthy runs meet a rule, because features can survive a collapse "
    "of the outputs. The outputs are the projections; spread and rank are measured around each "
    "step's mean. For methods with a softmax, the spread is measured on the logits and the rank on "
    "the last layer's input. A run that meets no rule but whose spread is below "
    f"{MOSTLY_MEAN:g} is undecided: its outputs are mostly their mean. In the warm-up only a "
    f"{DESTROYED} is judged; a last value below another bound is too early to judge. Warnings "
    "during training use the same rules with the run's own bounds.",
    *_KINDS,
    "The best setting has the highest mean over its seeds. Another setting is within one standard "
    "deviation if the two means differ by no more than the larger of the two standard deviations. "
    "In that case the seeds do not separate them. Single seeds separate nothing, so no setting is "
    "named if the best one and another one have a single seed each. A setting is not ranked if "
    "each of its runs diverged or has a warning or a note other than a negative gap. A high rank "
    "or a wide gap does not imply a high accuracy.",
)


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
    sections: dict[str, Any] = {}
    if settings:
        sections = tables.contents(settings) | {
            "accuracy_chart": ACCURACY,
            "answers": answers.first_answers(settings),
            "pictures": pictures[:OPEN],
            "rules": RULES,
            "more_pictures": pictures[OPEN:],
            "all_figures": any(picture.plot in SLOW for picture in pictures),
        }
    return render(
        "page.html",
        **sections,
        title=answers.title(settings) if settings else ", ".join(names),
        settings=settings,
        names=names,
        problems=problems,
        failures=failures,
    )


def render(template: str, **values: Any) -> str:
    """Return a page of one of the templates, with its date and the version."""
    environment = Environment(
        loader=PackageLoader("rdm_solo.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["typeset"] = typeset
    environment.filters["format_latest"] = format_latest
    return environment.get_template(template).render(
        values,
        today=datetime.date.today().isoformat(),
        version=__version__,
    )


def typeset(text: str) -> Markup:
    """Escape text and typeset exponents and the indices of λ and C.

    >>> print(typeset("σ^-0.5 < σ^(-0.1…-0.5) & λ_z"))
    σ<sup>-0.5</sup> &lt; σ<sup>(-0.1…-0.5)</sup> &amp; λ<sub>z</sub>
    """
    html = str(escape(text)).replace("filter σ", "filter\N{NO-BREAK SPACE}σ")
    html = re.sub(r"\^(\([^)\n]*\)|[-+]?[\w.]*\w)", r"<sup>\1</sup>", html)
    return Markup(re.sub(r"(?<=[λC])_(\w)", r"<sub>\1</sub>", html))
