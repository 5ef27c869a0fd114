"""A figure for each question: differences between settings with their 95 % intervals."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rdm_solo.plots import style
from studies.mechanism.plan import DATA, PLAN, Cell
from studies.mechanism.verdicts import (
    ALPHAS,
    BATCHES,
    FILTERS,
    MATCHED,
    METHODS,
    MOMENTA,
    Comparison,
    advantage,
    compare,
    pairs,
    test,
)
from studies.table import Row

COLOURS = {"digits": style.GREY, "textures": style.ORANGE, "angles": style.GREEN}
LABELS = {
    "linear": "difference in linear accuracy (points)",
    "erank": "difference in effective rank",
    "slope": "difference in slope",
}


class Panel(NamedTuple):
    """Rows of comparisons, each with at most one comparison for each data set."""

    title: str
    column: str
    rows: Mapping[str, Sequence[Comparison]]


def _panel(names: Iterable[tuple[str, str, str]], column: str = "linear", title: str = "") -> Panel:
    """Return a panel from rows' labels and the two settings that each compares."""
    rows = {
        label: [compare(name, other, data, column) for data in DATA] for label, name, other in names
    }
    return Panel(title, column, rows)


def _advantage(method: str) -> Panel:
    """Return the panel of σ^-0.5 minus the learned predictor on the digits, by length."""
    lengths = PLAN["epochs"]["schedule"]["digits"]
    cells = {f"{n} epochs": Cell(f"{method} -0.5", "digits", n) for n in lengths}
    return Panel(method, "linear", {name: [advantage(cell)] for name, cell in cells.items()})


_ARMS = [("target σ^-0.5", "power", "identity"), *((arm, arm, "identity") for arm in MATCHED)]
_STOPPED = [
    ("target σ^-0.5, target stopped", "power", "identity"),
    ("online σ, target stopped", "online", "identity"),
    ("σ^-1 on both, either stopped", "both", "identity"),
    ("target σ^-0.5, online stopped", "power, online stopped", "identity"),
    ("online σ, online stopped", "online, online stopped", "identity"),
    ("target σ^-0.5, none stopped", "power, none stopped", "identity, none stopped"),
    ("online σ, none stopped", "online, none stopped", "identity, none stopped"),
    ("σ^-1 on both, none stopped", "both, none stopped", "identity, none stopped"),
]
_LOSSES = [(f"α = {alpha}", f"mse {alpha}", f"iso {alpha}") for alpha in ALPHAS]
_SPECTRA = [
    (f"batch {n}, momentum {m}", f"batch {n}, momentum {m}", f"batch {n}, momentum 0")
    for n in BATCHES
    for m in MOMENTA
]
PANELS = {
    "sufficient": [_panel(_ARMS), _panel(_ARMS, "erank")],
    "necessary": [_panel(_STOPPED), _panel(_STOPPED, "erank")],
    "rate": [_panel(_LOSSES, "slope"), _panel(_LOSSES, "erank")],
    "schedule": [_advantage(method) for method in METHODS],
    "spectrum": [_panel(_SPECTRA), _panel(_SPECTRA, "erank")],
    "recommended": [
        _panel(
            [(f"σ^{p}", f"{method} {p}", f"{method} learnable") for p in FILTERS[1:]], title=method
        )
        for method in METHODS
    ],
}


@style.styled
def figure(rows: Sequence[Row], panels: Sequence[Panel]) -> Figure:
    """Draw the mean difference of each comparison and its interval."""
    tests = {
        each: test(rows, each)
        for panel in panels
        for each in itertools.chain(*panel.rows.values())
        if len(pairs(rows, each)) > 1
    }
    names = [name for name, row in panels[0].rows.items() if any(each in tests for each in row)]
    drawing = Figure(figsize=(8.2, 0.38 + 0.23 * len(names)), layout="constrained")
    grid = drawing.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, panel in zip(grid, panels):
        for y, name in enumerate(names):
            for each in filter(tests.__contains__, panel.rows[name]):
                result = tests[each]
                at = y + (list(DATA).index(each.cell.data) - 1) * 0.22
                look = {"color": COLOURS[each.cell.data]}
                ax.plot([result.low, result.high], [at, at], linewidth=1.3, **look)
                ax.plot([result.mean], [at], "o", markersize=3.6, **look)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set(title=panel.title, xlabel=LABELS[panel.column])
        ax.grid(axis="x", color="0.88", linewidth=0.6)
        ax.grid(visible=False, axis="y")
    grid[0].set_yticks(range(len(names)), [style.typeset(name) for name in names])
    grid[0].set_ylim(len(names) - 0.5, -0.5)
    shown = [data for data in DATA if any(each.cell.data == data for each in tests)]
    handles = [Line2D([], [], color=COLOURS[data], marker="o", label=data) for data in shown]
    drawing.legend(handles=handles, loc="outside right upper")
    drawing.draw_without_rendering()  # `plots.save` expects a final layout
    return drawing
