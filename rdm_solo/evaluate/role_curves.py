"""The curves of :mod:`rdm_solo.roles`: a design's filters, and what they would be without it."""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from rdm_solo.messages import UserError
from rdm_solo.runs.roles_file import Series
from rdm_solo.spectra.comparison import filter_curve, ideal_filter, leading, spearman
from rdm_solo.spectra.matrices import correlation
from rdm_solo.spectra.ranks import effective_rank

if TYPE_CHECKING:
    from rdm_solo.evaluate.finished_run import FinishedRun

ITERATIONS = (0, 1, 2, 3)
TEMPERATURES = (0.04, 0.07, 0.1, 0.2)
# Logits that are kept at once, 256 MiB of them; with a larger k fewer rows enter.
MOST = 2**26
# Rounding of float32 outputs leaves this share of the largest eigenvalue at most, with a margin of
# a thousand: a predictor with a bottleneck has a rank below k, and no filter behind it.
ROUNDING = 1e-12


class Curves(NamedTuple):
    """What is measured of a run; the fields are those of ``Roles``."""

    branch: str
    series: tuple[Series, ...]
    own: str
    erank: float
    rows: int
    note: str = ""


def _of_predictor(finished: "FinishedRun", rows: int) -> Curves:
    """A method with a predictor: the ideal predictor's filter and the one that is there."""
    model = finished.model
    outputs: list[list[Tensor]] = [[], [], []]
    for crops in finished.batches(rows):
        projections = [model.projector(model.backbone(x)) for x in crops]
        if hasattr(model, "momentum_projector"):
            targets = [model.momentum_projector(model.momentum_backbone(x)) for x in crops]
        else:
            targets = projections
        if hasattr(model, "find_nn"):
            targets = [model.find_nn(normalize(z, dim=-1))[1] for z in targets]
        elif not hasattr(model, "momentum_projector"):
            targets = [model.target_head(z) for z in targets]
        outputs[0] += [model.predictor(z) for z in projections]
        outputs[1] += targets
        outputs[2] += targets[1:] + targets[:1]
    p, z, z_plus = (normalize(_joined(parts), dim=1) for parts in outputs)

    lam_p = eigenvalues(p)
    lam_p = lam_p.where(lam_p > ROUNDING * lam_p[0], 0.0)
    lam_z, u = torch.linalg.eigh(correlation(z))
    lam_z, u = lam_z.flip(0).clamp_min(0), u.flip(1)
    C_plus = z.mT @ z_plus / len(z)
    C_plus = (C_plus + C_plus.mT) / 2
    lam_plus = torch.linalg.eigvalsh(C_plus).flip(0)
    along = (u * (C_plus @ u)).sum(0)

    series = [curve("g", "actual", lam_z, filter_curve(lam_p, lam_z), lam_p)]
    for name, lam in (("omega", lam_plus), ("omega, directional", along)):
        omega = ideal_filter(lam, lam_z)
        # What the ideal predictor W* makes of the target has W* C_z W*^T.
        series.append(curve(name, "ideal", lam_z, omega, omega.square().nan_to_num(0) * lam_z))
    return Curves("online", tuple(series), "g", float(effective_rank(lam_z)), len(z))


def _of_swav(finished: "FinishedRun", rows: int) -> Curves:
    """SwAV: more and more Sinkhorn iterations of the same logits."""
    model = finished.model
    epsilon, temperature = float(model.sk_epsilon), float(model.temperature)
    logits = [
        model.prototypes(normalize(model.projector(model.backbone(x)))).float()
        for crops in finished.batches(_at_most(rows, finished, model.prototypes.out_features))
        for x in crops
    ]
    waiting = [] if finished.queue is None else [model.prototypes(z) for z in finished.queue]

    def name(sharpness: float, n: int) -> str:
        return f"{n} iteration{'s' * (n != 1)}, ε = {sharpness:g}"

    lam_p = eigenvalues((_joined(logits) / temperature).softmax(1))
    series = []
    counts = sorted({*ITERATIONS, model.sk_iters})
    for sharpness in dict.fromkeys((epsilon, temperature)):
        for n in counts if sharpness == epsilon else counts[1:]:
            parts = []
            for i, x in enumerate(logits):  # Sinkhorn's batch is one view's, with its own queue
                queued = waiting[i % finished.views : i % finished.views + 1]
                parts.append(sinkhorn(torch.cat([x, *queued]), sharpness, n)[: len(x)])
            lam = eigenvalues(torch.cat(parts))
            g = filter_curve(lam, lam_p)
            series.append(curve(name(sharpness, n), f"ε = {sharpness:g}", lam_p, g, lam))
    return Curves(
        branch="target",
        series=tuple(series),
        own=name(epsilon, model.sk_iters),
        erank=float(effective_rank(lam_p)),
        rows=sum(map(len, logits)),
        note=f"online temperature {temperature:g}",
    )


def _of_dino(finished: "FinishedRun", rows: int) -> Curves:
    """DINO: with and without centring, at several temperatures."""
    model = finished.model
    loss = model.dino_loss_func
    student, teacher = [], []
    for crops in finished.batches(_at_most(rows, finished, 2 * loss.center.shape[1])):
        for x in crops:
            student.append(model.head(model.backbone(x)).float())
            teacher.append(model.momentum_head(model.momentum_backbone(x)).float())
    online, own = float(loss.student_temp), float(loss.teacher_temp_schedule[finished.epoch])
    z = _joined(teacher)
    trained_centred = bool(loss.center.any())
    centre = loss.center.double() if trained_centred else z.mean(0, keepdim=True)

    lam_p = eigenvalues((_joined(student) / online).softmax(1))
    series = []
    for shift, group in ((0.0, "not centred"), (centre, "centred")):
        for t in sorted({*TEMPERATURES, round(online, 6), round(own, 6)}):
            lam = eigenvalues(((z - shift) / t).softmax(1))
            g = filter_curve(lam, lam_p)
            series.append(curve(f"{group}, t = {t:.4g}", group, lam_p, g, lam))
    return Curves(
        branch="target",
        series=tuple(series),
        own=f"{'centred' if trained_centred else 'not centred'}, t = {own:.4g}",
        erank=float(effective_rank(lam_p)),
        rows=len(z),
        note=f"online temperature {online:g}",
    )


def sinkhorn(logits: Tensor, epsilon: float, iterations: int) -> Tensor:
    r"""Sinkhorn's assignment of samples to prototypes, in float64 and in logarithms.

    From :math:`Q = \exp(\text{logits}/\varepsilon)` each iteration makes first the prototypes'
    shares equal (columns), then each sample's (rows). Without an iteration rows alone are scaled,
    which is a softmax.

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


def curve(name: str, group: str, lam: Tensor, value: Tensor, behind: Tensor) -> Series:
    """A curve over the leading eigenvalues; ``behind`` are those of the outputs behind it.

    >>> lam = torch.tensor([1.0, 0.5, 0.25])
    >>> round(curve("h", "", lam, lam**-0.25, lam).slope, 6)
    -0.25
    """
    m = leading(lam)
    lam, value = lam[:m], value[:m]
    rising = value > 0  # and no NaN: neither has a logarithm
    x, y = lam[rising].log(), value[rising].log()
    x = x - x.mean()
    slope = float((x * y).sum() / x.square().sum()) if len(x) > 1 else float("nan")
    known = value.isfinite()
    monotonicity = float(spearman(value[known], lam[known]))
    erank = float(effective_rank(behind))
    return Series(name, group, lam.cpu().numpy(), value.cpu().numpy(), monotonicity, slope, erank)


def eigenvalues(x: Tensor) -> Tensor:
    """Those of E[x x^T] that can be other than zero, from the smaller of the two Gram matrices.

    >>> eigenvalues(torch.tensor([[3.0, 0.0, 4.0]]))
    tensor([25.])
    """
    gram = x @ x.mT if len(x) < x.shape[1] else x.mT @ x
    lam: Tensor = torch.linalg.eigvalsh(gram / len(x)).flip(0).clamp_min(0)
    return lam


def _joined(parts: list[Tensor]) -> Tensor:
    x = torch.cat(parts).double()
    if not x.isfinite().all():
        raise UserError("the checkpoint's outputs are NaN or infinite: its run has diverged.")
    return x


def _at_most(rows: int, finished: "FinishedRun", k: int) -> int:
    """Fewer rows where they would not fit, at least one batch."""
    return max(finished.loader.batch_size * finished.views, min(rows, MOST // k))


# By what makes the branches differ: `Method.asymmetry`.
MEASURES = {"predictor": _of_predictor, "sinkhorn": _of_swav, "centring": _of_dino}
