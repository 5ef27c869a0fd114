r"""Measure how asymmetric designs filter a spectrum (the paper's Figure 5), without training.

A run's last checkpoint is applied to its training views. The comparison depends on the method:

* **Predictor** (BYOL, SimSiam): the optimal linear predictor's :math:`\omega=\lambda^+/\lambda^z`
  (Theorem 2), by sorted eigenvalues as in the paper and along the target's eigenvectors; and
  :math:`g = \sqrt{\lambda^p/\lambda^z}` of the run's own predictor. The paper calls ω
  monotonically decreasing (caption) and low-pass (text). Drawn over λ, a low-pass filter rises.
* **Sinkhorn** (SwAV): the target filter :math:`h = \sqrt{\lambda^z/\lambda^p}` over the online
  eigenvalues for 0 to 3 iterations; 0 is the softmax of logits/ε. A second group sets
  ε to the online temperature, because a smaller ε sharpens even without iterations.
* **Centring** (DINO): h with and without centring at several temperatures. At the online
  temperature there is no sharpening. The centre comes from the checkpoint.

A high-pass target filter falls with λ: its slope is negative.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from rdm_solo.spectra.comparison import filter_curve, ideal_filter, leading
from rdm_solo.spectra.ranks import correlation, descending, descending_eigenvectors

if TYPE_CHECKING:
    from rdm_solo.evaluate.finished_run import FinishedRun
    from rdm_solo.runs.folder import RunFolder

ITERATIONS = (0, 1, 2, 3)
TEMPERATURES = (0.04, 0.07, 0.1, 0.2)
# At most this many logits are kept (256 MiB), so fewer rows are used if k is large.
MAX_LOGITS = 2**26
# Eigenvalues below this share of the largest are float32 rounding errors (margin: factor 1000).
# A predictor with a bottleneck has a rank below k, and its filter is zero beyond that rank.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Curve:
    """One filter over the leading eigenvalues (99.99 % of their sum), in descending order."""

    variant: str  # such as "1 iteration"; with a predictor "g", "omega" or "omega, directional"
    group: str  # shared by several curves, such as "ε = 0.05"; may be empty
    lam: np.ndarray  # eigenvalues (m,), on the horizontal axis
    value: np.ndarray  # values (m,) of ω, g or h
    slope: float  # fitted on log-log axes; p/2 for target_pow on equal branches
    trained: bool = False  # whether the run trained with this filter

    @property
    def name(self) -> str:
        if not self.group:
            return self.variant
        return f"{self.variant}, {self.group}"


@dataclass(frozen=True, eq=False)
class Figure5:
    """The curves of a run's panel in Figure 5."""

    label: str  # method and filter in the paper's words
    branch: str  # the filtered branch: "online" (ω, g) or "target" (h)
    curves: Sequence[Curve]
    note: str = ""  # such as "online temperature 0.1"


def measure(run: "RunFolder", rows: int = 4096) -> Figure5:
    """Measure the filters of a run's last checkpoint on ``rows`` or more views (see MAX_LOGITS).

    The run's method must have an asymmetric design, a key of ``DESIGNS``.
    Use several times k rows: with fewer, the smallest eigenvalues are underestimated.
    """
    from rdm_solo.evaluate import finished_run  # imports solo-learn

    design = run.description.asymmetry
    if design not in DESIGNS:
        raise ValueError(f"{run.description.label} has no asymmetric design.")
    finished = finished_run.load(run)
    with torch.no_grad():
        curves, note = DESIGNS[design](finished, rows)
    branch = "online" if design == "predictor" else "target"
    return Figure5(run.label, branch, curves, note)


def _predictors(finished: "FinishedRun", rows: int) -> tuple[list[Curve], str]:
    """Compare the run's predictor with the optimal linear predictor."""
    model = finished.model
    online: list[Tensor] = []
    target: list[Tensor] = []
    positive: list[Tensor] = []
    has_momentum = hasattr(model, "momentum_projector")
    has_neighbours = hasattr(model, "find_nn")
    for crops in finished.batches(rows):
        targets = []
        for x in crops:
            z = model.projector(model.backbone(x))
            online.append(model.predictor(z))
            if has_momentum:  # the momentum projector ends with the target filter
                z = model.momentum_projector(model.momentum_backbone(x))
            if has_neighbours:  # NNBYOL and NNSiam: neighbours in a queue, which it filters
                _, z = model.find_nn(normalize(z, dim=-1))
            elif not has_momentum:
                z = model.target_head(z)
            targets.append(z)
        target += targets
        positive += targets[1:] + targets[:1]
    p = normalize(torch.cat(online).double(), dim=1)
    z = normalize(torch.cat(target).double(), dim=1)
    z_plus = normalize(torch.cat(positive).double(), dim=1)

    lam_p = eigenvalues(p)
    noise = ROUNDING * lam_p[0]
    lam_p = lam_p.where(lam_p > noise, 0.0)
    lam_z, u = descending_eigenvectors(correlation(z))
    # Both views of a pair are each other's positive, so that C_+ is symmetric.
    C_plus = (z.mT @ z_plus + z_plus.mT @ z) / (2 * len(z))
    lam_plus = descending(C_plus)
    energy = u * (C_plus @ u)
    directional = energy.sum(0)
    g = filter_curve(lam_p, lam_z)
    omega = ideal_filter(lam_plus, lam_z)
    omega_directional = ideal_filter(directional, lam_z)
    curves = [
        curve("g", "", lam_z, g, trained=True),
        curve("omega", "", lam_z, omega),
        curve("omega, directional", "", lam_z, omega_directional),
    ]
    return curves, ""


def _sinkhorn_iterations(finished: "FinishedRun", rows: int) -> tuple[list[Curve], str]:
    """Compare numbers of Sinkhorn iterations on the same logits."""
    model = finished.model
    epsilon = float(model.sk_epsilon)
    temperature = float(model.temperature)
    rows = min(rows, MAX_LOGITS // model.prototypes.out_features)
    logits = []
    # Each view has its own Sinkhorn batch and queue. Rows of the queue only take part.
    sinkhorn_batches = []
    for crops in finished.batches(rows):
        for view, x in enumerate(crops):
            projection = normalize(model.projector(model.backbone(x)))
            batch = model.prototypes(projection).float()
            logits.append(batch)
            if finished.queue is not None:
                queue = model.prototypes(finished.queue[view])
                batch = torch.cat([batch, queue])
            sinkhorn_batches.append(batch)
    online = torch.cat(logits).double() / temperature
    lam_p = eigenvalues(online.softmax(1))

    curves = []
    for eps in dict.fromkeys([epsilon, temperature]):
        for n in sorted({*ITERATIONS, model.sk_iters}):
            if n == 0 and eps != epsilon:
                continue  # the online branch's own softmax
            assignments = []
            for x, batch in zip(logits, sinkhorn_batches):
                q = sinkhorn(batch, eps, n)
                assignments.append(q[: len(x)])
            name = "1 iteration" if n == 1 else f"{n} iterations"
            trained = eps == epsilon and n == model.sk_iters
            lam_z = eigenvalues(torch.cat(assignments))
            h = filter_curve(lam_z, lam_p)
            curves.append(curve(name, f"ε = {eps:g}", lam_p, h, trained))
    return curves, f"online temperature {temperature:g}"


def _temperatures(finished: "FinishedRun", rows: int) -> tuple[list[Curve], str]:
    """Compare temperatures with and without centring."""
    model = finished.model
    loss = model.dino_loss_func
    online = float(loss.student_temp)
    target = float(loss.teacher_temp_schedule[finished.epoch])
    # The schedule is interpolated, so that 0.07 may be stored as 0.07 plus a rounding error.
    target = round(target, 6)
    rows = min(rows, MAX_LOGITS // (2 * loss.center.shape[1]))
    student = []
    teacher = []
    for crops in finished.batches(rows):
        for x in crops:
            features = model.backbone(x)
            student.append(model.head(features).float())
            features = model.momentum_backbone(x)
            teacher.append(model.momentum_head(features).float())
    p = (torch.cat(student).double() / online).softmax(1)
    lam_p = eigenvalues(p)
    logits = torch.cat(teacher).double()
    curves = []
    for group, centre in (("not centred", 0), ("centred", loss.center.double())):
        centred = logits - centre
        for t in sorted({*TEMPERATURES, online, target}):
            z = (centred / t).softmax(1)
            lam_z = eigenvalues(z)
            h = filter_curve(lam_z, lam_p)
            trained = t == target and group == "centred"
            curves.append(curve(f"t = {t:.4g}", group, lam_p, h, trained))
    return curves, f"online temperature {online:g}"


# The measurement for each value of ``Method.asymmetry``.
DESIGNS = {
    "predictor": _predictors,
    "sinkhorn": _sinkhorn_iterations,
    "centring": _temperatures,
}


def sinkhorn(logits: Tensor, epsilon: float, iterations: int) -> Tensor:
    r"""Return Sinkhorn's assignment of samples to prototypes, computed in log space in float64.

    From :math:`Q = \exp(\text{logits}/\varepsilon)`, each iteration normalises the columns
    (prototypes), then the rows (samples). With 0 iterations the result is a softmax.

    Shapes: ``(N, k) -> (N, k)``, rows sum to 1.

    >>> q = sinkhorn(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), epsilon=0.05, iterations=1)
    >>> q.round(decimals=6).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    log_q = logits.double() / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(0, keepdim=True)
        log_q = log_q - log_q.logsumexp(1, keepdim=True)
    return log_q.softmax(1)


def curve(variant: str, group: str, lam: Tensor, value: Tensor, trained: bool = False) -> Curve:
    """Return a filter over the leading eigenvalues, with its slope.

    >>> lam = torch.tensor([1.0, 0.5, 0.25])
    >>> round(curve("h", "", lam, lam**-0.25).slope, 6)
    -0.25
    """
    m = leading(lam)
    lam = lam[:m]
    value = value[:m]
    # A least-squares fit on log-log axes.
    positive = value > 0  # zeros have no logarithm; also excludes NaN
    x = lam[positive].log()
    y = value[positive].log()
    x = x - x.mean()
    slope = (x * y).sum() / x.square().sum()  # NaN for a single point
    return Curve(variant, group, lam.numpy(), value.numpy(), float(slope), trained)


def eigenvalues(x: Tensor) -> Tensor:
    """Return the eigenvalues of E[x x^T], descending, from the smaller of the two Gram matrices.

    >>> eigenvalues(torch.tensor([[3.0, 0.0, 4.0]]))
    tensor([25.])
    """
    n, k = x.shape
    if n < k:
        x = x.mT  # E[x x^T] and x x^T / n share their non-zero eigenvalues
    return descending(x.mT @ x / n)
