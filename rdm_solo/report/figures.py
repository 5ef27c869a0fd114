"""Draw the report's figures, save them in its folder and embed them in the page."""

import base64
import io
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure

from rdm_solo import plots
from rdm_solo.messages import UserError
from rdm_solo.plots import figure5 as panels
from rdm_solo.plots import style
from rdm_solo.plots.entry import Groups
from rdm_solo.runs import checkpoints
from rdm_solo.runs.groups import Group, counted_runs

log = logging.getLogger("rdm_solo")

FIRST = "first"  # the section of the first figure


def _asymmetric(groups: Groups) -> list[Group]:
    """Return one setting for each method with a checkpoint and an asymmetric design.

    A setting with the method's own predictor is preferred. The list is empty without solo-learn,
    which is needed to rebuild a model.
    """
    candidates = [g for g in groups if checkpoints.present(counted_runs(g)[0].folder)]
    if not candidates:
        return []
    try:
        from rdm_solo.evaluate import finished_run  # noqa: F401
        from rdm_solo.evaluate.figure5 import DESIGNS
    except ImportError:
        return []
    chosen: dict[str, Group] = {}
    for group in sorted(candidates, key=lambda group: not group.first.chosen_filter.unchanged):
        if group.first.description.asymmetry in DESIGNS:
            chosen.setdefault(group.first.method, group)
    return [group for group in groups if group in chosen.values()]


@partial(
    plots.Plot,
    section="mechanism",
    title="The role of asymmetric designs",
    caption="Filters on one branch, and their slope on log-log axes. With a predictor: the optimal "
    "linear predictor's filter ω = λ₊/λ_z (Theorem 2), between 0 and 1, and the filter g of the "
    "run's predictor or filter; a good predictor is close to the optimal one. A curve that rises "
    "with λ is low-pass. With few pairs ω can be ≤ 0, which is not drawn. Sinkhorn: the target's "
    "filter after 0 to 3 iterations, with the run's ε and with ε equal to the online temperature. "
    "The latter shows the effect of the iterations alone; a slope near 0 means that they hardly "
    "change the spectrum. Centring: the target's filter with and without centring, by temperature. "
    "A falling target filter is high-pass, the same asymmetry as a low-pass online filter.",
    needs="a run with an asymmetric design, its checkpoint, and solo-learn",
    paper="Figure 5",
    choose=_asymmetric,
)
def figure5(groups: Groups, looks: style.Looks) -> Figure:
    from rdm_solo.evaluate.figure5 import measure  # loads solo-learn

    return panels.draw([measure(counted_runs(group)[0]) for group in groups])


PLOTS: tuple[plots.Plot, ...] = (*plots.PLOTS, figure5)


class Picture(NamedTuple):
    """A drawn figure on the page, with its section, note and files."""

    plot: plots.Plot
    section: str
    source: str  # a data URI
    inches: float
    note: str
    files: Sequence[str]


def draw(groups: Groups, folder: Path, checkpoints: bool = True) -> tuple[list[Picture], list[str]]:
    """Draw the figures of these settings into a folder.

    Return them with a sentence for each figure that failed or lacks measurements.
    ``checkpoints=False`` leaves out the paper's Figure 5, which is recomputed from checkpoints.
    """
    runs = [run for group in groups for run in group.runs]
    pictures: list[Picture] = []
    failures = []
    for plot in PLOTS:
        if (plot is figure5 and not checkpoints) or not plot.choose(groups):
            continue
        if not plot.select(groups):
            failures.append(f"{plot.title}: needs {plot.needs}.")
            continue
        try:
            figure = plot(runs)
        except Exception as error:  # a failed figure must not prevent the page
            log.debug("a figure failed", exc_info=True)
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            failures.append(f"{plot.title}: {kind}{error}")
            continue
        section = plot.section if pictures else FIRST
        files = [path.name for path in plots.save(figure, folder, plot.name)]
        source, inches = _data_uri(figure, plot.name), figure.get_size_inches()[0]
        pictures.append(Picture(plot, section, source, inches, str(figure.get_label()), files))
    return pictures, failures


@style.styled
def _data_uri(figure: Figure, name: str) -> str:
    """Return the figure as an SVG data URI; equal figures give equal text."""
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"
