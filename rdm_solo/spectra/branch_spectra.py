"""Spectra of the two branches over an epoch: one metric, right on one process and on many."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from rdm_solo.distributed import gather, sum_over_processes, world_size
from rdm_solo.messages import check_whole
from rdm_solo.spectra.epoch_summary import Spectra, summarize
from rdm_solo.spectra.moments import Moments, from_matrices, from_rows, spread
from rdm_solo.spectra.sampling import LAST, few_rows, keep_smallest, row_hashes

# The square of a larger number has no room for a sum in float64.
LARGEST = 1e140


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
    4 N k numbers are kept (k = 65536: 1 GiB), and an update takes next to no memory beside them.

    Args:
        dim: k, the outputs' dimension.
        normalize: scale rows to unit length first (``True`` for SimSiam and BYOL; outputs of a
            softmax are taken as they are).
        m: how many eigenvectors count in the alignments named ``_paper_m`` (Appendix B.3): 512, or
            128 for BYOL. Never more than there are.
        max_dim: the largest k for k x k matrices.
        sample: N, the rows that are kept where k is larger.
        steps: whether each update is a training step, which all processes make at the same time,
            each with its part of the rows. Projections are then also looked at around the mean of
            their step (``erank/centred``, ``feature/spread``): a network whose outputs move while
            it trains shows different ones over an epoch even where each step has but one. An
            update sends k numbers to the other processes. (Of a sample of rows, ``erank/centred``
            is that around the epoch's mean.)

    >>> metric = BranchSpectra(dim=2)
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> metric.update(online=z, target=z, positive=z)
    >>> round(metric.compute().scalars["erank/target"], 6)
    2.0
    """

    full_state_update = False

    sum_online: Tensor
    sum_target: Tensor
    sum_positive: Tensor
    sum_projection: Tensor
    sum_mean: Tensor
    sum_squared: Tensor
    sum_means: Tensor
    sum_means_squared: Tensor
    count: Tensor
    broken: Tensor
    batches: Tensor
    with_positives: Tensor
    kept: list[Tensor]
    kept_keys: list[Tensor]

    def __init__(
        self,
        dim: int,
        normalize: bool = True,
        m: int = 512,
        max_dim: int = 4096,
        sample: int = 1024,
        steps: bool = False,
    ) -> None:
        sampled = dim > max_dim
        super().__init__(compute_with_cache=False, dist_sync_fn=None if sampled else added)
        for name, value in (("dim", dim), ("max_dim", max_dim), ("sample", sample), ("m", m)):
            check_whole(name, value, 1)
        self.dim, self.normalize, self.m = dim, normalize, m
        self.sampled, self.sample, self.steps = sampled, sample, steps
        shapes: dict[str, tuple[int, ...]] = {"sum_mean": (dim,)}
        shapes |= {"sum_squared": (), "sum_means_squared": ()}
        if self.sampled:
            for name in ("kept", "kept_keys"):
                self.add_state(name, [], dist_reduce_fx="cat")
        else:
            for name in ("sum_online", "sum_target", "sum_positive", "sum_projection"):
                shapes[name] = (dim, dim)
            if steps:
                shapes["sum_means"] = (dim, dim)
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("count", "broken", "batches", "with_positives"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    @torch.no_grad()
    def update(
        self,
        online: Tensor,
        target: Tensor,
        positive: Tensor | None = None,
        projection: Tensor | None = None,
    ) -> None:
        """Add a batch. Shapes: ``(N, k)`` each. Rows with NaN or infinity in any of them are left
        out, as the filters do, and counted; so are rows that are not normalised and whose squares
        leave the range of float64. Positives come with every batch or with none."""
        if projection is None:
            projection = target
        given = {"online": online, "target": target, "positive": positive, "projection": projection}
        parts = {name: x for name, x in given.items() if x is not None}
        for name, x in parts.items():
            if x.ndim != 2 or x.shape != (len(online), self.dim):
                raise ValueError(
                    f"{name} must have shape (N, {self.dim}) with one N for all, "
                    f"got {tuple(x.shape)} beside {tuple(online.shape)}."
                )
        # Either of them is NaN where any number is.
        end = math.inf if self.normalize else LARGEST
        finite = [(x.amax(1) < end) & (x.amin(1) > -end) for x in _once(parts.values())]
        whole = torch.stack(finite).all(0)
        self.count += whole.sum()
        self.broken += (~whole).sum()
        self.batches += 1
        self.with_positives += positive is not None
        if self.sampled:
            self._keep(parts, whole)
        else:
            self._add_products(parts, whole)

    def _rows(self, x: Tensor, whole: Tensor) -> Tensor:
        # Zero rows add nothing; dropping them would make the device tell how many are left.
        return self._unit(x.where(whole[:, None], 0.0))

    def _unit(self, x: Tensor) -> Tensor:
        """Rows in float64, of length 1 (those of nothing but zeros stay) where that is asked."""
        y = x.double()
        if not self.normalize:
            return y
        if x.dtype == torch.double:  # whose squares may leave the range
            largest = torch.linalg.vector_norm(y, math.inf, dim=1, keepdim=True)
            y = y / torch.where(largest > 0, largest, 1.0)
        return torch.nn.functional.normalize(y, dim=1, eps=1e-150)

    def _add_moments(self, blocks: Iterable[Tensor], whole: Tensor) -> None:
        """A batch's projections, some rows at a time."""
        total = torch.zeros_like(self.sum_mean)
        for y in blocks:
            total += y.sum(0)
            self.sum_squared += y.square().sum()
        self.sum_mean += total
        if not self.steps:
            return
        of_step = step_mean(total, whole)
        self.sum_means_squared += of_step.square().sum()
        if not self.sampled:
            self.sum_means.addr_(of_step, of_step)

    def _add_products(self, parts: dict[str, Tensor], whole: Tensor) -> None:
        """A batch's moments; outputs that are one tensor are multiplied once."""
        unit = {id(x): self._rows(x, whole) for x in _once(parts.values())}
        rows = {name: unit[id(x)] for name, x in parts.items()}
        branches = _once(parts[name] for name in ("online", "target", "projection"))
        grams = {id(x): unit[id(x)].mT @ unit[id(x)] for x in branches}
        self.sum_online += grams[id(parts["online"])]
        self.sum_target += grams[id(parts["target"])]
        self.sum_projection += grams[id(parts["projection"])]
        self._add_moments([rows["projection"]], whole)
        if "positive" in rows:
            self.sum_positive += rows["target"].mT @ rows["positive"]

    def _keep(self, parts: dict[str, Tensor], whole: Tensor) -> None:
        """Of the rows so far and these, the ones with the smallest hashes."""
        y = parts["projection"]
        blocks = (self._rows(y[rows], whole[rows]) for rows in few_rows(*y.shape))
        self._add_moments(blocks, whole)
        target = parts["target"]
        outputs = [parts["online"], target, parts.get("positive", target), y]
        kept, key = self._room(any(x.dtype == torch.double for x in outputs))
        keep_smallest(kept, key, outputs, row_hashes(outputs, whole))

    def _room(self, double: bool) -> tuple[Tensor, Tensor]:
        """Places for N rows ``(N, 4, k)``, with the rows so far in them, and their hashes."""
        if len(self.kept) != 1 or len(self.kept[0]) != self.sample:
            dtype = self.kept[0].dtype if self.kept else torch.double if double else torch.float
            kept = torch.empty(self.sample, 4, self.dim, dtype=dtype, device=self.count.device)
            key = torch.full((self.sample,), LAST, device=self.count.device)
            for rows, theirs in zip(self.kept, self.kept_keys):
                keep_smallest(kept, key, rows.unbind(1), theirs)
            self.kept, self.kept_keys = [kept], [key]
        return self.kept[0], self.kept_keys[0]

    def sync(self, *args: Any, **options: Any) -> None:
        """Before rows travel, each process drops those that others' smaller hashes rule out: N rows
        are sent in all, not N from each. One that had no batch takes part with no row."""
        several = options.get("should_sync", True) and world_size() > 1
        if self.sampled and several and not self._is_synced:
            rows, key = self._room(False)
            double = torch.cat(gather(key.new_tensor([rows.dtype == torch.double]))).any()
            limit = torch.cat(gather(key)).sort().values[self.sample - 1]
            stays = (key <= limit) & (key < LAST)
            self.kept = [rows[stays].double() if double else rows[stays]]
            self.kept_keys = [key[stays]]
        super().sync(*args, **options)

    @torch.no_grad()
    def compute(self) -> Spectra:
        """Eigenvalues, curves and scalars of everything since the last reset."""
        seen, batches, with_positives = map(int, (self.count, self.batches, self.with_positives))
        if seen == 0:
            what = "no batch yet; call update() first" if not self.broken else "no finite row"
            raise ValueError(f"BranchSpectra has seen {what}.")
        if 0 < with_positives < batches:
            raise ValueError(
                "positive was given with some batches and left out with others; give it always, "
                "or never, between two resets."
            )
        moment, off = self.sum_squared / seen, self.sum_means_squared / seen
        rows = min(seen, self.sample) if self.sampled else seen
        of_rows = self._of_sample if self.sampled else self._of_sums
        moments = of_rows(rows, with_positives > 0)
        scalars = {"feature/variance": moment - (self.sum_mean / seen).square().sum()}
        if self.steps:
            scalars["feature/spread"] = spread(moment, off)
        return summarize(moments, scalars, self.dim, rows, self.m, self.sampled)

    def _of_sums(self, rows: int, positives: bool) -> Moments:
        C_p, C_z, C_y = (s / rows for s in (self.sum_online, self.sum_target, self.sum_projection))
        C_plus = (self.sum_positive + self.sum_positive.mT) / (2 * rows) if positives else None
        return from_matrices(C_p, C_z, C_plus, C_y, self.sum_means / rows if self.steps else None)

    def _of_sample(self, rows: int, positives: bool) -> Moments:
        order = dim_zero_cat(self.kept_keys).argsort()[:rows]
        p, z, plus, y = (self._unit(x[order]) for x in dim_zero_cat(self.kept).unbind(1))
        length = min(self.sample, self.dim)
        return from_rows(p, z, plus if positives else None, y, length, around_mean=self.steps)


def _once(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Each tensor once, however many of the outputs it is."""
    return list({id(x): x for x in tensors}.values())


def added(x: Tensor, group: Any = None) -> list[Tensor]:
    """For torchmetrics, which else gathers each process's matrices before it adds them."""
    return [sum_over_processes(x.clone(), group)]


def step_mean(total: Tensor, whole: Tensor) -> Tensor:
    """The mean of a step's rows on all processes, from this one's sum of its own; times the root of
    how many it has, so that its outer product is what the mean adds to their products' sum."""
    count = whole.sum().to(total)
    counted = sum_over_processes(torch.cat([total, count[None]]))
    return counted[:-1] / counted[-1].clamp_min(1) * count.sqrt()


class StepCorrelation(Metric):
    """Rows ``(N, b)`` of an epoch's training steps as they are, in float64: their correlation
    matrix, and the part of it that the steps' means make. All processes update at the same time.

    >>> metric = StepCorrelation(dim=2)
    >>> metric.update(torch.eye(2))
    >>> C, C_means = metric.compute()
    >>> C.diagonal(), C_means.diagonal()
    (tensor([0.5000, 0.5000], dtype=torch.float64), tensor([0.2500, 0.2500], dtype=torch.float64))
    """

    full_state_update = False

    total: Tensor
    means: Tensor
    count: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__(compute_with_cache=False, dist_sync_fn=added)
        for name in ("total", "means"):
            self.add_state(name, torch.zeros(dim, dim, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        whole = (x.abs() < LARGEST).all(1)
        x = x.double().where(whole[:, None], 0.0)
        of_step = step_mean(x.sum(0), whole)
        self.total += x.mT @ x
        self.means.addr_(of_step, of_step)
        self.count += whole.sum()

    @torch.no_grad()
    def compute(self) -> tuple[Tensor, Tensor]:
        rows = self.count.clamp_min(1)
        return self.total / rows, self.means / rows
