"""How every picture looks: colours, sizes, axes, and the places of titles, key and note.

Pictures are matplotlib ``Figure`` objects that no window and no ``pyplot`` knows of, so that they
can be drawn in any process and are freed with their last name.
"""

import functools
import io
import logging
import re
import textwrap
from collections.abc import Iterable, Sequence
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
    "pdf.fonttype": 42,  # TrueType, as journals ask; Type 3 cannot be searched
}

# Wraps a function that draws: text takes its size when it is made, not when it is shown.
styled = matplotlib.rc_context(STYLE)

# Series in a panel, at most: more cannot be told apart.
SERIES = 8
# Letters of a line in a panel's own key, and their size in points.
KEY_LETTERS, KEY_SIZE = 30, 7.0

_COLOURS = (BLACK, VERMILION, BLUE, GREEN, ORANGE, PURPLE, SKY)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_MARKERS = "osD^vP*X<>"


def looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A look for each name, with the name as its label; no two of the first 140 agree."""
    return {
        name: {
            "color": _COLOURS[i % len(_COLOURS)],
            "linestyle": _DASHES[i % len(_DASHES)],
            "marker": _MARKERS[i % len(_MARKERS)],
            "label": name,
        }
        for i, name in enumerate(dict.fromkeys(names))
    }


class _NotebookFigure(Figure):
    """A figure that a notebook shows although ``pyplot`` knows nothing of it."""

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
    """A figure of that many panels of that size in inches, at most ``columns`` in a row.

    With ``stacked`` each of them is that many, one below another, and the list has them in turn. A
    panel on its own is half as wide again. Call :func:`finish` when everything is drawn.
    """
    lines = -(-panels // columns)
    across = -(-panels // lines)  # 4 panels of at most 3 in a row are 2 and 2
    down = lines * stacked
    width = panel[0] * (1.5 if across == 1 else across)
    height = panel[1] * down * (1.3 if panels * stacked == 1 else 1)
    made = _NotebookFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)  # the one that measures text
    # The key belongs to a figure inside: constrained layout gives a key and a note of the same
    # figure one place (matplotlib 3.11).
    inner = made.add_subfigure(made.add_gridspec(1, 1)[0])
    drawn = [
        inner.add_subplot(down, across, (i // across * stacked + s) * across + i % across + 1)
        for i in range(panels)
        for s in range(stacked)
    ]
    for axes in drawn:
        # Ticks are made when they are drawn, by whoever draws: the style must be the axes' own.
        axes.tick_params(labelsize=8, grid_alpha=0.25, grid_linewidth=0.6)
    return made, drawn


def panel_title(axes: Axes, text: str) -> None:
    """A panel's title, in lines that end before the neighbour's begin."""
    axes.set_title(wrap(text, axes.bbox.width / axes.figure.dpi, 9.5), loc="left")


def key_beside(axes: Axes, of: Axes | None = None) -> None:
    """A panel's own key at its right; or, in a panel with nothing else, the key to another's lines.

    A label has two lines at most, so that eight of them are no higher than a panel.
    """
    lines, labels = (of or axes).get_legend_handles_labels()
    room = KEY_LETTERS * letter(KEY_SIZE)
    names = [wrap(shortened(label, 2 * KEY_LETTERS - 4), room, KEY_SIZE) for label in labels]
    if of is not None:
        axes.set(xticks=[], yticks=[])
        axes.set_axis_off()
    if lines:
        axes.legend(
            *(lines, names),
            loc="upper left",
            bbox_to_anchor=(1 if of is None else -0.2, 1.04),
            fontsize=KEY_SIZE,
            labelspacing=0.3,
        )


def shortened(text: str, letters: int) -> str:
    """Text without its middle where it is longer: names of settings differ at their ends.

    >>> shortened("a_name_that_is_long_1", 11)
    'a_nam…ong_1'
    """
    half = letters // 2
    return text if len(text) <= letters else f"{text[:half]}…{text[-half:]}"


def finish(made: Figure, title: str = "", note: str = "", key: bool = True) -> Figure:
    """Add a title above, and beneath a ``key`` of the panels' labels that have no key of their own,
    and a note; the figure grows by what they take."""
    width, height = made.get_size_inches()
    if title:
        made.suptitle(wrap(title, width, 11), x=0.08 / width, ha="left", fontsize=11)
    if note:
        made.set_label(note)  # as it is, for a page that has it as text
        words = wrap(note, width, 7.5)
        made.supxlabel(words, x=0.08 / width, ha="left", fontsize=7.5, color="0.3")
    labelled = (a.get_legend_handles_labels() for a in made.axes if a.get_legend() is None)
    keyed = {label: line for lines, labels in labelled for line, label in zip(lines, labels)}
    if key and keyed:
        names = [wrap(label, width - 0.6, 8.5) for label in keyed]
        longest = max(len(line) for name in names for line in name.split("\n"))
        columns = max(1, int(width / (longest * letter(8.5) + 0.6)))
        made.subfigs[0].legend(keyed.values(), names, loc="outside lower center", ncols=columns)
    # Laid out with room to spare, then cut to panels as high as they were without any words.
    panel = made.axes[0]
    before = panel.bbox.height
    made.set_size_inches(width, height + 20)
    made.draw_without_rendering()
    rows = panel.get_gridspec().nrows  # type: ignore[union-attr]
    made.set_size_inches(width, height + 20 - rows * (panel.bbox.height - before) / made.dpi)
    made.draw_without_rendering()
    made.set_layout_engine("none")  # settled: nothing moves, and saving takes half as long
    return made


def letter(size: float) -> float:
    """Inches that a letter of that size in points takes on average, with some to spare."""
    return 0.56 * size / 72


def wrap(text: str, room: float, size: float) -> str:
    """Text in lines that fit into ``room`` inches, with exponents set high."""
    kept = re.sub(r"\^\([^)]*\)", lambda found: found[0].replace(" ", "\u00a0"), text)
    letters = int(room / letter(size))
    lines = [textwrap.fill(line, letters, break_on_hyphens=False) for line in kept.split("\n")]
    return typeset("\n".join(lines))


def typeset(text: str) -> str:
    """A label's exponents set high, as in the paper.

    >>> typeset("SimSiam, h(σ) = σ^-0.5")
    'SimSiam, h(σ) = σ$^{\\\\mathrm{-0.5}}$'
    """

    def high(found: re.Match[str]) -> str:
        exponent = found[1]
        return f"$^{{{exponent}}}$" if len(exponent) == 1 else rf"$^{{\mathrm{{{exponent}}}}}$"

    return re.sub(r"\^(\([^)\n]*\)|[-+]?[\w.]+)", high, text.replace("$", r"\$"))


def marked(points: int) -> int:
    """Every how many points a line has a marker, so that it has 20 at most."""
    return 1 + points // 20


def epoch_axis(axes: Axes) -> None:
    """Epochs on the x axis: whole numbers, from 1."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(_FromOne(nbins=5, integer=True, min_n_ticks=1))


class _FromOne(MaxNLocator):
    def tick_values(self, vmin: float, vmax: float) -> Any:
        return np.unique(np.maximum(super().tick_values(vmin, vmax), 1))


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


@styled
def save(
    made: Figure, folder: Path, name: str, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """``name.png`` (150 dpi) and ``name.pdf`` (fonts embedded) in the folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    # fontTools tells of every glyph that it puts into a PDF.
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    paths = [folder / f"{name}.{kind}" for kind in formats]
    for path in paths:
        # Without a date the same run gives the same bytes.
        dateless = {"CreationDate": None} if path.suffix == ".pdf" else None
        options: Any = {"dpi": 150, "metadata": dateless, "format": path.suffix[1:]}
        write_whole(path, functools.partial(made.savefig, **options))
    return paths


@styled
def pixels(made: Figure) -> np.ndarray:
    """The figure as bytes of shape ``(height, width, 3)``."""
    canvas: Any = FigureCanvasAgg(made)
    canvas.draw()
    image: np.ndarray = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    return image
