"""Spectra of the two branches over an epoch: one metric, right on one process and on many."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from rdm_solo.messages import check_whole
from rdm_solo.spectra.epoch_summary import Spectra, summarize
from rdm_solo.spectra.moments import Moments, from_matrices, from_rows
from rdm_solo.spectra.sampling import LAST, few_rows, keep_smallest, row_hashes

__all__ = ["BranchSpectra", "Correlation"]

# How many eigenvectors count in the paper's alignment (Appendix B.3); 128 for BYOL.
PAPER_M = 512
# Shorter rows keep their length, as in torch.nn.functional.normalize.
SHORTEST = 1e-12
MIXED = (
    "positive was given with some batches and left out with others; give it always, or never, "
    "between two resets."
)


class BranchSpectra(Metric):
    """Correlation matrices of both branches over an epoch, and the numbers read off them.

    Second moments are summed in float64 and added over processes, so two processes equal one.
    ``update`` takes the online outputs p_x, the target outputs z_x of the same views, z_{x+} of
    their positives if there are any, and, where a filter stands between, the unfiltered
    projections.

    Beyond ``max_dim`` dimensions a k x k matrix is too large. Then ``sample`` rows are kept, by a
    hash of their content, which makes the choice independent of order, batches and processes; and
    eigenvalues, curves and alignments come from these rows' Gram matrices, exactly. They are the
    sample's: flat spectra come out with too low an effective rank (1/i at k = 8192, 1024 rows: 0.41
    of the truth), steep ones do not (1/i^2: 0.996).
    N k numbers are kept of each output, of projections where they are not the targets (three
    outputs of k = 65536: 0.75 GiB), and an update takes next to no memory beside them.

    Args:
        dim: k, the outputs' dimension.
        normalize: scale rows to unit length first (``True`` for SimSiam and BYOL; outputs of a
            softmax are taken as they are).
        m: how many eigenvectors count in the alignments named ``_paper_m``: the paper's 512, or
            128 for BYOL. Never more than there are.
        max_dim: the largest k for k x k matrices.
        sample: N, the rows that are kept where k is larger.

    >>> metric = BranchSpectra(dim=2)
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> metric.update(online=z, target=z, positive=z)
    >>> round(metric.compute().scalars["erank/target"], 6)
    2.0
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    sum_online: Tensor
    sum_target: Tensor
    sum_positive: Tensor
    sum_projection: Tensor
    sum_mean: Tensor
    sum_squared: Tensor
    count: Tensor
    broken: Tensor
    kept: list[Tensor] | Tensor
    kept_keys: list[Tensor] | Tensor

    def __init__(
        self,
        dim: int,
        normalize: bool = True,
        m: int | None = None,
        max_dim: int = 4096,
        sample: int = 1024,
    ) -> None:
        super().__init__(compute_with_cache=False)
        self.m = PAPER_M if m is None else m
        for name, value in (("dim", dim), ("max_dim", max_dim), ("sample", sample), ("m", self.m)):
            check_whole(name, value, 1)
        self.dim, self.normalize = dim, normalize
        self.sampled, self.sample = dim > max_dim, sample
        zero = torch.zeros((), dtype=torch.float64)
        if self.sampled:
            for name in ("kept", "kept_keys"):
                self.add_state(name, [], dist_reduce_fx="cat")
        else:
            for name in ("sum_online", "sum_target", "sum_positive", "sum_projection"):
                self.add_state(name, zero.expand(dim, dim).clone(), dist_reduce_fx="sum")
        self.add_state("sum_mean", zero.expand(dim).clone(), dist_reduce_fx="sum")
        self.add_state("sum_squared", zero.clone(), dist_reduce_fx="sum")
        for name in ("count", "broken"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        self._positives: bool | None = None

    def reset(self) -> None:
        super().reset()
        self._positives = None

    @torch.no_grad()
    def update(
        self,
        online: Tensor,
        target: Tensor,
        positive: Tensor | None = None,
        projection: Tensor | None = None,
    ) -> None:
        """Add a batch. Shapes: ``(N, k)`` each. Rows with NaN or infinity in any of them are left
        out, as the filters do, and counted. Positives come with every batch or with none."""
        given = {"online": online, "target": target, "positive": positive, "projection": projection}
        parts = {name: x for name, x in given.items() if x is not None}
        self._check(parts)
        # Either of them is NaN where any number is.
        finite = [x.amax(1).isfinite() & x.amin(1).isfinite() for x in parts.values()]
        whole = torch.stack(finite).all(0)
        self.count += whole.sum()
        self.broken += (~whole).sum()
        if projection is None:
            projection = target
        if not self.sampled:
            self._add_products(online, target, positive, projection, whole)
            return
        for rows in few_rows(*projection.shape):
            self._add_moments(self._rows(projection[rows], whole[rows]))
        outputs = [online, target, *([] if positive is None else [positive]), projection]
        self._keep(outputs, projection is not target, whole)

    def _check(self, parts: dict[str, Tensor]) -> None:
        for name, x in parts.items():
            if x.ndim != 2 or x.shape != (len(parts["online"]), self.dim):
                raise ValueError(
                    f"{name} must have shape (N, {self.dim}) with one N for all, "
                    f"got {tuple(x.shape)} beside {tuple(parts['online'].shape)}."
                )
        if self._positives not in (None, "positive" in parts):
            raise ValueError(MIXED)
        self._positives = "positive" in parts

    def _rows(self, x: Tensor, whole: Tensor) -> Tensor:
        # Zero rows add nothing; dropping them would make the device tell how many are left.
        return self._unit(x.double().where(whole[:, None], 0.0))

    def _unit(self, x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x, dim=1, eps=SHORTEST) if self.normalize else x

    def _add_moments(self, y: Tensor) -> None:
        self.sum_mean += y.sum(0)
        self.sum_squared += y.square().sum()

    def _add_products(
        self,
        online: Tensor,
        target: Tensor,
        positive: Tensor | None,
        projection: Tensor,
        whole: Tensor,
    ) -> None:
        """A batch's moments; outputs that are one tensor are multiplied once."""
        z = self._rows(target, whole)
        z_z = z.mT @ z
        p, p_p = z, z_z
        if online is not target:
            p = self._rows(online, whole)
            p_p = p.mT @ p
        if projection is target:
            y, y_y = z, z_z
        elif projection is online:
            y, y_y = p, p_p
        else:
            y = self._rows(projection, whole)
            y_y = y.mT @ y
        self._add_moments(y)
        self.sum_online += p_p
        self.sum_target += z_z
        self.sum_projection += y_y
        if positive is not None:
            self.sum_positive += z.mT @ self._rows(positive, whole)

    def _keep(self, outputs: list[Tensor], projected: bool, whole: Tensor) -> None:
        """Of the rows so far and these, the ones with the smallest hashes. The projection comes
        last; where it is the target, it takes no place of its own."""
        dtype = reduce(torch.promote_types, (x.dtype for x in outputs), torch.float32)
        kept, key = self._room(len(outputs) - (not projected), dtype)
        keep_smallest(kept, key, outputs[: kept.shape[1]], row_hashes(outputs, whole))

    def _room(self, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Places for N rows ``(N, outputs, k)``, with the rows so far in them, and their hashes."""
        pieces = list(zip(self.kept, self.kept_keys))
        outputs = max([outputs, *(rows.shape[1] for rows, _ in pieces)])
        dtype = reduce(torch.promote_types, (rows.dtype for rows, _ in pieces), dtype)
        shape = self.sample, outputs, self.dim
        if len(pieces) != 1 or pieces[0][0].shape != shape or pieces[0][0].dtype != dtype:
            kept = torch.empty(shape, dtype=dtype, device=self.count.device)
            key = torch.full((self.sample,), LAST, device=self.count.device)
            for rows, theirs in pieces:  # without a projection it is the target
                keep_smallest(kept, key, [*rows.unbind(1), rows[:, 1]][:outputs], theirs)
            self.kept, self.kept_keys = [kept], [key]
        return self.kept[0], self.kept_keys[0]

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        distributed_available: Callable[..., Any] | None = None,
    ) -> None:
        """Before rows travel, each process drops those that others' smaller hashes rule out: N rows
        are sent in all, not N from each. One that had no batch takes part with no row."""
        available = distributed_available or self.distributed_available_fn
        if should_sync and not self._is_synced and callable(available) and available():
            gather = dist_sync_fn or gather_all_tensors
            self._agree(lambda x: gather(x, process_group or self.process_group))
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)

    def _agree(self, gather: Callable[[Tensor], list[Tensor]]) -> None:
        """Settle on all processes whether there are positives, and which rows stay where."""
        device, kept = self.count.device, self.kept if self.sampled else []
        outputs = max((rows.shape[1] for rows in kept), default=0)
        double = any(rows.dtype == torch.double for rows in kept)
        mine = [self._positives is True, self._positives is False, double, outputs]
        every = torch.stack(gather(torch.tensor(mine, dtype=torch.long, device=device)))
        some_with, some_without, double, outputs = every.amax(0).tolist()
        if some_with and some_without:
            raise ValueError(MIXED)
        if not (some_with or some_without):
            return  # no batch on any process
        self._positives = bool(some_with)
        if self.sampled:
            rows, key = self._room(outputs, torch.float64 if double else torch.float32)
            limit = torch.cat(gather(key)).sort().values[: self.sample][-1]
            stays = (key <= limit) & (key < LAST)
            self.kept, self.kept_keys = [rows[stays]], [key[stays]]

    @torch.no_grad()
    def compute(self) -> Spectra:
        """Eigenvalues, curves and scalars of everything since the last reset."""
        seen = int(self.count)
        if seen == 0:
            what = "no batch yet; call update() first" if not self.broken else "no finite row"
            raise ValueError(f"BranchSpectra has seen {what}.")
        rows = min(seen, self.sample) if self.sampled else seen
        moments = self._of_sample() if self.sampled else self._of_sums(seen)
        variance = self.sum_squared / seen - (self.sum_mean / seen).square().sum()
        return summarize(moments, variance, rows, self.m, self.sampled)

    def _of_sums(self, rows: int) -> Moments:
        C_p, C_z, C_y = (s / rows for s in (self.sum_online, self.sum_target, self.sum_projection))
        C_plus = (self.sum_positive + self.sum_positive.mT) / (2 * rows)
        return from_matrices(C_p, C_z, C_plus if self._positives else None, C_y)

    def _of_sample(self) -> Moments:
        if isinstance(self.kept, Tensor) and isinstance(self.kept_keys, Tensor):
            rows, key = self.kept, self.kept_keys  # of all processes
        else:
            rows, key = self._room(0, torch.float32)
        key, order = key.sort()
        order = order[key < LAST][: self.sample]
        p, z, *others = (self._unit(x[order].double()) for x in rows.unbind(1))
        plus = others.pop(0) if self._positives else None
        y = others[0] if others else z
        return from_rows(p, z, plus, y, min(self.sample, self.dim))


class Correlation(Metric):
    """The correlation matrix of rows ``(N, b)`` over an epoch, as they are, in float64.

    >>> metric = Correlation(dim=2)
    >>> metric.update(torch.eye(2))
    >>> metric.compute().tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    total: Tensor
    count: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__(compute_with_cache=False)
        self.add_state("total", torch.zeros(dim, dim, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        whole = x.isfinite().all(1)
        x = x.double().where(whole[:, None], 0.0)
        self.total += x.mT @ x
        self.count += whole.sum()

    @torch.no_grad()
    def compute(self) -> Tensor:
        return self.total / self.count.clamp_min(1)
