"""Figures of spectra: one epoch's, every setting's, those under filters, and symmetric methods'."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.plots import style
from rdm_solo.plots.curves import blocks, draw_curve, outputs_of, over_epochs, share_limits
from rdm_solo.plots.entry import Groups, Plot, has_spectra
from rdm_solo.plots.epochs import DIAGNOSTICS
from rdm_solo.plots.settings import accuracy, row_of
from rdm_solo.runs.groups import Group, over_seeds
from rdm_solo.spectra.comparison import leading
from rdm_solo.spectra.ranks import noise_floor

CURVES = {
    "filter_curve_directional": style.look(
        "filter along the target's eigenvectors", style.GREEN, "none", "x", markevery=1
    ),
    "filter_curve": style.look(
        "filter by sorted eigenvalues", style.BLACK, marker="o", markersize=3
    ),
}
G = r"$g(\lambda^z_i)=\sqrt{\lambda^p_i/\lambda^z_i}$"


@style.styled
def epoch_picture(arrays: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """Draw one epoch's eigenvalues of both branches and its filter curve (the paper's Figure 4).

    ``arrays`` has ``lam_online``, ``lam_target`` and, if measured, ``filter_curve`` and
    ``filter_curve_directional``, each of shape ``(k,)``.
    """
    figure, (left, right) = style.figure(2, panel=(3.5, 2.7))
    stacks = {
        name: np.asarray(array, dtype=float)[None]
        for name, array in arrays.items()
        if name.startswith(("lam_", "filter_"))
    }
    _draw_branches(left, stacks)
    _draw_filter(right, stacks)
    return style.finish(figure, title)


@partial(
    Plot,
    section="branches",
    title="Eigenvalues of both branches and the filter curve",
    caption="Against the index i: the eigenvalues in descending order on a log axis. The branch "
    "with the higher tail uses more directions. Against the target's eigenvalue: the filter "
    "between the branches, g = √(λ_p/λ_z). A curve that rises to the right is low-pass: large "
    "eigenvalues pass, small ones are damped. The line pairs sorted eigenvalues and rises wherever "
    "the target's spectrum is flatter, whatever its directions. The crosses follow the target's "
    "own eigenvectors and are the stricter test.",
    needs=DIAGNOSTICS,
    paper="Figures 4 and 8",
    measured=has_spectra,
)
def spectra(drawn: Groups, looks: style.Looks) -> Figure:
    if len(drawn) == 1:
        figure, panels = style.figure(2, panel=(3.5, 2.7))
    else:
        figure, panels = style.figure(len(drawn), stacked=2)
    for group, upper, lower in zip(drawn, panels[::2], panels[1::2]):
        epoch, arrays = group.spectrum()
        _draw_branches(upper, arrays)
        _draw_filter(lower, arrays)
        style.panel_title(upper, f"{group.label}, epoch {epoch}")
    share_limits(panels[::2], [outputs_of(group) for group in drawn])
    return figure


def _branch(group: Group) -> str:
    """Return the branch that a setting filters, or an empty string."""
    branch = group.first.filter.partition("_")[0]
    return branch if branch in ("online", "target") else ""


def _filters(everything: Groups) -> list[Group]:
    """Return the settings with a filter, and those of the same methods without one."""
    rows = {row_of(group) for group in everything if _branch(group) and has_spectra(group.first)}
    several = len(everything) > 1
    return [group for group in everything if row_of(group) in rows and several]


@partial(
    Plot,
    section="branches",
    title="Eigenvalues of the variants",
    caption="Eigenvalues of the projector's outputs before any filter, so that online and target "
    "filters can be compared. The slower they fall, the more directions are used.",
    needs="several settings, one with filter=online_... or target_..., and their spectra",
    paper="Figure 6",
    choose=_filters,
    measured=lambda run: has_spectra(run) and "lam_projection" in run.spectra,
)
def variants(drawn: Groups, looks: style.Looks) -> Figure:
    rows = {row_of(group) for group in drawn}
    parts = []
    for branch in ("online", "target"):
        filtered = {row_of(group) for group in drawn if _branch(group) == branch}
        beside = [g for g in drawn if _branch(g) in (branch, "") and row_of(g) in filtered]
        parts += [(branch, *part) for part in blocks(beside, row_of)]
    figure, panels = style.figure(len(parts), columns=2, panel=(4.0, 2.9))
    for (branch, (method, dataset), members), axes in zip(parts, panels):
        for group in members:
            label = group.variant if len(rows) == 1 else group.label
            lam = group.spectrum()[1]["lam_projection"]
            _draw_eigenvalues(axes, lam, {**looks[group.label], "label": label})
        where = f", {dataset}" if len({name for _, name in rows}) > 1 else ""
        style.panel_title(axes, f"{method}, {branch} filters{where}")
        _index_axes(axes)
    share_limits(panels, [0] * len(panels))
    return figure


def _symmetric(everything: Groups) -> list[Group]:
    """Return the settings of symmetric methods, and of SimSiam with its own predictor."""
    chosen = [group for group in everything if group.first.described.symmetric]
    if not chosen:
        return []
    simsiam = [
        group
        for group in everything
        if group.first.chosen_filter.own
        and group.first.described.asymmetry == "predictor"
        and not group.first.described.momentum
    ]
    return (simsiam[: style.SERIES // 2] + chosen)[: style.SERIES]


@partial(
    Plot,
    section="branches",
    title="Symmetric against asymmetric",
    caption="Where nothing makes the branches' outputs differ (no predictor, filter or other "
    "network), their eigenvalues coincide, and only the loss (negatives, decorrelation) can keep "
    "the rank up. Where eigenvalues drop fast, the outputs use few directions, whether the "
    "variance is high or low.",
    needs="a run of a symmetric method, such as method=symsimsiam or vanilla",
    paper="Figure 2",
    choose=_symmetric,
)
def symmetric(drawn: Groups, looks: style.Looks) -> Figure:
    figure, panels = style.figure(4, panel=(2.8, 2.6))
    for axes, column in zip(panels, (accuracy(drawn), "feature/variance")):
        over_epochs(axes, [(group, column, looks[group.label]) for group in drawn])
    measured = [group for group in drawn if group.spectrum()[0]]
    for group in measured:
        _draw_eigenvalues(panels[2], group.spectrum()[1]["lam_target"], looks[group.label])
    for group in [group for group in measured if group.first.described.symmetric][:1]:
        _draw_branches(panels[3], group.spectrum()[1])
        style.panel_title(panels[3], f"two branches: {group.label}")
    for axes in panels[2:]:
        _index_axes(axes, "no spectrum of a symmetric run")
    return figure


def _draw_eigenvalues(axes: Axes, stack: np.ndarray, look: style.Look) -> None:
    """Draw one setting's eigenvalues ``(seeds, k)`` by their index."""
    draw_curve(axes, over_seeds(np.arange(1, stack.shape[1] + 1), above_rounding(stack)), look)


def _draw_branches(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    """Draw both branches' eigenvalues, as many as hold 99.99 % of the target's sum."""
    m = _leading(arrays["lam_target"])
    for name, look in (("lam_target", style.TARGET), ("lam_online", style.ONLINE)):
        if name in arrays:
            _draw_eigenvalues(axes, arrays[name][:, :m], look)
    _index_axes(axes)


def _index_axes(axes: Axes, empty: str = "all eigenvalues are\nrounding noise") -> None:
    """Label eigenvalues over their index, on a log axis; say so where none is left."""
    axes.set(xlabel="index $i$", ylabel=r"eigenvalue $\lambda_i$")
    if axes.lines:
        axes.set_xticks(np.unique(np.linspace(1, axes.dataLim.x1, 5).astype(int)))
        style.log_axis(axes.yaxis)
    else:
        style.empty_panel(axes, empty)


def _draw_filter(axes: Axes, arrays: Mapping[str, np.ndarray]) -> None:
    """Draw the filter curve over the target's eigenvalues, by rank and by direction."""
    target = arrays["lam_target"]
    m = _leading(target)
    lam = over_seeds(np.arange(m), above_rounding(target)[:, :m]).mean
    for name, look in CURVES.items():
        if name in arrays:
            draw_curve(axes, over_seeds(lam, arrays[name][:, :m]), look)
    axes.set(xlabel=r"target's eigenvalue $\lambda^z_i$", ylabel=G)
    if not axes.lines:
        style.empty_panel(axes, "no filter curve")
        return
    style.log_axis(axes.xaxis)
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])


def _leading(lam: np.ndarray) -> int:
    """Return how many eigenvalues of the mean spectrum hold 99.99 % of its sum."""
    return leading(torch.from_numpy(np.nan_to_num(lam.mean(0))))


def above_rounding(stack: np.ndarray) -> np.ndarray:
    """Replace rounding noise in eigenvalues ``(seeds, k)`` by NaN: a log axis would magnify it.

    >>> above_rounding(np.array([[0.5, 1e-18, 0.0]]))
    array([[0.5, nan, nan]])
    """
    floors = [float(noise_floor(torch.from_numpy(np.nan_to_num(lam)))) for lam in stack]
    return np.where(stack > np.array(floors)[:, None], stack, np.nan)
