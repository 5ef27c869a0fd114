"""A filter before any training: ``python -m rdm_solo.preview filter=target_pow p=-0.5``.

It says what kind of filter it is, draws it, and iterates Theorem 4 with it; with ``run=FOLDER``
from that run's spectrum, and beside what the run measured.
"""

from __future__ import annotations

import importlib
import logging
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from rdm_solo import cli, filters, prediction, runs, theory
from rdm_solo.eigen import effective_rank, filter_curve
from rdm_solo.prediction import Prediction, predict
from rdm_solo.schedules import as_schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Preview", "draw_filter", "draw_prediction", "look", "predict", "preview", "relation"]

log = logging.getLogger("rdm_solo")

QUOTED = ("run", "out", "spectrum")  # whose values Hydra's grammar could stumble over
SPECTRA = {"1/i": 1.0, "1/i^2": 2.0, "flat": 0.0}
LEARNED = ("learnable", "linear", "none")

Gain = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Preview:
    """A filter on a spectrum of singular values: what :func:`look` found."""

    name: str
    branch: str
    gain: Gain
    sigma: Tensor  # descending singular values of the unfiltered outputs
    lam_p: Tensor  # spectra of both branches, each with the sum 1
    lam_z: Tensor
    own: str  # the kind of |g(sigma)|
    online: str  # the kind of the equivalent online filter
    warnings: tuple[str, ...]

    @property
    def curve(self) -> Tensor:
        """The equivalent online filter g(lam_z), by rank."""
        return filter_curve(self.lam_p, self.lam_z)

    @property
    def line(self) -> str:
        """What it is, in one line."""
        same = "" if self.branch == "online" else f", as an online filter {_called(self.online)}"
        return (
            f"{self.name}: {_called(self.own)} on the {self.branch} branch{same}; "
            f"erank {float(effective_rank(self.lam_p)):.3g} online, "
            f"{float(effective_rank(self.lam_z)):.3g} target; looked at sigma from "
            f"{float(self.sigma.min()):.3g} to {float(self.sigma.max()):.3g}."
        )


def look(name: str, branch: str, gain: Gain, sigma: Tensor) -> Preview:
    """Say what a filter does to outputs with these singular values. Shapes: ``(r,)``.

    >>> seen = look("power", "target", filters.get("pow", p=-0.5), torch.tensor([4.0, 1.0]))
    >>> seen.own, seen.online, seen.warnings
    ('high-pass', 'low-pass', ())
    """
    sigma = sigma.double().sort(descending=True).values
    values = gain(sigma)
    if values.shape != sigma.shape or not bool(values.isfinite().all()):
        raise ValueError(
            f"{name} must give one finite number for each singular value, got "
            f"{tuple(values.shape)} for {len(sigma)} of them"
            f"{'' if values.shape != sigma.shape else ', with NaN or infinity among them'}."
        )
    lam = sigma.square()
    left = theory.filtered_eigenvalues(lam, values)
    if not float(left.sum()) > 0:
        raise ValueError(f"{name} is zero at every singular value that was looked at.")
    lam_p, lam_z = (left, lam) if branch == "online" else (lam, left)
    lam_p, lam_z = _unit(lam_p), _unit(lam_z)
    curve = filter_curve(lam_p, lam_z)
    own, online = theory.kind(values.abs()), theory.kind(curve)
    warnings = (
        *_order(name, sigma, left),
        *_sign(sigma, values),
        *_scale(branch, gain, sigma, values, own),
        *_direction(online, lam_p, lam_z),
    )
    return Preview(name, branch, gain, sigma, lam_p, lam_z, own, online, warnings)


def _order(name: str, sigma: Tensor, left: Tensor) -> list[str]:
    if theory.is_low_pass(left):
        return []
    return [
        f"{name} turns the order of the spectrum round (sigma * |g(sigma)| does not grow with "
        "sigma): directions no longer keep their rank, and only the sorted spectra are compared."
    ]


def _sign(sigma: Tensor, values: Tensor) -> list[str]:
    below = values < 0
    if not bool(below.any()):
        return []
    share = f"{int(below.sum())} of {len(sigma)} directions"
    return [
        f"g is negative for {share} (log sigma is, below sigma = 1): they are turned to their "
        "opposite, which the spectrum does not show and the loss does; spectra see |g|."
    ]


def _scale(branch: str, gain: Gain, sigma: Tensor, values: Tensor, own: str) -> list[str]:
    """Sigma grows with the root of the batch: look at a quarter and at four times of it."""
    kinds, moved = {}, False
    for factor in (0.25, 4.0):
        other = gain(sigma * factor**0.5)
        ratio = other / torch.where(values == 0, 1.0, values)
        moved |= bool((ratio.max() - ratio.min()).abs() > 1e-6 * ratio.abs().max())
        kinds[factor] = theory.kind(other.abs())
    if not moved:
        return []
    text = (
        "the curve depends on the global batch size, because sigma grows with its root and with "
        "the outputs' scale, taken here as a batch norm's"
    )
    changed = [
        f"with {'a quarter of' if factor < 1 else 'four times'} the batch it is {_called(found)}"
        for factor, found in kinds.items()
        if found != own
    ]
    return [f"{text}{''.join('; ' + part for part in changed)}."]


def _direction(online: str, lam_p: Tensor, lam_z: Tensor) -> list[str]:
    gap = float(theory.rank_difference(lam_p, lam_z))
    if online == "none":
        return ["no filter at all: both branches have one spectrum, and nothing lifts the rank."]
    if online == "high-pass":
        return [
            "it points the wrong way: a high-pass online filter puts the target's effective rank "
            "below the online branch's (Theorem 3), and alignment pulls the rank down."
        ]
    if online != "low-pass":
        return [
            f"Theorem 3 says nothing about a {online} filter; on this spectrum the target's "
            f"effective rank is {'above' if gap > 0 else 'below'} the online branch's."
        ]
    return []


def _called(kind: str) -> str:
    return "no filter (constant)" if kind == "none" else kind


# --------------------------------------------------------------------------------------
# The command
# --------------------------------------------------------------------------------------


def preview(cfg: DictConfig) -> Path:
    """Say what the filter is, write pictures; their folder."""
    from rdm_solo.plots import style

    logging.getLogger("fontTools").setLevel(logging.WARNING)  # tells of each glyph in a PDF
    _check(cfg)
    run = None if cfg.run is None else runs.load(Path(cfg.run))
    own = cfg.get("filter") is None
    if own and cfg.p is not None:
        raise ValueError(f"p={cfg.p} belongs to a filter: add filter=target_pow, say.")
    if own and run is None:
        raise ValueError("give filter=..., run=RUN_FOLDER, or both; --help says more.")
    chosen, p = (run.config.filter, run.config.get("p")) if own and run else (cfg.filter, cfg.p)
    folder = Path(cfg.out or (Path(cfg.run) / "figures" if run else "preview"))
    cli.make_folder(folder)

    written = []
    if chosen.get("function") is None and chosen.name != "identity":
        if run is None or not own:
            raise ValueError(
                f"filter={chosen.name} is learned, no function to draw: what it became is seen "
                "with run=FOLDER of a run that used it."
            )
        log.info(_learned(run))
    else:
        start, last = (_filter(chosen, p, cfg.steps, epoch) for epoch in (0, cfg.steps - 1))
        sigma = _sigma(cfg, run)
        seen = look(start[0], start[1], start[2], sigma)
        log.info(seen.line)
        if last[0] != start[0]:
            log.info(f"at the schedule's end {look(*last, sigma).line}")
        for warning in seen.warnings:
            log.info(f"  note: {warning}")
        path = _path(cfg, run, seen, chosen, p)
        log.info(
            f"Theorem 4 from there ({cfg.steps} steps of {cfg.alpha:g}): erank/online "
            f"{path.online[0]:.3g} -> {path.online[-1]:.3g}, "
            f"erank/target {path.target[0]:.3g} -> {path.target[-1]:.3g}"
        )
        made = draw_filter(seen, path, _assumed(cfg, run))
        written += style.save(made, folder, f"filter_{chosen.name}")
    if run is not None and own:
        foretold = predict(run)
        log.info(foretold.caption)
        written += style.save(draw_prediction(foretold), folder, "prediction")
    log.info(f"{', '.join(path.name for path in written)} in {folder}")
    return folder


def _check(cfg: DictConfig) -> None:
    for name, least in (("k", 2), ("batch_size", 2), ("steps", 1)):
        value = cfg[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    for name, low, high in (("alpha", "0", 1), ("omega", "-0", 1)):
        value = cfg[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not (0 <= value <= high) or (low == "0" and value in (0, high)):
            span = "between 0 and 1" if low == "0" else "from 0 to 1"
            raise ValueError(f"{name} must be a number {span}, got {value!r}.")
    if cfg.spectrum not in SPECTRA:
        raise ValueError(f"spectrum must be one of {', '.join(SPECTRA)}, got {cfg.spectrum!r}.")


def _filter(chosen: DictConfig, p: Any, epochs: int, epoch: int) -> tuple[str, str, Gain]:
    """Name, branch and function of a filter in one epoch."""
    if chosen.get("function") is None:
        return "identity", "online", filters.get("identity")
    function = chosen.function
    if isinstance(function, str) and "." in function:
        function = _imported(function)
    if chosen.branch not in ("online", "target"):
        raise ValueError(f"filter.branch must be online or target, got {chosen.branch!r}.")
    p = OmegaConf.to_container(p) if OmegaConf.is_config(p) else p
    if p is not None and not filters.takes_p(function):
        raise ValueError(
            f"p={p} would be ignored: filter.function={chosen.function} has no exponent; "
            "add p=null, or leave p out."
        )
    value = None if p is None else as_schedule(p, epochs=epochs)(epoch)
    shown = chosen.name if function is not None and "." not in chosen.function else chosen.function
    name = shown if value is None else f"{shown}, p={value:g}"
    return name, chosen.branch, filters.get(function, value)


def _imported(name: str) -> Gain:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"filter.function={name} cannot be imported: {error}.") from error
    if not callable(found):
        raise ValueError(f"filter.function={name} is no function.")
    return found  # type: ignore[no-any-return]


def _sigma(cfg: DictConfig, run: runs.Run | None) -> Tensor:
    """Singular values of a batch as a batch norm hands it out: their squares sum up to n k."""
    if run is None:
        k, batch = cfg.k, cfg.batch_size
        share = torch.arange(1, k + 1, dtype=torch.float64) ** -SPECTRA[cfg.spectrum]
    else:
        share = torch.from_numpy(_first(run, "lam_projection")).double()
        k, batch = len(share), _batch(run)
        share = share[share > 1e-11 * share.max()]  # what a filter's own cut leaves
    # A batch has no directions beyond its rows.
    sigma: Tensor = (batch * k * _unit(share[:batch])).sqrt()
    return sigma


def _batch(run: runs.Run) -> int:
    """The rows that the run's filter works on: those of all processes together."""
    derived = run.config.get("derived", run.summary.get("derived", {}))
    return int(derived.get("filter_batch", run.config.batch_size))


def _first(run: runs.Run, name: str) -> Any:
    if name not in run.spectra or not len(run.spectra[name]):
        raise ValueError(f"{run.folder} has no measured spectra; leave run= out.")
    return run.spectra[name][0]


def _path(
    cfg: DictConfig, run: runs.Run | None, seen: Preview, chosen: DictConfig, p: Any
) -> prediction.Path:
    """Theorem 4 with the filter itself."""
    omega = torch.full_like(seen.lam_p, float(cfg.omega))
    if run is not None:
        lam_plus, lam_z = (
            torch.from_numpy(_first(run, f"lam_{name}")).double() for name in ("positive", "target")
        )
        omega = theory.ideal_filter(lam_plus, lam_z).nan_to_num(0.0).clamp(0, 1)[: len(omega)]
    steps = range(cfg.steps)
    relations = [relation(seen)] * cfg.steps
    if OmegaConf.is_config(p):
        now = (look(*_filter(chosen, p, cfg.steps, step), seen.sigma) for step in steps)
        relations = [relation(each) for each in now]
    return prediction.follow(
        seen.lam_p, relations, [omega for _ in steps], [cfg.alpha for _ in steps], step=cfg.alpha
    )


def relation(seen: Preview) -> prediction.Relation:
    """What the filter makes of an online spectrum with the sum 1: the target's.

    An online filter is turned round where it can be: where ``sigma * |g(sigma)|`` grows. Where the
    spectrum reaches beyond, the eigenvalues that it has are paired by rank.
    """
    energy = seen.sigma.square().sum()
    if seen.branch == "target":

        def to_target(lam_p: Tensor) -> Tensor:
            lam = (lam_p * energy).clamp_min(1e-30)
            return theory.filtered_eigenvalues(lam, seen.gain(lam.sqrt()))

        return to_target
    sigma = seen.sigma[0] * torch.logspace(-4, 2, 600, dtype=torch.float64)
    left = theory.filtered_eigenvalues(sigma.square(), seen.gain(sigma))
    falls = (left.diff() <= 0).nonzero()
    start = int(falls[-1]) + 1 if len(falls) else 0
    if float(seen.sigma.min()) < float(sigma[min(start, len(sigma) - 1)]):
        return prediction.relation(seen.lam_p, seen.lam_z)
    total = theory.filtered_eigenvalues(seen.sigma.square(), seen.gain(seen.sigma)).sum()
    return prediction.relation(left[start:] / total, sigma[start:].square() / energy)


def _assumed(cfg: DictConfig, run: runs.Run | None) -> str:
    if run is not None:
        return (
            "Spectrum and omega as the run measured them first; sigma as a batch norm of "
            f"{_batch(run)} rows scales it. Right: Theorem 4 with features that move "
            "freely and shared eigenvectors; steps have no unit in epochs."
        )
    return (
        f"Assumed: a {cfg.spectrum} spectrum of {cfg.k} dimensions, {cfg.batch_size} rows as a "
        f"batch norm scales them, omega = λ⁺/λᶻ = {cfg.omega:g}. Right: Theorem 4 with features "
        "that move freely and shared eigenvectors; steps have no unit in epochs."
    )


def _learned(run: runs.Run) -> str:
    curves = run.spectra.get("filter_curve")
    if curves is None or not len(curves):
        raise ValueError(f"{run.folder} has no measured spectra, and its filter is learned.")
    first, last = (theory.kind(torch.from_numpy(curve), tolerance=0.1) for curve in curves[[0, -1]])
    return (
        f"{run.label}: a learned filter; measured by rank it is {_called(first)} at first and "
        f"{_called(last)} at last (turns below a tenth of its peak left out)."
    )


def _unit(lam: Tensor) -> Tensor:
    lam = lam.sort(descending=True).values
    return lam / lam.sum()


# --------------------------------------------------------------------------------------
# Pictures
# --------------------------------------------------------------------------------------


def draw_filter(seen: Preview, path: prediction.Path, note: str = "") -> Figure:
    """The function as it is given, the online filter that it amounts to, and the rank's path."""
    from rdm_solo.plots import style

    with _styled():
        made, (given, curve, rank) = style.figure(3, panel=(2.9, 2.5))
        color = (style.ONLINE if seen.branch == "online" else style.TARGET)["color"]
        values = seen.gain(seen.sigma)
        plain: dict[str, Any] = {"markersize": 3, "marker": "o", "linestyle": "-"}
        plain["markevery"] = style.marked(len(values))
        given.plot(seen.sigma, values, color=color, **plain)
        letter = "g" if seen.branch == "online" else "h"
        given.set(xlabel=r"singular value $\sigma$", ylabel=rf"${letter}(\sigma)$")
        _scaled(given, seen.sigma, values)
        style.head(given, f"{seen.branch} filter: {_called(seen.own)}")
        real = seen.curve.isfinite()
        curve.plot(seen.lam_z[real], seen.curve[real], color="black", **plain)
        curve.set(xlabel=r"$\lambda^z_i$", ylabel=r"$g=\sqrt{\lambda^p_i/\lambda^z_i}$")
        _scaled(curve, seen.lam_z[real], seen.curve[real])
        style.head(curve, f"as an online filter: {_called(seen.online)}")
        _draw_ranks(rank, range(len(path.online)), path)
        rank.set(xlabel="step", ylabel="effective rank")
        style.head(rank, "predicted by Theorem 4")
        return style.finish(made, style.keys(rank), seen.name, textwrap.fill(note, 150))


def draw_prediction(foretold: Prediction) -> Figure:
    """Effective ranks as Theorem 4 predicts them, beside what the run measured."""
    from rdm_solo.plots import style

    with _styled():
        made, panels = style.figure(2, panel=(3.6, 2.8))
        epochs = foretold.epochs + 1
        every = style.marked(len(epochs))
        drawn: list[tuple[prediction.Path, dict[str, Any]]] = [
            (foretold.aligned, _line("0.55", ":", "", "perfect positives")),
            (foretold.first, _line(style.GREEN, "--", "^", "first epoch alone")),
            (foretold.told, _line(style.PURPLE, "-.", "D", "told each epoch's filter and ω")),
            (foretold.measured, _line("black", "-", "o", "measured")),
        ]
        for axes, branch in zip(panels, ("online", "target")):
            for path, line in drawn:
                axes.plot(epochs, getattr(path, branch), markersize=3, markevery=every, **line)
            axes.set_ylabel(f"effective rank, {branch}")
            axes.set_ylim(bottom=0)
            style.epoch_axis(axes, epochs)
        title = f"{foretold.label}: Theorem 4 and what was measured"
        return style.finish(made, style.keys(panels[0]), title, textwrap.fill(foretold.note, 120))


def _line(color: str, dashes: str, marker: str, label: str) -> dict[str, Any]:
    return {"color": color, "linestyle": dashes, "marker": marker, "label": label}


def _draw_ranks(axes: Any, steps: Any, path: prediction.Path) -> None:
    from rdm_solo.plots import style

    every = style.marked(len(path.online))
    axes.plot(steps, path.target, label="target", markevery=every, **style.TARGET)
    axes.plot(steps, path.online, label="online", markevery=every, **style.ONLINE)
    axes.set_ylim(bottom=0)


def _scaled(axes: Any, x: Tensor, y: Tensor) -> None:
    """Log axes where values are positive and spread; a line at zero where signs change."""
    from rdm_solo.plots import style

    for axis, values in ((axes.xaxis, x), (axes.yaxis, y)):
        if float(values.min()) > 0 and float(values.max()) > 3 * float(values.min()):
            style.log_axis(axis)
    if float(y.min()) < 0:
        axes.axhline(0, color="0.5", linewidth=0.8)
    elif float(y.max()) <= 3 * float(y.min()):
        axes.set_ylim(0, 1.15 * float(y.max()))


def _styled() -> Any:
    import matplotlib

    from rdm_solo.plots.style import STYLE

    return matplotlib.rc_context(STYLE)


def _job(cfg: DictConfig) -> None:
    with cli.sentences():
        preview(cfg)


def main() -> None:
    """The command."""
    cli.command(_job, "preview", QUOTED)


if __name__ == "__main__":
    main()
