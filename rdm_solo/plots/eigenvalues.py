"""Pictures of spectra: one epoch's, every method's, the variants', and symmetric methods'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rdm_solo.methods.descriptions import METHODS
from rdm_solo.plots.curves import draw_curve, note
from rdm_solo.plots.epochs import ACCURACY, over_epochs
from rdm_solo.plots.style import (
    BLACK,
    GREEN,
    ONLINE,
    TARGET,
    empty_panel,
    figure,
    finish,
    keys,
    log_axis,
    panel_title,
    series,
    styled,
)
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, groups, over_seeds

__all__ = [
    "drawn_in_spectra",
    "drawn_in_symmetric",
    "drawn_in_variants",
    "epoch_picture",
    "spectra",
    "symmetric",
    "variants",
]

CURVES: dict[str, dict[str, Any]] = {
    "filter_curve_directional": {
        **{"color": GREEN, "linestyle": "none", "marker": "x", "markersize": 4.5},
        "label": "filter along the target's eigenvectors",
    },
    "filter_curve": {
        **{"color": BLACK, "linestyle": "-", "marker": "o", "markersize": 3},
        "label": "filter by sorted eigenvalues",
    },
}
G = r"$g(\lambda^z_i)=\sqrt{\lambda^p_i/\lambda^z_i}$"
EMPTY = "all eigenvalues are\nrounding noise"


@styled
def epoch_picture(arrays: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """One epoch's eigenvalues of both branches, and its filter curve (the paper's Figure 4).

    ``arrays`` has ``lam_online``, ``lam_target`` and, if measured, ``filter_curve`` and
    ``filter_curve_directional``, each of shape ``(k,)``.
    """
    made, (left, right) = figure(2, panel=(3.5, 2.7))
    one = {
        name: np.asarray(array, dtype=float)[None]
        for name, array in arrays.items()
        if name.startswith(("lam_", "filter_"))
    }
    draw_eigenvalues(left, one)
    draw_filter(right, one)
    return finish(made, keys(left, right), title)


@styled
def spectra(runs: Sequence[Run], epoch: int | None = None, title: str = "") -> Figure:
    """Eigenvalues of both branches, and the filter curve beneath (the paper's Figures 4 and 8).

    One column for each setting: its last measured epoch, or the given one.
    """
    found = [(group, *group.spectrum(epoch)) for group in groups(runs)]
    shown = [(group, at, arrays) for group, at, arrays in found if arrays]
    if not shown:
        raise ValueError("No run has a spectrum; were diagnostics.every_n_epochs 0?")
    epochs = {at for _, at, _ in shown}
    if len(shown) == 1:
        made, panels = figure(2, panel=(3.5, 2.7))
    else:
        made, panels = figure(len(shown), stacked=2)
    for (group, at, arrays), upper, lower in zip(shown, panels[::2], panels[1::2]):
        draw_eigenvalues(upper, arrays)
        draw_filter(lower, arrays)
        panel_title(upper, group.label if len(epochs) == 1 else f"{group.label}, epoch {at}")
    drawn = [group for group, _, _ in shown]
    unlike = [run for group, at, _ in shown for run in group.runs if not _has(run, at)]
    none = [run for group, _, arrays in found if not arrays for run in group.runs]
    words = note(drawn, {"a spectrum of that epoch": none + unlike})
    if len(epochs) == 1:
        words = f"Epoch {epochs.pop()}. {words}"
    return finish(made, keys(*panels), title, words.strip())


def drawn_in_spectra(everything: Sequence[Group]) -> list[Group]:
    """Those that :func:`spectra` draws."""
    return [group for group in everything if group.spectrum()[1]]


def _has(run: Run, epoch: int) -> bool:
    return "lam_target" in run.spectra and epoch in run.spectra["epoch"]


@styled
def variants(runs: Sequence[Run], title: str = "") -> Figure:
    """Eigenvalues under each filter, online ones and target ones apart (the paper's Figure 6).

    They are those of the projector's outputs, before any filter, so that filters of either branch
    compare. A method's runs without a filter stand in both panels.
    """
    panels_of = _families(groups(runs))
    if not panels_of:
        raise ValueError(
            "No run has a filter; variants compares those of filter=online_... or target_...."
        )
    several = len({dataset for _, dataset, _ in panels_of}) > 1
    styles = _styles(group.variant for members in panels_of.values() for group in members)
    made, panels = figure(len(panels_of), columns=2, panel=(4.0, 2.9))
    none: list[Run] = []
    for (names, members), axes in zip(panels_of.items(), panels):
        for group in members:
            _, arrays = group.spectrum()
            if "lam_projection" in arrays:
                draw_line(axes, arrays["lam_projection"], group.variant, styles[group.variant])
            else:
                none += group.runs
        panel_title(axes, f"{names[0]}, {names[2]} filters" + (f", {names[1]}" if several else ""))
        index_axes(axes)
    drawn = list({id(g): g for members in panels_of.values() for g in members}.values())
    absent = list({id(run): run for run in none}.values())
    return finish(made, keys(*panels), title, note(drawn, {"a spectrum": absent}))


def drawn_in_variants(everything: Sequence[Group]) -> list[Group]:
    """Those that :func:`variants` draws: filters, and what their method does without one."""
    members = (group for family in _families(everything).values() for group in family)
    found = {id(group): group for group in members if "lam_projection" in group.spectrum()[1]}
    return list(found.values())


def _families(everything: Sequence[Group]) -> dict[tuple[str, str, str], list[Group]]:
    """The groups of each panel: method, data set and the branch that is filtered."""
    found = {}
    kinds = dict.fromkeys((g.method, g.first.dataset) for g in everything if _family(g))
    for method, dataset in kinds:
        same = [g for g in everything if (g.method, g.first.dataset) == (method, dataset)]
        for family in ("online", "target"):
            if any(_family(group) == family for group in same):
                members = [group for group in same if _family(group) in ("", family)]
                found[method, dataset, family] = members
    return found


def _family(group: Group) -> str:
    """The branch whose output a filter changes; "" where there is none."""
    branch = group.first.filter.partition("_")[0]
    return branch if branch in ("online", "target") else ""


@styled
def symmetric(runs: Sequence[Run], title: str = "") -> Figure:
    """SimSiam beside its symmetric forms: accuracy, variance, eigenvalues, and a symmetric
    method's two branches (the paper's Figure 2)."""
    chosen = drawn_in_symmetric(groups(runs))
    if not chosen:
        names = [name for name, described in METHODS.items() if described.symmetric]
        raise ValueError(f"No run is symmetric; this needs one of method={' or '.join(names)}.")
    styles = _styles(group.label for group in chosen)
    made, panels = figure(4, panel=(2.8, 2.6))
    accuracy, variance, eigenvalues, branches = panels
    measured = [c for c in ACCURACY if any(len(g.over_epochs(c).x) for g in chosen)]
    column = measured[0] if measured else "val/acc1"
    over_epochs(accuracy, chosen, column, styles, ACCURACY[column])
    over_epochs(variance, chosen, "feature/variance", styles, "variance of the outputs")
    last = {group.label: group.spectrum()[1] for group in chosen}
    for group in chosen:
        if last[group.label]:
            draw_line(
                eigenvalues, last[group.label]["lam_target"], group.label, styles[group.label]
            )
    index_axes(eigenvalues)
    two = [group for group in chosen if group.first.described.symmetric and last[group.label]]
    two.sort(key=lambda group: list(METHODS).index(group.first.method))
    if two:
        draw_eigenvalues(branches, last[two[0].label], everything=True)
    else:
        empty_panel(branches, "no spectrum of a symmetric run")
    named = f": {two[0].label}" if two else ""
    words = ("accuracy", "feature variance", "eigenvalues", f"two branches{named}")
    for axes, text in zip(panels, words):
        panel_title(axes, text)
    none = [run for g in chosen for run in g.runs if "lam_target" not in run.spectra]
    return finish(
        made,
        keys(*panels),
        title,
        note(chosen, {"a spectrum": none}, thin=True),
    )


def drawn_in_symmetric(everything: Sequence[Group]) -> list[Group]:
    """Those that :func:`symmetric` draws: symmetric methods, and SimSiam with its own predictor."""
    chosen = [group for group in everything if group.first.described.symmetric]
    if not chosen:
        return []
    return [group for group in everything if _own_predictor_alone(group)] + chosen


def _own_predictor_alone(group: Group) -> bool:
    """Whether its own predictor is all that sets the branches apart."""
    described = group.first.described
    own = group.first.chosen_filter.own
    return own and described.predictor and not described.momentum


def _styles(names: Any) -> dict[str, dict[str, Any]]:
    return {name: series(i) for i, name in enumerate(dict.fromkeys(names))}


def draw_line(axes: Axes, stack: np.ndarray, label: str, style: dict[str, Any]) -> None:
    """One group's eigenvalues ``(seeds, k)`` by their index."""
    curve = over_seeds(np.arange(1, stack.shape[1] + 1), above_rounding(stack))
    draw_curve(axes, curve, label, **style)


def draw_eigenvalues(
    axes: Axes, arrays: Mapping[str, np.ndarray], everything: bool = False
) -> None:
    """Eigenvalues of both branches, as many as hold 99.99 % of the target's sum, or all."""
    k = arrays["lam_target"].shape[1]
    m = k if everything else leading(arrays["lam_target"].mean(0))
    for name, style in (("target", TARGET), ("online", ONLINE)):
        if f"lam_{name}" in arrays:
            draw_line(axes, arrays[f"lam_{name}"][:, :m], name, style)
    index_axes(axes)


def index_axes(axes: Axes) -> None:
    """Index below, eigenvalue on a log axis; words where no eigenvalue is left."""
    axes.set(xlabel="index $i$", ylabel=r"eigenvalue $\lambda_i$")
    axes.xaxis.set_major_locator(_Indices(nbins=5, integer=True, min_n_ticks=1))
    if _drawn(axes):
        log_axis(axes.yaxis)
    else:
        empty_panel(axes, EMPTY)


class _Indices(MaxNLocator):
    """Whole numbers from 1 on: no eigenvalue has the index 0."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        return np.unique(np.maximum(super().tick_values(vmin, vmax), 1))


def draw_filter(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    """The filter curve against the target's eigenvalues, by rank and by direction."""
    target = arrays["lam_target"]
    m = leading(target.mean(0))
    lam = over_seeds(np.arange(m), above_rounding(target)[:, :m]).mean
    for name, style in CURVES.items():
        if name in arrays:
            curve = over_seeds(lam, arrays[name][:, :m])
            draw_curve(axes, curve, band=name == "filter_curve", **style)
    axes.set(xlabel=r"target's eigenvalue $\lambda^z_i$", ylabel=G)
    if not _drawn(axes):
        empty_panel(axes, EMPTY if not np.isfinite(lam).any() else "no filter curve")
        return
    log_axis(axes.xaxis)
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])


def _drawn(axes: Axes) -> bool:
    return any(len(np.asarray(line.get_xdata())) for line in axes.lines)


def above_rounding(lam: np.ndarray) -> np.ndarray:
    """Eigenvalues ``(..., k)``, NaN for rounding noise, which a log axis would magnify.

    >>> above_rounding(np.array([0.5, 1e-18, 0.0]))
    array([0.5, nan, nan])
    """
    largest = np.nan_to_num(lam).max(-1, keepdims=True, initial=0.0)
    noise = largest * lam.shape[-1] * np.finfo(np.float64).eps
    return np.where(lam > noise, lam, np.nan)


def leading(lam: np.ndarray, share: float = 0.9999) -> int:
    """How many of the leading eigenvalues hold more than that share of the sum, as in Figure 4.

    >>> leading(np.array([0.9, 0.0999, 0.0001, 0.0]))
    2
    """
    lam = np.nan_to_num(np.maximum(lam, 0.0))
    # Rounding of the sum must not move the limit by one.
    missing = np.cumsum(lam) < (share - 1e-9) * lam.sum()
    return min(int(missing.sum()) + 1, len(lam))
