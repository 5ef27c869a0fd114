"""The style of every figure: colours, sizes, axes, and where titles, key and note go.

Figures are not registered with ``pyplot``, so any process can draw them and they are freed with
their last reference.
"""

import functools
import io
import itertools
import logging
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rdm_solo.runs.files import write_whole

# Okabe and Ito's colours for the colour-blind; dashes and markers tell curves apart in grey.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

DASHES, DOTS, DASH_DOTS = (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5))

Look = dict[str, Any]  # how a line is drawn: arguments of matplotlib's ``plot``
Looks = Mapping[str, Look]


def look(label: str, color: str, linestyle: Any = "-", marker: str = "", **more: Any) -> Look:
    """Return the look of a line."""
    return {"label": label, "color": color, "linestyle": linestyle, "marker": marker, **more}


# The target has the wider line and the hollow marker: an equal online curve drawn over it leaves
# both visible.
TARGET = look(
    "target",
    VERMILION,
    marker="o",
    linewidth=2.2,
    markersize=5.5,
    markerfacecolor="white",
    markeredgewidth=1.2,
)
ONLINE = look("online", BLUE, (0, (4, 2)), "s", linewidth=1.4, markersize=2.8)

STYLE: Any = {  # matplotlib 3.11 types every key; 3.9 none
    "font.family": "DejaVu Sans",  # ships with matplotlib and has Greek letters
    "mathtext.fontset": "dejavusans",
    # The width of hinted letters depends on the resolution by up to a tenth, so lines measured at
    # one resolution would not fit at another.
    "text.hinting": "no_hinting",
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
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 100,
    "pdf.fonttype": 42,  # TrueType, as journals ask; text in Type 3 cannot be searched
}

# Decorates functions that draw: text gets its size when it is created.
styled = matplotlib.rc_context(STYLE)

SERIES = 8  # settings in a panel at most

_COLOURS = (BLACK, VERMILION, BLUE, GREEN, ORANGE, PURPLE, SKY)
_LINES = ("-", DASHES, DOTS, DASH_DOTS)
_MARKERS = "osD^vP*X<>"


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for each name, labelled with it; the first 140 differ from each other."""
    cycle = zip(dict.fromkeys(names), *map(itertools.cycle, (_COLOURS, _LINES, _MARKERS)))
    return {name: look(name, *parts) for name, *parts in cycle}


class _NotebookFigure(Figure):
    """A figure that notebooks show without ``pyplot``."""

    @styled
    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=100)
        return file.getvalue()


def figure(
    panels: int,
    columns: int = 4,
    panel: tuple[float, float] = (2.7, 2.35),
    stacked: int = 1,
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, at most ``columns`` panels of ``panel`` inches in a row.

    With ``stacked``, each panel consists of that many axes, one below another and consecutive in
    the list. A single panel is drawn larger. Call :func:`finish` after drawing.
    """
    lines = -(-panels // columns)
    across = -(-panels // lines)  # 4 panels with 3 columns become 2 rows of 2
    down = lines * stacked
    width = panel[0] * (1.5 if across == 1 else across)
    height = panel[1] * down * (1.3 if panels * stacked == 1 else 1)
    outer = _NotebookFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(outer)  # measures text
    # The key belongs to a subfigure: constrained layout gives a key and a note of one figure the
    # same place (matplotlib 3.11).
    inner = outer.add_subfigure(outer.add_gridspec(1, 1)[0])
    grid = [
        inner.add_subplot(down, across, (i // across * stacked + s) * across + i % across + 1)
        for i in range(panels)
        for s in range(stacked)
    ]
    for axes in grid:
        # Ticks are created on drawing, outside of `styled`, so the axes carry their style.
        axes.tick_params(labelsize=8, grid_alpha=0.25, grid_linewidth=0.6)
    return outer, grid


def panel_title(axes: Axes, text: str) -> None:
    """Set a panel's title, wrapped to the panel's width."""
    axes.set_title(wrap(text, axes.bbox.width / axes.figure.dpi, 9.5), loc="left")


def finish(figure: Figure, title: str = "", note: str = "") -> Figure:
    """Add a title above, and below a note and the key of panels without their own.

    The figure's own ``supxlabel`` replaces the note. The figure grows by what they take.
    """
    width, height = figure.get_size_inches()
    note = figure.get_supxlabel() or note
    if title:
        figure.suptitle(wrap(title, width, 11), x=0.08 / width, ha="left", fontsize=11)
    if note:
        figure.set_label(note)  # unwrapped, for a page that shows it as text
        lines = wrap(note, width, 7.5)
        figure.supxlabel(lines, x=0.08 / width, ha="left", fontsize=7.5, color="0.3")
    labelled = (a.get_legend_handles_labels() for a in figure.axes if a.get_legend() is None)
    key = {label: line for handles, labels in labelled for line, label in zip(handles, labels)}
    if key:
        names = [wrap(label, width - 0.6, 8.5) for label in key]
        longest = max(len(line) for name in names for line in name.split("\n"))
        columns = max(1, int(width / (longest * letter(8.5) + 0.6)))
        figure.subfigs[0].legend(key.values(), names, loc="outside lower center", ncols=columns)
    # Lay out with room to spare, then cut until the panels are as high as without any words.
    panel = figure.axes[0]
    before = panel.bbox.height
    figure.set_size_inches(width, height + 20)
    figure.draw_without_rendering()
    rows = panel.get_gridspec().nrows  # type: ignore[union-attr]
    figure.set_size_inches(width, height + 20 - rows * (panel.bbox.height - before) / figure.dpi)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # nothing moves any more, and saving takes half as long
    return figure


def letter(size: float) -> float:
    """Return the inches that a letter of that size in points takes on average, with a margin."""
    return 0.56 * size / 72


def wrap(text: str, room: float, size: float) -> str:
    """Wrap text to ``room`` inches and raise its exponents."""
    kept = re.sub(r"\^\([^)]*\)", lambda match: match[0].replace(" ", "\u00a0"), text)
    letters = int(room / letter(size))
    lines = [textwrap.fill(line, letters, break_on_hyphens=False) for line in kept.split("\n")]
    return typeset("\n".join(lines))


def typeset(text: str) -> str:
    """Raise a label's exponents, as mathtext.

    >>> typeset("SimSiam, h(σ) = σ^-0.5")
    'SimSiam, h(σ) = σ$^{\\\\mathrm{-0.5}}$'
    """

    def raised(match: re.Match[str]) -> str:
        exponent = match[1] if len(match[1]) == 1 else rf"\mathrm{{{match[1]}}}"
        return f"$^{{{exponent}}}$"

    return re.sub(r"\^(\([^)\n]*\)|[-+]?[\w.]+)", raised, text.replace("$", r"\$"))


def draw_line(axes: Axes, x: np.ndarray, y: np.ndarray, look: Look) -> None:
    """Draw the points that have values, if any, with at most 20 markers."""
    real = np.isfinite(x) & np.isfinite(y)
    if real.any():
        axes.plot(x[real], y[real], **{"markevery": 1 + int(real.sum()) // 20, **look})


def epoch_axis(axes: Axes) -> None:
    """Label the x axis with epochs: whole numbers from 1."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(_FromOne(nbins=5, integer=True, min_n_ticks=1))


class _FromOne(MaxNLocator):
    def tick_values(self, vmin: float, vmax: float) -> Any:
        return np.unique(np.maximum(super().tick_values(vmin, vmax), 1))


def log_axis(axis: Axis) -> None:
    """Make an axis logarithmic, with few tick labels so that none overlap; call it last."""
    axes = axis.axes
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    low, high = sorted(axis.get_view_interval())
    decades = np.floor(np.log10(high)) - np.ceil(np.log10(low)) + 1
    axis.set_minor_formatter(NullFormatter())
    if decades >= 2:
        axis.set_major_locator(LogLocator(numticks=5))
        return
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axis.set_minor_locator(NullLocator())
    ticks = [s * 10.0**d for d in range(-20, 21) for s in (1, 3) if low <= s * 10.0**d <= high]
    if len(ticks) > 1:
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=5))
    else:
        axis.set_major_locator(MaxNLocator(nbins=3))


def empty_panel(axes: Axes, text: str) -> None:
    """Say in the middle of a panel why nothing is drawn."""
    middle: Any = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, text, color="0.35", size=8, **middle)
    axes.grid(False)
    axes.set(xticks=[], yticks=[])


@styled
def save(
    figure: Figure, folder: Path, name: str, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Write ``name.png`` (150 dpi) and ``name.pdf`` (fonts embedded), creating the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it logs each glyph of a PDF
    paths = [folder / f"{name}.{kind}" for kind in formats]
    for path in paths:
        # Without a date, the same run gives the same bytes.
        dateless = {"CreationDate": None} if path.suffix == ".pdf" else None
        options: Any = {"dpi": 150, "metadata": dateless, "format": path.suffix[1:]}
        write_whole(path, functools.partial(figure.savefig, **options))
    return paths


@styled
def pixels(figure: Figure) -> np.ndarray:
    """Return the figure as bytes of shape ``(height, width, 3)``."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    image: np.ndarray = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    return image
