"""Pictures of spectra: one epoch's, every method's, the variants', and symmetric methods'."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.messages import UserError
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.plots import style
from rdm_solo.plots.curves import (
    draw_curve,
    looks,
    note,
    outputs_of,
    share_limits,
    within_blocks,
)
from rdm_solo.plots.epochs import over_epochs
from rdm_solo.plots.exponents import accuracy, row_of
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, groups, over_seeds
from rdm_solo.spectra.comparison import leading
from rdm_solo.spectra.matrices import noise_floor

CURVES: dict[str, dict[str, Any]] = {
    "filter_curve_directional": {
        **{"color": style.GREEN, "linestyle": "none", "marker": "x", "markevery": 1},
        "label": "filter along the target's eigenvectors",
    },
    "filter_curve": {
        **{"color": style.BLACK, "linestyle": "-", "marker": "o", "markersize": 3},
        "label": "filter by sorted eigenvalues",
    },
}
# The branch whose output a filter changes, in words.
SIDES = {"online": "online filters", "target": "target filters", "": "no filter"}
G = r"$g(\lambda^z_i)=\sqrt{\lambda^p_i/\lambda^z_i}$"


@style.styled
def epoch_picture(arrays: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """One epoch's eigenvalues of both branches, and its filter curve (the paper's Figure 4).

    ``arrays`` has ``lam_online``, ``lam_target`` and, if measured, ``filter_curve`` and
    ``filter_curve_directional``, each of shape ``(k,)``.
    """
    made, (left, right) = style.figure(2, panel=(3.5, 2.7))
    one = {
        name: np.asarray(array, dtype=float)[None]
        for name, array in arrays.items()
        if name.startswith(("lam_", "filter_"))
    }
    _draw_eigenvalues(left, one)
    _draw_filter(right, one)
    return style.finish(made, title)


@style.styled
def spectra(runs: Sequence[Run]) -> Figure:
    """Eigenvalues of both branches, and the filter curve beneath (the paper's Figures 4 and 8).

    One column for each setting: its last measured epoch.
    """
    found = [(group, *group.spectrum()) for group in groups(runs)]
    shown = [(group, at, arrays) for group, at, arrays in found if arrays]
    if not shown:
        raise UserError("No run has a spectrum; was diagnostics.every_n_epochs=0?")
    if len(shown) == 1:
        made, panels = style.figure(2, panel=(3.5, 2.7))
    else:
        made, panels = style.figure(len(shown), stacked=2)
    for (group, at, arrays), upper, lower in zip(shown, panels[::2], panels[1::2]):
        _draw_eigenvalues(upper, arrays)
        _draw_filter(lower, arrays)
        style.panel_title(upper, f"{group.label}, epoch {at}")
    kinds = [outputs_of(group) for group, _, _ in shown]
    for kind in set(kinds):
        share_limits(axes for own, axes in zip(kinds, panels[::2]) if own == kind)
    lacking = [
        run
        for group, at, _ in found
        for run in group.runs
        if at not in run.spectra.get("epoch", ())
    ]
    words = note([group for group, _, _ in shown], "a spectrum of that epoch", lacking)
    return style.finish(made, note=words)


@style.styled
def variants(runs: Sequence[Run]) -> Figure:
    """Eigenvalues under each filter, online ones and target ones apart (the paper's Figure 6).

    They are those of the projector's outputs, before any filter, so that filters of either branch
    compare. A method's runs without a filter stand in both panels.
    """
    everything = groups(runs)
    drawn = drawn_in_variants(everything)
    if not drawn and any(map(_side, everything)):
        raise UserError("No run with a filter has a spectrum; was diagnostics.every_n_epochs=0?")
    if not drawn:
        raise UserError(
            "No run has a filter; variants compares those of filter=online_... or target_...."
        )
    rows = {row_of(group) for group in drawn}
    several = len({dataset for _, dataset in rows}) > 1
    keyed, look = len(everything) > style.SERIES, looks(everything)
    parts = []
    for side, words in SIDES.items():
        own = [group for group in drawn if _side(group) == side]
        beside = {row_of(group) for group in own if side and not keyed}
        shown = own + [g for g in drawn if not _side(g) and row_of(g) in beside]
        if own and (side or keyed):
            parts += [(words, *part) for part in within_blocks(everything, shown, row_of)]
    made, panels = style.figure(len(parts), columns=2, panel=(5.2 if keyed else 4.0, 2.9))
    for (words, (method, dataset), members), axes in zip(parts, panels):
        for group in members:
            label = group.variant if len(rows) == 1 else group.label
            lam = group.spectrum()[1]["lam_projection"]
            _draw_line(axes, lam, {**look[group.label], "label": label})
        style.panel_title(axes, f"{method}, {words}" + (f", {dataset}" if several else ""))
        _index_axes(axes)
        if keyed:
            style.key_beside(axes)
    share_limits(panels)
    lacking = [run for run in runs if "lam_projection" not in run.spectra]
    return style.finish(made, note=note(drawn, "a spectrum", lacking))


def drawn_in_variants(everything: Sequence[Group]) -> list[Group]:
    """Those that :func:`variants` draws: filters, and what their method does without one."""
    measured = [group for group in everything if "lam_projection" in group.spectrum()[1]]
    kinds = {row_of(group) for group in measured if _side(group)}
    return [group for group in measured if row_of(group) in kinds]


def _side(group: Group) -> str:
    """The branch whose output a filter changes; "" where there is none."""
    branch = group.first.filter.partition("_")[0]
    return branch if branch in ("online", "target") else ""


@style.styled
def symmetric(runs: Sequence[Run]) -> Figure:
    """SimSiam beside its symmetric forms: accuracy, variance, eigenvalues, and a symmetric
    method's two branches (the paper's Figure 2)."""
    everything = groups(runs)
    chosen = drawn_in_symmetric(everything)
    if not chosen:
        names = [name for name, described in METHODS.items() if described.symmetric]
        raise UserError(f"No run is symmetric; this needs one of method={' or '.join(names)}.")
    # More settings than looks would share colours; then those that are drawn have colours anew.
    look = looks(everything if len(everything) <= style.SERIES else chosen)
    made, panels = style.figure(4, panel=(2.8, 2.6))
    for axes, column in zip(panels, (accuracy(chosen), "feature/variance")):
        over_epochs(axes, [(group, column, look[group.label]) for group in chosen])
    measured = {g.label: arrays for g in chosen if (arrays := g.spectrum()[1])}
    for label, arrays in measured.items():
        _draw_line(panels[2], arrays["lam_target"], look[label])
    two = [g for g in chosen if g.first.described.symmetric and g.label in measured]
    two.sort(key=lambda group: list(METHODS).index(group.first.method))
    if two:
        _draw_eigenvalues(panels[3], measured[two[0].label], everything=True)
        style.panel_title(panels[3], f"two branches: {two[0].label}")
    for axes in panels[2:]:
        _index_axes(axes, "no spectrum of a symmetric run")
    lacking = [run for group in chosen for run in group.runs if "lam_target" not in run.spectra]
    return style.finish(made, note=note(chosen, "a spectrum", lacking))


def drawn_in_symmetric(everything: Sequence[Group]) -> list[Group]:
    """Those that :func:`symmetric` draws: symmetric methods, and SimSiam with its own predictor;
    of more than a panel may have, the first."""
    chosen = [group for group in everything if group.first.described.symmetric]
    if not chosen:
        return []
    own = [
        group
        for group in everything
        if group.first.chosen_filter.own
        and group.first.described.asymmetry == "predictor"
        and not group.first.described.momentum
    ]
    return (own[: style.SERIES // 2] + chosen)[: style.SERIES]


def _draw_line(axes: Axes, stack: np.ndarray, look: dict[str, Any]) -> None:
    """One group's eigenvalues ``(seeds, k)`` by their index."""
    draw_curve(axes, over_seeds(np.arange(1, stack.shape[1] + 1), above_rounding(stack)), **look)


def _draw_eigenvalues(
    axes: Axes, arrays: Mapping[str, np.ndarray], everything: bool = False
) -> None:
    """Eigenvalues of both branches, as many as hold 99.99 % of the target's sum, or all."""
    m = arrays["lam_target"].shape[1] if everything else _leading(arrays["lam_target"])
    for name, look in (("target", style.TARGET), ("online", style.ONLINE)):
        if f"lam_{name}" in arrays:
            _draw_line(axes, arrays[f"lam_{name}"][:, :m], {**look, "label": name})
    _index_axes(axes)


def _index_axes(axes: Axes, empty: str = "all eigenvalues are\nrounding noise") -> None:
    """Index below, eigenvalue on a log axis; words where no eigenvalue is left."""
    axes.set(xlabel="index $i$", ylabel=r"eigenvalue $\lambda_i$")
    if axes.lines:
        axes.set_xticks(np.unique(np.linspace(1, axes.dataLim.x1, 5).astype(int)))
        style.log_axis(axes.yaxis)
    else:
        style.empty_panel(axes, empty)


def _draw_filter(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    """The filter curve against the target's eigenvalues, by rank and by direction."""
    target = arrays["lam_target"]
    m = _leading(target)
    lam = over_seeds(np.arange(m), above_rounding(target)[:, :m]).mean
    for name, look in CURVES.items():
        if name in arrays:
            curve = over_seeds(lam, arrays[name][:, :m])
            draw_curve(axes, curve, band=name == "filter_curve", **look)
    axes.set(xlabel=r"target's eigenvalue $\lambda^z_i$", ylabel=G)
    if not axes.lines:
        style.empty_panel(axes, "no filter curve")
        return
    style.log_axis(axes.xaxis)
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])


def _leading(lam: np.ndarray) -> int:
    """How many eigenvalues of the mean spectrum hold 99.99 % of its sum."""
    return leading(torch.from_numpy(np.nan_to_num(lam.mean(0))))


def above_rounding(stack: np.ndarray) -> np.ndarray:
    """Eigenvalues ``(seeds, k)``, NaN for rounding noise, which a log axis would magnify.

    >>> above_rounding(np.array([[0.5, 1e-18, 0.0]]))
    array([[0.5, nan, nan]])
    """
    floors = [float(noise_floor(torch.from_numpy(np.nan_to_num(lam)))) for lam in stack]
    return np.where(stack > np.array(floors)[:, None], stack, np.nan)
