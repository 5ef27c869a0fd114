"""Figures of spectra: one epoch, all settings, filters against each other, symmetric methods."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.plots import epochs, style
from rdm_solo.plots.across_settings import accuracy, panel_row
from rdm_solo.plots.plot import Groups, Plot
from rdm_solo.runs.groups import Group, over_seeds
from rdm_solo.spectra.comparison import leading
from rdm_solo.spectra.ranks import noise_floor

CURVES = {
    "filter_curve_directional": style.look(
        "filter along the target's eigenvectors", style.GREY, "none", "x", markevery=1
    ),
    "filter_curve": style.look(
        "filter by sorted eigenvalues", style.BLACK, marker="o", markersize=3
    ),
}


@style.styled
def epoch_picture(arrays: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """Draw one epoch's eigenvalues of both branches and its filter curve (the paper's Figure 4).

    ``arrays`` has ``lam_online``, ``lam_target`` and, if measured, ``filter_curve`` and
    ``filter_curve_directional``, each of shape ``(k,)``.
    """
    figure, (left, right) = style.figure(2)
    one_seed = {name: np.asarray(array, float)[None] for name, array in arrays.items()}
    _draw_branches(left, one_seed)
    _draw_filter(right, one_seed)
    return style.finish(figure, title)


@partial(
    Plot,
    title="Eigenvalues of both branches, and the filter between them",
    caption="Left: eigenvalues in descending order. The branch with the higher tail uses more "
    "directions. Right: the filter between the branches, g = √(λ_p/λ_z). If it rises with λ_z, it "
    "is low-pass: it damps small eigenvalues. The line pairs sorted eigenvalues, so it also rises "
    "if the target's spectrum is merely flatter. The crosses follow the target's eigenvectors, "
    "which is the stricter test.",
    needs=epochs.DIAGNOSTICS,
    paper="Figures 4 and 8",
    spectra=True,
)
def spectra(groups: Groups, looks: style.Looks) -> Figure:
    figure, panels = style.figure(2 * len(groups))
    for group, left, right in zip(groups, panels[::2], panels[1::2]):
        epoch, arrays = group.spectrum()
        _draw_branches(left, arrays)
        _draw_filter(right, arrays)
        style.panel_title(left, f"{group.label}, epoch {epoch}")
    epochs.share_limits(panels[::2], map(epochs.rank_scale, groups))
    return figure


def _filters(all_groups: Groups) -> list[Group]:
    """Return the settings with a filter, and settings of the same methods without one."""
    if len(all_groups) == 1:
        return []
    rows = set()
    for group in all_groups:
        run = group.first
        if run.filter.startswith(("online_", "target_")) and run.has_spectra():
            rows.add(panel_row(group))
    return [group for group in all_groups if panel_row(group) in rows]


@partial(
    Plot,
    title="Eigenvalues of the variants",
    caption="Eigenvalues of the projector's outputs before any filter, which makes online and "
    "target filters comparable. The slower they fall, the more directions are used.",
    needs="spectra of several settings, one of them with filter=online_... or target_...",
    paper="Figure 6",
    choose=_filters,
    spectra=True,
)
def variants(groups: Groups, looks: style.Looks) -> Figure:
    blocks = epochs.blocks(groups, panel_row)
    figure, panels = style.figure(len(blocks), columns=2)
    for (row, members), axes in zip(blocks, panels):
        for group in members:
            _, arrays = group.spectrum()
            _draw_eigenvalues(axes, arrays["lam_projection"], looks[group.label])
        style.panel_title(axes, ", ".join(row))
        _index_axes(axes)
    epochs.share_limits(panels, [0] * len(panels))
    return figure


def _symmetric(all_groups: Groups) -> list[Group]:
    """Return the settings of symmetric methods, and of methods with a learned predictor."""
    symmetric = []
    learned = []
    for group in all_groups:
        method = group.first.description
        only_predictor = method.asymmetry == "predictor" and not method.momentum
        if method.symmetric:
            symmetric.append(group)
        elif only_predictor and group.first.chosen_filter.unchanged:
            learned.append(group)
    if not symmetric:
        return []
    return [*symmetric, *learned][: style.SERIES]


@partial(
    Plot,
    title="Symmetric against asymmetric",
    caption="Without a predictor, a filter or a second network, both branches have the same "
    "eigenvalues, and only the loss (negatives, decorrelation) can keep the rank up. If the "
    "eigenvalues drop fast, the outputs use few directions, even if their variance is high.",
    needs="a run of a symmetric method, such as method=symsimsiam or vanilla",
    paper="Figure 2",
    choose=_symmetric,
)
def symmetric(groups: Groups, looks: style.Looks) -> Figure:
    figure, panels = style.figure(4, columns=2)
    accuracies, variances, eigenvalues, branches = panels
    for axes, column in ((accuracies, accuracy(groups)), (variances, "feature/variance")):
        for group in groups:
            epochs.draw_column(axes, group, column, looks[group.label])
        epochs.epoch_axes(axes, epochs.axis_label(column))
    for group in groups:
        _, arrays = group.spectrum()
        if not arrays:
            continue
        _draw_eigenvalues(eigenvalues, arrays["lam_target"], looks[group.label])
        if group.first.description.symmetric and not branches.lines:
            _draw_branches(branches, arrays)
            style.panel_title(branches, f"two branches: {group.label}")
    _index_axes(eigenvalues)
    _index_axes(branches)
    return figure


def _draw_eigenvalues(axes: Axes, stack: np.ndarray, look: style.Look) -> None:
    """Draw one setting's eigenvalues ``(seeds, k)`` against their index."""
    index = np.arange(1, stack.shape[1] + 1)
    epochs.draw_curve(axes, over_seeds(index, above_rounding(stack)), look)


def _draw_branches(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    """Draw both branches' leading eigenvalues, up to 99.99 % of the target's sum."""
    lam_target = arrays["lam_target"]
    m = _leading(lam_target)
    _draw_eigenvalues(axes, lam_target[:, :m], style.TARGET)
    _draw_eigenvalues(axes, arrays["lam_online"][:, :m], style.ONLINE)
    _index_axes(axes)


def _index_axes(axes: Axes) -> None:
    """Label axes for eigenvalues by index, with a log y axis."""
    style.integer_axis(axes, "index")
    axes.set_ylabel(r"eigenvalue $\lambda$")
    style.log_axis(axes.yaxis)
    style.mark_empty(axes, "all eigenvalues are\nrounding noise, or not measured")


def _draw_filter(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    """Draw the filter curves, sorted and directional, against the target's eigenvalues."""
    lam_target = arrays["lam_target"]
    m = _leading(lam_target)
    lam = over_seeds(np.arange(m), above_rounding(lam_target)[:, :m]).mean
    for name, look in CURVES.items():
        if name in arrays:
            curve = over_seeds(lam, arrays[name][:, :m])
            epochs.draw_curve(axes, curve, look)
    axes.set(xlabel=r"eigenvalue $\lambda_z$", ylabel=r"filter $g=\sqrt{\lambda_p/\lambda_z}$")
    style.start_at_zero(axes)
    style.log_axis(axes.xaxis)
    style.mark_empty(axes, "no filter curve")


def _leading(lam: np.ndarray) -> int:
    """Return the number of eigenvalues that make up 99.99 % of the mean spectrum."""
    return leading(torch.from_numpy(lam.mean(axis=0)))


def above_rounding(stack: np.ndarray) -> np.ndarray:
    """Replace rounding noise in eigenvalues ``(seeds, k)`` with NaN; a log axis would magnify it.

    >>> above_rounding(np.array([[0.5, 1e-18, 0.0]]))
    array([[0.5, nan, nan]])
    """
    floors = [[noise_floor(torch.from_numpy(lam)).item()] for lam in stack]
    return np.where(stack > floors, stack, np.nan)
