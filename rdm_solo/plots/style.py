"""How every picture looks: colours, sizes, axes, and strips of their own for title, key and note.

Pictures are matplotlib ``Figure`` objects that no window and no ``pyplot`` knows of, so that they
can be drawn in any process and are freed with their last name.
"""

from __future__ import annotations

import logging
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rdm_solo.runs.files import write_whole

__all__ = [
    "ONLINE",
    "STYLE",
    "TARGET",
    "empty_panel",
    "epoch_axis",
    "figure",
    "finish",
    "keys",
    "log_axis",
    "marked",
    "panel_title",
    "save",
    "series",
    "styled",
    "typeset",
    "wrap",
]

# Okabe and Ito's colours: apart for the colour-blind. Dashes and markers tell them apart in grey.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

# The target's line is the wider and its marker hollow, so that an equal online branch, drawn over
# it, hides neither.
TARGET: dict[str, Any] = {
    **{"color": VERMILION, "linestyle": "-", "linewidth": 2.2},
    **{"marker": "o", "markersize": 5.5, "markerfacecolor": "white", "markeredgewidth": 1.2},
}
ONLINE: dict[str, Any] = {
    **{"color": BLUE, "linestyle": (0, (4, 2)), "linewidth": 1.4},
    **{"marker": "s", "markersize": 2.8},
}

STYLE: Any = {  # matplotlib 3.11 types every key; 3.9 none
    "font.family": "DejaVu Sans",  # ships with matplotlib; has the Greek and the superscripts
    "mathtext.fontset": "dejavusans",
    # Hinted letters are up to a tenth wider or narrower from one resolution to the next, so that
    # lines which fit where they are measured would leave the PNG or the vectors.
    "text.hinting": "no_hinting",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "pdf.fonttype": 42,  # TrueType, as journals ask; Type 3 cannot be searched
    "ps.fonttype": 42,
}

# Wraps a function that draws: text takes its size when it is made, not when it is shown.
styled = matplotlib.rc_context(STYLE)

EDGE = 0.08  # inches around the whole and between strips
LINE = 1.25 / 72  # inches that a line is high, for each point of the font's size
_COLOURS = (BLACK, VERMILION, BLUE, GREEN, ORANGE, PURPLE, SKY)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_MARKERS = "osD^vP*X<>"


def series(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of the i-th of several labels; no two of the first 140 agree."""
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "marker": _MARKERS[index % len(_MARKERS)],
    }


def figure(
    panels: int = 1,
    columns: int = 4,
    panel: tuple[float, float] = (2.7, 2.35),
    stacked: int = 1,
) -> tuple[Figure, list[Axes]]:
    """A figure of that many panels of that size in inches, at most ``columns`` in a row.

    With ``stacked`` each of them is that many, one below another, and the list has them in turn. A
    panel on its own gets twice the width. Call :func:`finish` when everything is drawn.
    """
    lines = -(-panels // columns)
    across = -(-panels // lines)  # 4 panels of at most 3 in a row are 2 and 2
    down = lines * stacked
    alone = across == 1
    width = panel[0] * (2 if alone else across)
    height = panel[1] * down * (1.3 if panels * stacked == 1 else 1)
    made = Figure(figsize=(width, height))
    FigureCanvasAgg(made)  # the one that measures text
    grid = made.add_gridspec(down, across)
    cells = [(i // across * stacked + s, i % across) for i in range(panels) for s in range(stacked)]
    drawn = [made.add_subplot(grid[cell]) for cell in cells]
    for axes in drawn:
        # Ticks are made when they are drawn, by whoever draws: the style must be the axes' own.
        axes.tick_params(labelsize=8, grid_alpha=0.25, grid_linewidth=0.6)
    return made, drawn


def panel_title(axes: Axes, text: str) -> None:
    """A panel's title, in lines that end before the neighbour's begin."""
    place, made = axes.get_subplotspec(), axes.figure
    assert place is not None
    assert isinstance(made, Figure)
    room = made.get_size_inches()[0] / place.get_gridspec().ncols - 0.75
    axes.set_title(wrap(made, text, room, 9.5), loc="left")


def finish(made: Figure, key: Sequence[Line2D] = (), title: str = "", note: str = "") -> Figure:
    """Add a title above, and a key and a note beneath; the figure grows by what they take.

    Constrained layout has a strip for a title, but an "outside" legend and a second text beneath
    it would get the same one: theirs is left free by ``rect``.
    """
    width, height = made.get_size_inches()
    room = width - 2 * EDGE
    height += _title_lines(made) * LINE * 9.5
    if title:
        above = made.suptitle(wrap(made, title, room, 11), x=EDGE / width, ha="left", fontsize=11)
        height += _height(above) + EDGE
    below = EDGE
    text = made.text(
        EDGE / width, 0, wrap(made, note, room, 7.5), size=7.5, color="0.3", va="bottom"
    )
    note_at = below
    below += _height(text) + EDGE if note else 0
    legend = _key(made, key, room) if key else None
    legend_at = below
    below += _height(legend) if legend else 0
    total = height + below
    made.set_size_inches(width, total)
    text.set_y(note_at / total)
    if legend:
        legend.set_bbox_to_anchor((0.5, legend_at / total))
    rect = (0, below / total, 1, height / total)
    made.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, rect=rect))
    made.draw_without_rendering()
    made.set_layout_engine("none")  # settled: nothing moves, and saving takes half as long
    return made


def _title_lines(made: Figure) -> int:
    """Lines of the panels' titles beyond the first, of the longest title in each row."""
    more: dict[int, int] = {}
    for axes in made.axes:
        place = axes.get_subplotspec()
        row = place.rowspan.start if place else 0
        more[row] = max(more.get(row, 0), axes.get_title(loc="left").count("\n"))
    return sum(more.values())


def keys(*panels: Axes) -> list[Line2D]:
    """An entry of the key for each name in the panels."""
    entries: dict[str, Line2D] = {}
    for line in (line for axes in panels for line in axes.lines):
        entry = Line2D([], [])
        entry.update_from(line)
        entry.set(markersize=max(line.get_markersize(), 4), markevery=None, label=line.get_label())
        entries.setdefault(str(line.get_label()), entry)
    return [entry for name, entry in entries.items() if not name.startswith("_")]


def _key(made: Figure, handles: Sequence[Line2D], room: float) -> Legend:
    """The key, in as many columns as fit into that many inches."""
    for columns in range(len(handles), 0, -1):
        legend = made.legend(
            handles=list(handles),
            labels=[wrap(made, str(handle.get_label()), room - 0.5, 8.5) for handle in handles],
            loc="lower center",
            bbox_to_anchor=(0.5, 0),
            ncols=columns,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=2.8,
            columnspacing=1.4,
        )
        if columns == 1 or legend.get_window_extent().width <= room * made.dpi:
            break
        legend.remove()
    return legend


def _height(artist: Text | Legend) -> float:
    """Inches from top to bottom."""
    assert artist.figure is not None
    return float(artist.get_window_extent().height / artist.figure.dpi)


def wrap(made: Figure, text: str, room: float, size: float) -> str:
    """Text in lines that fit into ``room`` inches, with exponents set high.

    Lines end at blanks, or after an underscore or an equals sign.
    """
    kept = re.sub(r"\^\([^)]*\)", lambda found: found[0].replace(" ", "\u00a0"), text)
    lines = re.sub(r"(?<=[_=])", "\v", kept).split("\n")  # a blank that is taken out again
    probe = made.text(0, 0, "", fontsize=size)
    letters = max(map(len, lines))
    while letters:
        filled = "\n".join(
            textwrap.fill(line, letters, replace_whitespace=False, break_on_hyphens=False)
            for line in lines
        )
        probe.set_text(typeset(filled.replace("\v", "")))
        wide = probe.get_window_extent().width / made.dpi
        if wide <= room:
            break
        letters = min(letters - 1, int(1.1 * letters * room / wide))
    probe.remove()
    return probe.get_text()


def typeset(text: str) -> str:
    """A label's exponents set high, as in the paper.

    >>> typeset("SimSiam, h(σ) = σ^-0.5")
    'SimSiam, h(σ) = σ$^{\\\\mathrm{-0.5}}$'
    """

    def high(found: re.Match[str]) -> str:
        exponent = found[1]
        return f"$^{{{exponent}}}$" if len(exponent) == 1 else rf"$^{{\mathrm{{{exponent}}}}}$"

    return re.sub(r"\^(\([^)\n]*\)|[-+]?[\w.]+)", high, text.replace("$", r"\$"))


def marked(points: int) -> tuple[int, int]:
    """Which of a line's points get its marker: all of few, about ten of many.

    >>> marked(15), marked(400)
    ((0, 1), (0, 40))
    """
    return 0, max(1, round(points / 10)) if points > 20 else 1


def epoch_axis(axes: Axes, epochs: np.ndarray) -> None:
    """Epochs from 1 on the x axis, whole numbers alone."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    if len(epochs) and min(epochs) == max(epochs):
        axes.set_xlim(min(epochs) - 1, max(epochs) + 1)


def log_axis(axis: Axis) -> None:
    """A logarithmic axis whose numbers are few enough not to meet; call it after the drawing."""
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
    marked = [s * 10.0**d for d in range(-20, 21) for s in (1, 3) if low <= s * 10.0**d <= high]
    if len(marked) > 1:
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=5))
    else:
        axis.set_major_locator(MaxNLocator(nbins=3))


def empty_panel(axes: Axes, text: str) -> None:
    """Words in the middle of a panel that has nothing to draw."""
    axes.text(
        *(0.5, 0.5, text), transform=axes.transAxes, ha="center", va="center", color="0.35", size=8
    )
    axes.grid(False)
    axes.set(xticks=[], yticks=[])


def save(
    made: Figure, folder: Path, name: str, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """``name.png`` (150 dpi) and ``name.pdf`` (fonts embedded) in the folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    # fontTools tells of every glyph that it puts into a PDF.
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    paths = [folder / f"{name}.{kind}" for kind in formats]
    with matplotlib.rc_context(STYLE):
        for path in paths:
            # Without a date the same run gives the same bytes.
            dateless = {"CreationDate": None} if path.suffix == ".pdf" else None
            options = {"dpi": 150, "metadata": dateless, "format": path.suffix[1:]}
            write_whole(path, lambda file, options=options: made.savefig(file, **options))  # type: ignore[misc]
    return paths
