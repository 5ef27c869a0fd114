"""Draw the report's figures, save them in its folder and embed them in the page."""

import base64
import logging
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from rdm_solo import plots
from rdm_solo.ground.errors import UserError
from rdm_solo.methods.descriptions import ASYMMETRIES
from rdm_solo.plots import figure5_panels, style
from rdm_solo.plots.plot import Groups
from rdm_solo.runs import checkpoints
from rdm_solo.runs.groups import Group

log = logging.getLogger("rdm_solo")

OPEN = 4  # figures that the page shows without a click
STACKED = 24  # panels below each other at most, because an image has a maximum height


def _asymmetric(groups: Groups) -> list[Group]:
    """Return the settings with a checkpoint and an asymmetric design."""
    asymmetric = []
    for group in groups:
        is_asymmetric = group.first.description.asymmetry in ASYMMETRIES
        if is_asymmetric and checkpoints.present(group.counted[0].folder):
            asymmetric.append(group)
    return asymmetric


@partial(
    plots.Plot,
    title="The role of asymmetric designs",
    caption="The filter on one branch, and its slope on log-log axes. With a predictor: the "
    "optimal linear predictor's filter ω = λ₊/λ_z (Theorem 2) and the run's filter "
    "g. A rising curve is low-pass; values of ω ≤ 0 are not drawn. Sinkhorn: the target's filter "
    "after 0 to 3 iterations, with the run's ε, and with ε equal to the online temperature, which "
    "shows the effect of the iterations alone. Centring: the target's filter with and without "
    "centring at several temperatures. A falling target filter is high-pass, which is the same "
    "asymmetry as a low-pass online filter.",
    needs="a run with an asymmetric design, its checkpoint, and solo-learn",
    paper="Figure 5",
    seeds="Recomputed from a checkpoint of one of {n} seeds.",
    choose=_asymmetric,
)
def figure5(groups: Groups, looks: style.Looks) -> Figure:
    from rdm_solo.evaluate.figure5 import measure  # loads solo-learn

    return figure5_panels.draw([measure(group.counted[0]) for group in groups])


PLOTS: tuple[plots.Plot, ...] = (*plots.PLOTS, figure5)
SLOW = (figure5,)  # drawn only on request


class Picture(NamedTuple):
    """A drawn figure on the page, with its note."""

    plot: plots.Plot
    source: str  # a data URI
    narrow: str  # the panels below each other, for a narrow screen; empty if there is one panel
    inches: float
    note: str


def draw(groups: Groups, folder: Path, slow: bool = False) -> tuple[list[Picture], list[str]]:
    """Draw the figures of these settings into a folder, with ``slow`` also those in ``SLOW``.

    Return them with a sentence for each figure that failed or lacks measurements.
    """
    pictures = []
    failures = []
    for plot in PLOTS:
        applies = bool(plot.choose(groups))
        is_wanted = slow if plot in SLOW else applies
        if not is_wanted:
            continue
        if not plot.select(groups):  # no group has the measurements
            failures.append(f"{plot.title}: needs {plot.needs}.")
            continue
        try:
            figure = plot(groups)
            narrow = ""
            if 1 < len(figure.axes) <= STACKED and plot not in SLOW:
                narrow = _stacked(plot, groups)
        except UserError as error:
            failures.append(f"{plot.title}: {error}")
        except Exception as error:  # a failed figure must not prevent the page
            log.debug("a figure failed", exc_info=True)
            failures.append(f"{plot.title}: {type(error).__name__}: {error}")
        else:
            pictures.append(save(plot, figure, folder, narrow))
    return pictures, failures


def save(plot: plots.Plot, figure: Figure, folder: Path, narrow: str = "") -> Picture:
    """Save a figure in a folder and return it for the page."""
    png, *_ = plots.save(figure, folder, plot.name)
    content = png.read_bytes()
    width = int.from_bytes(content[16:20], "big")  # in the header of a PNG file
    return Picture(
        plot,
        source=_data_uri(content),
        narrow=narrow,
        inches=width / style.DPI,
        note=str(figure.get_label()),  # set by style.finish
    )


def _stacked(plot: plots.Plot, groups: Groups) -> str:
    """Draw a figure once more, with its panels below each other."""
    figure = plot(groups, stacked=True)
    return _data_uri(style.narrow_png(figure))


def _data_uri(png: bytes) -> str:
    """Return the content of a PNG file as the address of an image."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
