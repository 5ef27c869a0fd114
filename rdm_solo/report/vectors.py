"""A figure as vectors inside the page, in whose colours it is drawn: one drawing for light, dark
and paper. On a narrow screen its key and its panels stand one below another."""

import io
import re
from collections.abc import Iterator
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from rdm_solo.plots import style

# Colours of a figure, and the page's variable that holds each; page.css has their values.
VARIABLES = {
    **{style.BLACK: "black", style.ORANGE: "orange", style.SKY: "sky", style.GREEN: "green"},
    **{style.BLUE: "blue", style.VERMILION: "vermilion", style.PURPLE: "purple"},
    **{"#ffffff": "paper", "#4d4d4d": "grey", "#595959": "grey", "#666666": "grey"},
    **{"#808080": "rule", "#8c8c8c": "rule", "#b0b0b0": "rule"},
}
POINT = 72  # of an inch; matplotlib's vectors count in points, from the top
AIR = 3.0  # points around a piece


class Piece(NamedTuple):
    """A part of a drawing: its ``viewBox``, its width in inches, and whether it is a panel."""

    box: str
    width: float
    panel: bool


class Drawn(NamedTuple):
    """The markup inside of a ``<svg>``, the ``viewBox`` and width of all, and its pieces."""

    markup: str
    box: str
    width: float
    pieces: list[Piece]


@style.styled
def drawn(made: Figure, name: str) -> Drawn:
    """The figure without its note, which the page has as text; its ids begin with the name."""
    below = [text for text in made.texts if text.get_text() == made.get_supxlabel()]
    for note in below:
        note.set_visible(False)
    made.draw_without_rendering()
    found = [
        Piece(_box(made, box), (box.width / made.dpi) + 2 * AIR / POINT, panel)
        for box, panel in _pieces(made)
    ]
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        made.savefig(file, format="svg", metadata={"Date": None})
    width, height = (POINT * side for side in made.get_size_inches())
    for note in below:
        note.set_visible(True)
        height -= POINT * note.get_window_extent().y1 / made.dpi
    return Drawn(
        _inside(file.getvalue().decode(), name), f"0 0 {width:g} {height:.1f}", width, found
    )


def _pieces(made: Figure) -> Iterator[tuple[Bbox, bool]]:
    """The boxes of the common key's entries, then of the panels, in pixels."""
    for inner in made.subfigs:
        for legend in inner.legends:
            for text, line in zip(legend.get_texts(), legend.legend_handles):
                sides = [part.get_window_extent() for part in (text, line) if part is not None]
                yield Bbox.union(sides), False
    for axes in made.axes:
        key = axes.get_legend()
        if key is not None:
            key.set_in_layout(False)
        whole = axes.get_tightbbox()
        if whole is not None and whole.width > 1:
            yield Bbox.union([whole]), True
        if key is not None:
            yield Bbox.union([key.get_window_extent()]), False


def _box(made: Figure, box: Bbox) -> str:
    scale = POINT / made.dpi
    top = POINT * made.get_size_inches()[1] - scale * box.y1
    sides = (scale * box.x0, top, scale * box.width, scale * box.height)
    return "{:.1f} {:.1f} {:.1f} {:.1f}".format(
        *(sides[0] - AIR, sides[1] - AIR, sides[2] + 2 * AIR, sides[3] + 2 * AIR)
    )


def _inside(svg: str, name: str) -> str:
    """What is between the tags, with colours by variable and without what no page needs."""
    svg = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    svg = re.sub(
        r"<metadata>.*?</metadata>|<!--.*?-->|<style[^>]*>.*?</style>", "", svg, flags=re.S
    )
    svg = svg.replace("xlink:href", "href")
    needed = set(re.findall(r"(?:url\(#|href=\"#)([^\")]+)", svg))
    svg = re.sub(
        r' id="([^"]*)"',
        lambda found: f' id="{name}-{found[1]}"' if found[1] in needed else "",
        svg,
    )
    svg = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", _variable, svg, flags=re.I)
    svg = re.sub(r' (?:d|x|y)="[^"]*"', _rounded, svg)
    return re.sub(r"\s*\n\s*", "\n", svg).strip()


def _rounded(found: re.Match[str]) -> str:
    """Coordinates to a hundredth of a point."""
    return re.sub(r"(\.\d\d)\d+", r"\1", found[0])


def _variable(found: re.Match[str]) -> str:
    known = {colour.lower(): variable for colour, variable in VARIABLES.items()}
    variable = known.get(found[0].lower())
    return f"var(--{variable})" if variable else found[0]
