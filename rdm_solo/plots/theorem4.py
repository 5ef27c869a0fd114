"""Figures of Theorem 4: the ranks that it predicts for a filter, and for a measured run."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rdm_solo.plots import style
from rdm_solo.plots.entry import Groups, Plot
from rdm_solo.runs.groups import counted_runs, run_name
from rdm_solo.runs.prediction import Prediction, predict
from rdm_solo.theory.filter_effect import Preview, describe
from rdm_solo.theory.rank_path import Path

MAX_SETTINGS = 4  # iterating the theorem takes seconds per setting

PATHS = {
    "first_epoch": style.look("the first epoch's filter and ω", style.GREEN, "--", "^"),
    "every_epoch": style.look("every epoch's filter and ω (a fit)", style.PURPLE, "-.", "D"),
    "measured": style.look("measured", style.BLACK, marker="o"),
}


@style.styled
def draw_filter(effect: Preview, path: Path, note: str = "") -> Figure:
    """Draw a filter's function, the equivalent online filter, and the predicted ranks."""
    figure, (function, curve, rank) = style.figure(3)
    online = effect.branch == "online"
    color = (style.ONLINE if online else style.TARGET)["color"]
    _line(function, effect.sigma, effect.gain(effect.sigma), color)
    function.set(xlabel=r"singular value $\sigma$", ylabel=rf"${'g' if online else 'h'}(\sigma)$")
    style.panel_title(function, f"{effect.branch} filter: {describe(effect.own_kind)}")
    _line(curve, effect.lam_z, effect.curve, style.BLACK)
    curve.set(xlabel=r"$\lambda_z$", ylabel=r"$g=\sqrt{\lambda_p/\lambda_z}$")
    style.panel_title(curve, f"as an online filter: {describe(effect.online_kind)}")
    steps = np.arange(len(path.online))
    style.draw_line(rank, steps, path.target, style.TARGET)
    style.draw_line(rank, steps, path.online, style.ONLINE)
    rank.set(xlabel="step", ylabel="effective rank")
    style.start_at_zero(rank)
    style.panel_title(rank, "predicted by Theorem 4")
    return style.finish(figure, effect.name, note)


def _line(axes: Axes, x: Tensor, y: Tensor, color: str) -> None:
    style.draw_line(axes, x.numpy(), y.numpy(), style.look("", color, marker="o", markersize=3))
    axes.set_ylim(bottom=min(0, float(y.min())))
    style.log_axis(axes.xaxis)


@partial(
    Plot,
    title="Predicted and measured rank",
    caption="Theorem 4 is iterated from the first measured spectra. It updates each eigenvalue by "
    "the measured filter between the branches and by ω = λ₊/λ_z, and it assumes that features move "
    "freely and that both branches have the same eigenvectors. The step size is fitted to the "
    "online rank with every epoch's filter and ω, so the purple curve is a fit, not a forecast. "
    "The green curve uses the first epoch's filter and ω, but the same fitted step size.",
    needs="runs with at least three measured spectra (diagnostics.every_n_epochs)",
    choose=lambda all_groups: all_groups[:MAX_SETTINGS],
    measured=lambda run: len(run.spectra.get("epoch", ())) > 2,
)
def prediction(groups: Groups, looks: style.Looks) -> Figure:
    figure, panels = style.figure(2 * len(groups), columns=2)
    notes = []
    for i, group in enumerate(groups):
        run = next(run for run in counted_runs(group) if prediction.measured(run))
        predicted = predict(run)
        for axes, branch in zip(panels[2 * i :], ("online", "target")):
            for name, look in PATHS.items():
                ranks = getattr(getattr(predicted, name), branch)
                style.draw_line(axes, predicted.epochs, ranks, look)
            axes.set_ylabel(f"effective rank, {branch}")
            style.start_at_zero(axes)
            style.integer_axis(axes, "epoch")
        style.panel_title(panels[2 * i], run_name(run))
        notes.append(f"{run_name(run)}: {_quality(predicted)}")
    figure.supxlabel(" ".join(notes))
    return figure


def _quality(predicted: Prediction) -> str:
    """Return a sentence on how well the theorem predicts a run."""
    return (
        f"step size per epoch {predicted.alpha:.2g}. RMS error of log rank: "
        f"{predicted.error(predicted.every_epoch.online):.2f} (every epoch's filter), "
        f"{predicted.error(predicted.first_epoch.online):.2f} (first epoch's), "
        f"{predicted.error(predicted.measured.online[:1]):.2f} (constant rank). "
        f"Without a fit, it predicts rise or fall in {predicted.correct} of "
        f"{predicted.intervals} intervals (majority guess: {predicted.correct_by_guess})."
    )
