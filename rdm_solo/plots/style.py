"""The style of every figure: colours, sizes, axes, titles, legend and note.

Figures are not registered with ``pyplot``, so they need no display and are freed with their last
reference.
"""

import functools
import io
import logging
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox
from PIL import Image

from rdm_solo.runs.files import write_atomically

# Okabe and Ito's colour-blind-safe palette; dashes and markers distinguish curves in grey.
BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#858585"
BROWN = "#7A4A1E"
OLIVE = "#8F8F00"
WINE = "#882255"

DASHES = (0, (5, 2))
DOTS = (0, (1.2, 1.2))
DASH_DOTS = (0, (6, 1.5, 1.2, 1.5))

Look = dict[str, Any]  # how a line is drawn: arguments of matplotlib's ``plot``
Looks = Mapping[str, Look]


def look(label: str, color: str, linestyle: Any = "-", marker: str = "", **more: Any) -> Look:
    """Return the look of a line."""
    return {"label": label, "color": color, "linestyle": linestyle, "marker": marker, **more}


# Wider lines and hollow markers keep the target visible below an equal online curve.
TARGET = look(
    "target", VERMILION, marker="o", linewidth=2.2, markersize=5.5, markerfacecolor="white"
)
ONLINE = look("online", BLUE, (0, (4, 2)), "s", linewidth=1.4, markersize=2.8)

STYLE: Any = {  # Any: matplotlib 3.11 types the keys, 3.9 does not
    "font.family": "DejaVu Sans",  # ships with matplotlib and has Greek letters
    "mathtext.fontset": "dejavusans",
    "mathtext.default": "regular",  # as on the page; and a PDF then embeds one font
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "legend.columnspacing": 1.4,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.6,
    "axes.grid": True,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 100,
    "savefig.bbox": "tight",
    "pdf.fonttype": 42,  # TrueType, as journals require; Type 3 text cannot be searched
}

# A decorator for functions that draw, because text gets its size when it is created.
styled = matplotlib.rc_context(STYLE)

DPI = 200  # of PNG files
NARROW_DPI = 150  # of figures for a narrow screen
SERIES = 8  # maximum number of settings in a panel

# Blue and vermilion mean a branch, black and grey a quantity, the other colours a setting.
_COLOURS = (GREEN, ORANGE, PURPLE, BROWN, SKY, OLIVE, WINE)
_LINES = ("-", DASHES, DOTS, DASH_DOTS)
_MARKERS = "osD^vP*X<>"


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for each name, with the name as label; 140 looks are distinct."""
    unique = dict.fromkeys(names)
    colours = _COLOURS if len(unique) > 1 else (BLACK,)
    styles = zip(unique, cycle(colours), cycle(_LINES), cycle(_MARKERS))
    return {name: look(name, color, line, marker) for name, color, line, marker in styles}


class _Figure(Figure):
    """A figure whose saved files include the title, legend and note outside of the panels."""

    savefig = styled(Figure.savefig)

    def _repr_png_(self) -> bytes:  # notebooks show it without pyplot
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def figure(
    panels: int, columns: int = 4, panel: tuple[float, float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, at most ``columns`` panels of ``panel`` inches in a row.

    Panels are smaller if four are in a row. Call :func:`finish` after drawing.
    """
    columns = min(panels, columns)
    rows = math.ceil(panels / columns)
    if panel is None:
        panel = (2.7, 2.5) if columns > 3 else (3.3, 2.6)
    width, height = panel
    figure = _Figure(figsize=(width * columns, height * rows), layout="constrained")
    grid = []
    for i in range(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        # Ticks are created when drawn, outside of `styled`, so their style is set on the axes.
        axes.tick_params(labelsize=8, grid_alpha=0.25, grid_linewidth=0.6)
        grid.append(axes)
    return figure, grid


def stack(figure: Figure) -> None:
    """Put the panels below each other, for a narrow screen; call it before :func:`finish`."""
    panels = figure.axes
    first = panels[0].get_subplotspec()
    assert first is not None
    rows, columns, _, _ = first.get_geometry()
    width, height = figure.get_size_inches()
    figure.set_size_inches(width / columns, height / rows * len(panels))
    grid = figure.add_gridspec(len(panels), 1)
    for row, axes in enumerate(panels):
        axes.set_subplotspec(grid[row, 0])
        axes.tick_params(labelleft=True)  # labels that the panel had shared with its row


def panel_title(axes: Axes, text: str) -> None:
    """Set a panel's title, wrapped to the panel's width."""
    width = axes.bbox.width / axes.figure.dpi
    axes.set_title(wrap(text, width, 9.5), loc="left")


def y_label(axes: Axes, text: str) -> None:
    """Label the vertical axis, wrapped to the panel's height."""
    height = axes.bbox.height / axes.figure.dpi
    axes.set_ylabel(wrap(text, height, 9))


def finish(figure: Figure, title: str = "", note: str = "") -> Figure:
    """Add a title above, and a note and the legend below.

    The legend lists the lines of panels without a legend. The figure's label keeps the note,
    unwrapped, for the report's page.
    """
    width = figure.get_figwidth()
    figure.set_label(note)
    figure.suptitle(wrap(title, width, 11), x=0, y=1, ha="left", va="bottom", fontsize=11)
    entries: dict[str, Artist] = {}
    for axes in figure.axes:
        if axes.get_legend() is None:
            lines, labels = axes.get_legend_handles_labels()
            entries.update(zip(labels, lines))
    if entries or note:
        sample = 0.6  # inches of a line's sample
        longest = char_width(8.5) * max(map(len, entries), default=1)
        column_width = sample + min(width - sample, longest)
        figure.legend(
            list(entries.values()),
            [wrap(label, width - sample, 8.5) for label in entries],
            ncols=max(1, int(width / column_width)),
            loc="upper left",
            bbox_to_anchor=(0, 0),
            title=wrap(note, width, 7.5),
            title_fontsize=7.5,
            alignment="left",
        )
    layout: Any = figure.get_layout_engine()
    layout.execute(figure)
    figure.set_layout_engine("none")  # the layout is final; saving takes half as long
    return figure


def char_width(size: float) -> float:
    """Return the average width of a character in inches, with a margin; ``size`` is in points."""
    return 0.56 * size / 72


def wrap(text: str, width: float, size: float) -> str:
    """Wrap text to ``width`` inches and typeset its exponents."""
    chars = int(width / char_width(size))
    text = text.replace("filter σ", "filter\N{NO-BREAK SPACE}σ")
    return typeset(textwrap.fill(text, chars, break_on_hyphens=False))


def typeset(text: str) -> str:
    """Typeset the exponents in a label as mathtext.

    >>> print(typeset("σ^-0.5 and σ^(-0.1…-0.5, linear) at $1"))
    σ$^{\\mathrm{-0.5}}$ and σ$^{\\mathrm{(-0.1…-0.5,\\ linear)}}$ at \\$1
    """
    escaped = text.replace("$", r"\$")

    def superscript(match: re.Match[str]) -> str:
        exponent = match[1].replace(" ", r"\ ")  # mathtext drops spaces
        return rf"$^{{\mathrm{{{exponent}}}}}$"

    return re.sub(r"\^(\([^)\n]*\)|[-+]?[\w.]+)", superscript, escaped)


def draw_line(axes: Axes, x: np.ndarray, y: np.ndarray, look: Look) -> None:
    """Draw the finite points, if any, with at most 20 markers."""
    finite = np.isfinite(x) & np.isfinite(y)
    if finite.any():
        markevery = 1 + int(finite.sum()) // 20
        axes.plot(x[finite], y[finite], **{"markevery": markevery, **look})


def integer_axis(axes: Axes, label: str) -> None:
    """Label the x axis, with ticks at integers."""
    axes.set_xlabel(label)
    locator = MaxNLocator(nbins=5, integer=True, min_n_ticks=1)
    axes.xaxis.set_major_locator(locator)


def end_ticks_at(axes: Axes, first: float, last: float) -> None:
    """Put the last tick of the x axis at ``last``, with ticks at integers before it."""
    ticks = axes.xaxis.get_major_locator().tick_values(first, last)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1
    # A tick closer than this would touch the label of the last one.
    kept = [tick for tick in ticks if first <= tick <= last - 0.6 * step]
    axes.set_xticks([*kept, last])


def start_at_zero(axes: Axes) -> None:
    """Start the y axis at zero, with room above a constant line."""
    _, top = axes.get_ylim()
    axes.set_ylim(0, 1.05 * top)


def log_axis(axis: Axis) -> None:
    """Make an axis logarithmic, with few tick labels that do not overlap; call it after drawing."""
    if axis is axis.axes.xaxis:
        axis.axes.set_xscale("log")
    else:
        axis.axes.set_yscale("log")
    low, high = sorted(axis.get_view_interval())
    if high < 10 * low:
        axis.set_major_locator(MaxNLocator(nbins=3))
    elif high < 100 * low:  # decades alone would give one label
        axis.set_major_locator(LogLocator(subs=(1, 3)))
    else:
        axis.set_major_locator(LogLocator(numticks=4))
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter("{x:.3g}")  # powers of ten are slow to typeset


def mark_empty(axes: Axes, text: str) -> None:
    """Write ``text`` in the middle of a panel that has no lines; call it last."""
    if not axes.lines:
        axes.text(0.5, 0.5, text, size=8, ha="center", va="center", transform=axes.transAxes)
        axes.set(xscale="linear", yscale="linear", xticks=[], yticks=[])


@styled
def narrow_png(figure: Figure) -> bytes:
    """Return the figure as a PNG file's content, for a narrow screen."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=NARROW_DPI, bbox_inches=_box(figure))
    return file.getvalue()


def _box(figure: Figure) -> Bbox:
    """Return the box around the figure, legend and note, which is slow to measure."""
    return figure.get_tightbbox().padded(matplotlib.rcParams["savefig.pad_inches"])


@styled
def save(
    figure: Figure, folder: Path, name: str, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Write ``name.png`` and ``name.pdf``, creating the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it logs each glyph of a PDF
    # Measured once: "tight" would draw the figure once more for each file.
    box = _box(figure)
    paths = []
    for kind in formats:
        path = folder / f"{name}.{kind}"
        # Without a date, files of the same run are identical.
        metadata = {"CreationDate": None} if kind == "pdf" else None
        draw = functools.partial(
            figure.savefig, format=kind, metadata=metadata, dpi=DPI, bbox_inches=box
        )
        write_atomically(path, draw)
        paths.append(path)
    return paths


def pixels(figure: Figure) -> np.ndarray:
    """Return the figure as bytes of shape ``(height, width, 3)``."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    image = Image.open(file).convert("RGB")
    return np.array(image)
