r"""The role of asymmetric designs (the paper's Figure 5), from a run's checkpoint, untrained.

``python -m rdm_solo.roles RUN_FOLDER...``

A run's last weights see its training views again, and what the design does to one branch is taken
apart:

* **BYOL, SimSiam**: the filter of the ideal predictor, :math:`\omega_i = \lambda^+_i/\lambda^z_i`
  (Theorem 2), by sorted eigenvalues as the paper has it and along the target's eigenvectors; beside
  it the filter that the run has, :math:`g = \sqrt{\lambda^p_i/\lambda^z_i}`. The paper's caption
  calls ω monotonically decreasing and its text a low-pass filter. Both hold where the horizontal
  axis is the index of eigenvalues that descend; over λ, which is the axis here, low-pass is rising.
* **SwAV**: the target filter :math:`h = \sqrt{\lambda^z_i/\lambda^p_i}` over the online eigenvalue
  for 0, 1, 2, 3 Sinkhorn iterations. With 0 the target is the softmax of logits/ε, rows alone: what
  is left of :func:`sinkhorn` without an iteration. Since ε is below the online temperature, this
  sharpens by itself; so there is a second group of curves with ε at the online temperature, where
  0 iterations would be the online branch and what is seen is the iterations' own. (A run with
  ``sk_iters: 0`` trains on solo-learn's exponential over its total, whose rows differ in sum.)
* **DINO**: h for targets with and without centring, at several temperatures. At the online
  temperature there is no sharpening: centring alone, or none of both. The centre is the
  checkpoint's; a run without centring has none, and the rows' mean takes its place.

A target filter that is high-pass falls with λ: monotonicity near -1, a negative ``slope``, and an
effective rank above the online branch's (Theorem 3).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from rdm_solo import cli, runs
from rdm_solo.plots_roles import draw
from rdm_solo.spectra import (
    correlation,
    effective_rank,
    filter_curve,
    ideal_filter,
    leading,
    spearman,
)

if TYPE_CHECKING:
    from rdm_solo.replay import Replay

__all__ = ["Roles", "Series", "draw", "measure", "sinkhorn", "table"]

log = logging.getLogger("rdm_solo")

ITERATIONS = (0, 1, 2, 3)
TEMPERATURES = (0.04, 0.07, 0.1, 0.2)
# Logits that are kept at once, 256 MiB of them; with a larger k fewer rows enter.
MOST = 2**26
# Rounding of float32 outputs leaves this share of the largest eigenvalue at most, with a margin of
# a thousand: a predictor with a bottleneck has a rank below k, and no filter behind it.
ROUNDING = 1e-12
FORMAT = 1  # of roles.npz; another one is measured anew


@dataclass(frozen=True, eq=False)
class Series:
    """One curve over eigenvalues that descend, of those that hold 99.99 % of their sum.

    Args:
        name: what is varied, such as ``1 iteration``.
        group: curves of one group share their dashes.
        lam: horizontal axis, ``(m,)``.
        value: ω, g or h there, ``(m,)``.
        monotonicity: Spearman's rank correlation of both. A curve that is almost flat has one, too.
        slope: of log value over log lam, least squares: how steep the filter is. ``target_pow``
            with exponent p behind alike branches would have p/2.
        erank: effective rank of the outputs behind the filter.
    """

    name: str
    group: str
    lam: np.ndarray
    value: np.ndarray
    monotonicity: float
    slope: float
    erank: float


@dataclass(frozen=True, eq=False)
class Roles:
    """A run's curves, and what they depend on.

    Args:
        folder: the run's.
        method: its name in the config.
        label: method and filter in the paper's words.
        seed: the run's.
        branch: ``online`` where the curves are filters of the online branch (ω, g), ``target``
            where they are the target's (h).
        series: the curves.
        own: name of the one that the run trained with.
        erank: effective rank of the other branch, with which each curve's is to be compared.
        rows: view rows that entered.
        batch: images of a batch.
        epoch: the checkpoint's, from 0.
        note: what else a reader has to know, such as the online temperature.
    """

    folder: Path
    method: str
    label: str
    seed: int
    branch: str
    series: tuple[Series, ...]
    own: str
    erank: float
    rows: int
    batch: int
    epoch: int
    note: str = ""


def measure(
    folder: Path, rows: int = 4096, device: str = "cpu", batch_size: int | None = None
) -> Roles:
    """The curves of the run in that folder, from ``roles.npz`` where that is of its checkpoint.

    ``rows`` view rows go through the model, rounded up to whole batches of the run's size. Take
    several times k: of fewer, the smallest eigenvalues are underestimated. ValueError, in one
    sentence, for a run that has no such curves, no checkpoint, or whose data are not there.
    """
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 2:
        raise ValueError(f"rows must be a whole number of at least 2, got {rows!r}.")
    folder = Path(folder)
    run = runs.load(folder)
    if run.method not in MEASURES:
        raise ValueError(
            f"{folder} has no design to take apart: {run.label} is none of "
            f"{', '.join(runs.METHODS[name] for name in MEASURES)}."
        )
    from rdm_solo import replay

    state = replay.checkpoint_of(folder).stat()
    key = {
        "format": FORMAT,
        "checkpoint": [state.st_mtime_ns, state.st_size],
        "rows": rows,
        "batch_size": batch_size,
        "seed": run.seed,
    }
    known = _read(folder, key)
    if known is not None:
        return known
    again = replay.load(run, device, batch_size)
    with torch.no_grad():
        branch, series, own, erank, seen, note = MEASURES[run.method](again, rows)
    batch, epoch = again.loader.batch_size, again.epoch
    found = Roles(
        *(folder, run.method, run.label, run.seed, branch, tuple(series), own, erank),
        *(seen, batch, epoch, note),
    )
    _write(found, key)
    return found


Measured = tuple[str, list[Series], str, float, int, str]


def _of_predictor(again: Replay, rows: int) -> Measured:
    """SimSiam and BYOL: the ideal predictor's filter and the one that is there."""
    model = again.model
    online, target, positive = [], [], []
    for crops in again.batches(rows):
        z = [model.projector(model.backbone(x)) for x in crops]
        online += [model.predictor(z_view).float() for z_view in z]
        if hasattr(model, "momentum_projector"):
            z = [model.momentum_projector(model.momentum_backbone(x)) for x in crops]
        z = [z_view.float() for z_view in z]
        target += z
        positive += z[1:] + z[:1]
    p, z, z_plus = (normalize(_whole(x).double(), dim=1) for x in (online, target, positive))

    lam_p = _eigenvalues(p)
    lam_p = lam_p.where(lam_p > ROUNDING * lam_p[0], 0.0)
    lam_z, u = torch.linalg.eigh(correlation(z))
    lam_z, u = lam_z.flip(0).clamp_min(0), u.flip(1)
    C_plus = z.mT @ z_plus / len(z)
    C_plus = (C_plus + C_plus.mT) / 2
    lam_plus = torch.linalg.eigvalsh(C_plus).flip(0)
    along = (u * (C_plus @ u)).sum(0)

    series = [_series("g", "actual", lam_z, filter_curve(lam_p, lam_z), lam_p)]
    for name, lam in (("omega", lam_plus), ("omega, directional", along)):
        omega = ideal_filter(lam, lam_z)
        # What the ideal predictor W* makes of the target has W* C_z W*^T.
        series.append(_series(name, "ideal", lam_z, omega, omega.square().nan_to_num(0) * lam_z))
    return "online", series, "g", float(effective_rank(lam_z)), len(z), ""


def _of_swav(again: Replay, rows: int) -> Measured:
    """SwAV: more and more Sinkhorn iterations of the same logits."""
    model = again.model
    epsilon, temperature = float(model.sk_epsilon), float(model.temperature)
    logits: list[Tensor] = []
    for crops in again.batches(_at_most(rows, again, model.prototypes.out_features)):
        for x in crops:
            logits.append(_swav_logits(model, normalize(model.projector(model.backbone(x)))))
    waiting = [] if again.queue is None else [_swav_logits(model, z) for z in again.queue]

    def target(epsilon: float, iterations: int) -> Tensor:
        parts = []
        for i, x in enumerate(logits):  # Sinkhorn's batch is one view's, with that view's queue
            queued = waiting[i % again.views : i % again.views + 1]
            parts.append(sinkhorn(torch.cat([x, *queued]), epsilon, iterations)[: len(x)])
        return torch.cat(parts)

    lam_p = _eigenvalues((_whole(logits).double() / temperature).softmax(1))
    series = []
    counts = sorted({*ITERATIONS, model.sk_iters})
    for sharp in dict.fromkeys((epsilon, temperature)):
        for n in counts if sharp == epsilon else counts[1:]:
            lam = _eigenvalues(target(sharp, n))
            name, group = _swav_name(sharp, n), f"ε = {sharp:g}"
            series.append(_series(name, group, lam_p, filter_curve(lam, lam_p), lam))
    own = _swav_name(epsilon, model.sk_iters)
    note = f"online temperature {temperature:g}"
    return "target", series, own, float(effective_rank(lam_p)), sum(map(len, logits)), note


def _swav_logits(model: Any, z: Tensor) -> Tensor:
    logits: Tensor = model.prototypes(z).float()
    return logits


def _swav_name(epsilon: float, n: int) -> str:
    return f"{n} iteration{'s' * (n != 1)}, ε = {epsilon:g}"


def _of_dino(again: Replay, rows: int) -> Measured:
    """DINO: with and without centring, at several temperatures."""
    model = again.model
    loss = model.dino_loss_func
    student, teacher = [], []
    for crops in again.batches(_at_most(rows, again, 2 * loss.center.shape[1])):
        for x in crops:
            student.append(model.head(model.backbone(x)).float())
            teacher.append(model.momentum_head(model.momentum_backbone(x)).float())
    online, own = float(loss.student_temp), float(loss.teacher_temp_schedule[again.epoch])
    z = _whole(teacher).double()
    centred = bool(loss.center.any())
    centre = loss.center.double() if centred else z.mean(0, keepdim=True)

    lam_p = _eigenvalues((_whole(student).double() / online).softmax(1))
    series = []
    for shift, group in ((0.0, NOT_CENTRED), (centre, CENTRED)):
        for t in sorted({*TEMPERATURES, round(online, 6), round(own, 6)}):
            lam = _eigenvalues(((z - shift) / t).softmax(1))
            curve = filter_curve(lam, lam_p)
            series.append(_series(_dino_name(group, t), group, lam_p, curve, lam))
    name = _dino_name(CENTRED if centred else NOT_CENTRED, own)
    note = f"online temperature {online:g}"
    return "target", series, name, float(effective_rank(lam_p)), len(z), note


CENTRED, NOT_CENTRED = "centred", "not centred"


def _dino_name(group: str, temperature: float) -> str:
    return f"{group}, t = {temperature:.4g}"


MEASURES = {"simsiam": _of_predictor, "byol": _of_predictor, "swav": _of_swav, "dino": _of_dino}


def sinkhorn(logits: Tensor, epsilon: float, iterations: int) -> Tensor:
    r"""Sinkhorn's assignment of samples to prototypes, in float64 and in logarithms.

    From :math:`Q = \exp(\text{logits}/\varepsilon)` each iteration makes first the prototypes'
    shares equal (columns), then each sample's (rows). Without an iteration rows alone are scaled,
    which is a softmax.

    Shapes: ``(N, k) -> (N, k)``, rows sum to 1.

    >>> q = sinkhorn(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), epsilon=0.05, iterations=1)
    >>> q.tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    log_q = logits.double() / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(0, keepdim=True)
        log_q = log_q - log_q.logsumexp(1, keepdim=True)
    return log_q.softmax(1)


def _series(name: str, group: str, lam: Tensor, value: Tensor, behind: Tensor) -> Series:
    """A curve over the leading eigenvalues; ``behind`` are those of the outputs behind it."""
    m = leading(lam)
    lam, value = lam[:m], value[:m]
    rising = value > 0  # and no NaN: neither has a logarithm
    x, y = lam[rising].log(), value[rising].log()
    x = x - x.mean()
    slope = float((x * y).sum() / x.square().sum()) if len(x) > 1 else float("nan")
    monotone = float(spearman(value[value.isfinite()], lam[value.isfinite()]))
    erank = float(effective_rank(behind))
    return Series(name, group, lam.cpu().numpy(), value.cpu().numpy(), monotone, slope, erank)


def _eigenvalues(x: Tensor) -> Tensor:
    """Those of E[x x^T] that can be other than zero, from the smaller of the two Gram matrices."""
    gram = x @ x.mT if len(x) < x.shape[1] else x.mT @ x
    return torch.linalg.eigvalsh(gram / len(x)).flip(0).clamp_min(0)


def _whole(parts: list[Tensor]) -> Tensor:
    x = torch.cat(parts)
    if not x.isfinite().all():
        raise ValueError("the checkpoint's outputs are NaN or infinite: its run has diverged.")
    return x


def _at_most(rows: int, again: Replay, k: int) -> int:
    """Fewer rows where they would not fit, at least one batch."""
    return max(again.loader.batch_size * again.views, min(rows, MOST // k))


def _write(roles: Roles, key: dict[str, Any]) -> None:
    """``roles.npz``, all at once; a folder that cannot be written to goes without."""
    plain = {name: getattr(roles, name) for name in KEPT}
    plain["series"] = [[s.name, s.group, s.monotonicity, s.slope, s.erank] for s in roles.series]
    arrays = {f"lam_{i}": s.lam for i, s in enumerate(roles.series)}
    arrays |= {f"value_{i}": s.value for i, s in enumerate(roles.series)}
    half = roles.folder / f".roles.{os.getpid()}.npz"
    try:
        np.savez(half, about=np.array(json.dumps({"key": key, **plain})), **arrays)
        half.replace(roles.folder / "roles.npz")
    except OSError as error:
        log.warning(f"warning: roles.npz cannot be kept in {roles.folder} ({error.strerror}).")


KEPT = ("method", "label", "seed", "branch", "own", "erank", "rows", "batch", "epoch", "note")


def _read(folder: Path, key: dict[str, Any]) -> Roles | None:
    try:
        with np.load(folder / "roles.npz") as saved:
            about = json.loads(str(saved["about"]))
            if about["key"] != key:
                return None
            series = [
                Series(name, group, saved[f"lam_{i}"], saved[f"value_{i}"], *numbers)
                for i, (name, group, *numbers) in enumerate(about["series"])
            ]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return Roles(folder=folder, series=tuple(series), **{name: about[name] for name in KEPT})


def table(roles: Roles) -> str:
    """The curves' numbers as text."""
    other = "target" if roles.branch == "online" else "online"
    width = max(len(s.name) for s in roles.series) + 2
    lines = [
        f"{roles.label}, seed {roles.seed}, epoch {roles.epoch + 1}, {roles.rows} rows in batches "
        f"of {roles.batch}; erank of the {other} branch {roles.erank:.3f}",
        f"{'':{width}}{'monotonicity':>13}{'slope':>9}{'erank':>9}",
    ]
    for s in roles.series:
        mark = "  <- the run's own" if s.name == roles.own and roles.branch == "target" else ""
        numbers = f"{s.monotonicity:>13.3f}{s.slope:>9.3f}{s.erank:>9.3f}"
        lines.append(f"{s.name:{width}}{numbers}{mark}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        "python -m rdm_solo.roles",
        description="The role of asymmetric designs (the paper's Figure 5), from checkpoints.",
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders of runs or of sweeps")
    parser.add_argument("--rows", type=int, default=4096, help="view rows; 4096")
    parser.add_argument("--device", default="cpu", help="cpu or cuda; cpu")
    parser.add_argument("--out", type=Path, default=Path("roles.png"), help="a .png or .pdf")
    given = parser.parse_args(argv)
    found = []
    with cli.sentences():
        for run in runs.find(given.folders):
            try:
                found.append(measure(run.folder, given.rows, given.device))
                print(f"{table(found[-1])}\n")
            except ValueError as error:
                print(f"left out: {error}")
        if not found:
            raise ValueError("none of these runs has curves to draw.")
        cli.make_folder(given.out.parent)
        try:
            draw(found).savefig(given.out)
        except OSError as error:
            raise ValueError(f"--out={given.out} cannot be written ({error.strerror}).") from error
        print(f"the picture is {given.out}")


if __name__ == "__main__":
    main()
