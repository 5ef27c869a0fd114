"""A metric of both branches' spectra over an epoch, for one or several processes."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from rdm_solo.ground.distributed import gather, sum_over_processes, world_size
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.values import check_integer
from rdm_solo.spectra import rows as measures
from rdm_solo.spectra.epoch_summary import Spectra, summarize
from rdm_solo.spectra.moments import Moments, from_matrices
from rdm_solo.spectra.sampling import (
    LAST,
    keep_smallest,
    row_blocks,
    row_hashes,
    union_candidates,
)

# Uniformity compares all pairs of at most this many rows.
PAIRED_ROWS = 4096
# Squares of larger numbers can overflow when they are summed in float64.
LARGEST = 1e140
# Number of columns of a Gram matrix that are computed at a time.
BLOCK = 256


class BranchSpectra(Metric):
    """Correlation matrices of both branches over an epoch, and the measures computed from them.

    ``update`` takes the online outputs p_x, the target outputs z_x of the same views, z_{x+} of
    their positives if there are any, and the unfiltered projections if a filter is used. Second
    moments are summed in float64 over all processes, so the result equals that of one process.

    Above ``max_dim`` dimensions k x k matrices are too large, and N = ``sample`` rows are kept
    instead. They are chosen by a hash of their content, so they do not depend on order, batches or
    processes. Eigenvalues, curves and alignments are exact for these rows. ``Spectra.warning``
    states the sampling error. The rows take 4 N k numbers (k = 65536: 1 GiB).

    Args:
        dim: k, the outputs' dimension.
        normalize: whether to scale rows to unit length (for SimSiam and BYOL; not after a softmax).
        m: the largest number of eigenvectors in the alignments named ``_paper_m``: 512, or 128 for
            BYOL (Appendix B.3).
        max_dim: the largest k for k x k matrices.
        sample: N, the number of rows kept for larger k.
        steps: whether each update is a training step that all processes make together. This adds
            ``erank/centred`` and ``feature/spread``, centred on each step's mean. Around the
            epoch's mean, outputs that drift would look spread out even if each step has a single
            output. For sampled rows, ``erank/centred`` still uses the epoch's mean.

    >>> metric = BranchSpectra(dim=2)
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> metric.update(online=z, target=z, positive=z)
    >>> round(metric.compute().scalars["erank/target"], 6)
    2.0
    """

    full_state_update = True
    kept: list[Tensor]
    kept_keys: list[Tensor]

    if TYPE_CHECKING:  # the other states are tensors

        def __getattr__(self, name: str) -> Any: ...

    def __init__(
        self,
        dim: int,
        normalize: bool = True,
        m: int = 512,
        max_dim: int = 4096,
        sample: int = 1024,
        steps: bool = False,
    ) -> None:
        super().__init__(compute_with_cache=False, dist_sync_fn=add_or_gather)
        for name, value in (("dim", dim), ("max_dim", max_dim), ("sample", sample), ("m", m)):
            check_integer(name, value, 1)
        self.dim, self.normalize, self.m = dim, normalize, m
        self.sampled, self.sample, self.steps = dim > max_dim, sample, steps
        self.kept_size, self.kept_parts = (sample, 4) if self.sampled else (PAIRED_ROWS, 1)
        shapes: dict[str, tuple[int, ...]] = {"sum_mean": (dim,)}
        shapes |= {"sum_squared": (), "sum_means_squared": ()}
        for name in ("kept", "kept_keys"):
            self.add_state(name, [], dist_reduce_fx="cat")
        if not self.sampled:
            for name in ("sum_online", "sum_target", "sum_positive", "sum_projection"):
                shapes[name] = (dim, dim)
            if steps:
                shapes["sum_means"] = (dim, dim)
            shapes |= {"sum_target_mean": (dim,), "sum_distance": ()}
            axes = measures.directions(dim)
            self.register_buffer("directions", axes, persistent=False)
            shapes["sum_waves"] = (2 * (measures.POINTS - 1), axes.shape[1])
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("count", "broken", "batches", "with_positives", "in_pairs"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        # The eps of the online outputs' dtype. It is not a state: all processes have the same.
        self.spacing = 0.0

    @torch.no_grad()
    def update(
        self,
        online: Tensor,
        target: Tensor,
        positive: Tensor | None = None,
        projection: Tensor | None = None,
    ) -> None:
        """Add a batch of outputs ``(N, k)``. Pass positives with every batch or with none.

        Rows with NaN or infinity, or with squares out of range, are excluded and counted.
        """
        y = target if projection is None else projection
        outputs = [online, target, y] if positive is None else [online, target, y, positive]
        for x in outputs:
            if x.ndim != 2 or x.shape != (len(online), self.dim):
                raise UserError(
                    f"all outputs must have shape (N, {self.dim}) with one N, "
                    f"got {tuple(x.shape)} and {tuple(online.shape)}."
                )
        # amax and amin of a row with NaN are NaN.
        end = math.inf if self.normalize else LARGEST
        valid = torch.stack([(x.amax(1) < end) & (x.amin(1) > -end) for x in outputs]).all(0)
        self.count += valid.sum()
        self.broken += (~valid).sum()
        self.batches += 1
        self.spacing = max(self.spacing, torch.finfo(online.dtype).eps)
        self.with_positives += positive is not None
        if self.sampled:
            blocks = (self._rows(y[rows], valid[rows]) for rows in row_blocks(*y.shape))
            self._add_moments(blocks, valid)
            parts = [online, target, target if positive is None else positive, y]
            self._keep(parts, row_hashes(parts, valid))
        else:
            self._add_sums(online, target, positive, y, valid)

    def _rows(self, x: Tensor, valid: Tensor) -> Tensor:
        # Rows of zeros add nothing to sums. Dropping rows would synchronise with the device.
        return self._scaled(x.where(valid[:, None], 0.0))

    def _scaled(self, x: Tensor) -> Tensor:
        return unit_rows(x) if self.normalize else x.double()

    def _add_moments(self, blocks: Iterable[Tensor], valid: Tensor) -> None:
        """Add the first and second moments of a batch's projections, given in blocks of rows."""
        total = torch.zeros_like(self.sum_mean)
        for y in blocks:
            total += y.sum(0)
            self.sum_squared += y.square().sum()
        self.sum_mean += total
        if not self.steps:
            return
        mean = step_mean(total, valid)
        self.sum_means_squared += mean.square().sum()
        if not self.sampled:
            self.sum_means.addr_(mean, mean)

    def _add_sums(
        self, online: Tensor, target: Tensor, positive: Tensor | None, y: Tensor, valid: Tensor
    ) -> None:
        """Add a batch's moments; ``y``, the projections, is often ``online`` or ``target``."""
        p, z = self._rows(online, valid), self._rows(target, valid)
        gram_p, gram_z = upper_gram(p), upper_gram(z)
        self.sum_online += gram_p
        self.sum_target += gram_z
        if y is target:
            projections, gram_y = z, gram_z
        elif y is online:
            projections, gram_y = p, gram_p
        else:
            projections = self._rows(y, valid)
            gram_y = upper_gram(projections)
        self.sum_projection += gram_y
        self._add_moments([projections], valid)
        self.sum_target_mean += z.sum(0)
        if positive is not None:
            z_plus = self._rows(positive, valid)
            self.sum_positive += z.mT @ z_plus
            x, x_plus = (z, z_plus) if self.normalize else (unit_rows(z), unit_rows(z_plus))
            self.sum_distance += torch.dist(x, x_plus).square()
            self.in_pairs += in_pairs(target, positive, valid)
        self.sum_waves += measures.wave_sums(y, self.directions, valid)
        # Many images may share a target, such as a cluster: with the target's hash alone, all
        # copies would enter the sample together.
        self._keep([target], row_hashes([online, target], valid))

    def _keep(self, outputs: list[Tensor], hashes: Tensor) -> None:
        """Keep the rows with the smallest hashes among the kept rows and this batch."""
        kept, key = self._kept_buffers(any(x.dtype == torch.double for x in outputs))
        keep_smallest(kept, key, outputs, hashes)

    def _kept_buffers(self, double: bool) -> tuple[Tensor, Tensor]:
        """Return the kept rows and their hashes, with room for ``kept_size`` rows."""
        kept, keys = self.kept, self.kept_keys
        if not kept or len(kept[0]) != self.kept_size:  # the number differs after a sync
            shape, device = (self.kept_size, self.kept_parts, self.dim), self.count.device
            dtype = kept[0].dtype if kept else torch.double if double else torch.float
            self.kept = [torch.empty(shape, dtype=dtype, device=device)]
            self.kept_keys = [torch.full((self.kept_size, 1, 1), LAST, device=device)]
            hashes = self.kept_keys[0].flatten()
            for rows, key in zip(kept, keys):
                keep_smallest(self.kept[0], hashes, rows.unbind(1), key.flatten())
        return self.kept[0], self.kept_keys[0].flatten()

    def sync(self, *args: Any, **options: Any) -> None:
        """Sync as torchmetrics does, but send N rows in total instead of N per process."""
        if world_size() > 1 and not self._is_synced and options.get("should_sync", True):
            kept, key = union_candidates(*self._kept_buffers(False))
            self.kept, self.kept_keys = [kept], [key[:, None, None]]
        super().sync(*args, **options)

    @torch.no_grad()
    def compute(self) -> Spectra:
        """Return eigenvalues, curves and scalars of all rows since the last reset."""
        count, batches, with_positives = map(int, (self.count, self.batches, self.with_positives))
        if count == 0:
            what = "no batch yet; call update() first" if not self.broken else "no finite row"
            raise UserError(f"BranchSpectra has seen {what}.")
        if 0 < with_positives < batches:
            raise UserError(
                "some batches since the last reset had positives and others had none; pass "
                "positive always or never."
            )
        moment, means_moment = self.sum_squared / count, self.sum_means_squared / count
        scalars = {"feature/variance": moment - (self.sum_mean / count).square().sum()}
        if self.steps:
            scalars["feature/spread"] = measures.spread(moment, means_moment)
        kept = self._kept_rows()
        if self.sampled:
            moments, measured = self._from_sample(kept, with_positives > 0)
        else:
            moments, measured = self._from_sums(count, with_positives > 0, kept)
        rows = len(kept) if self.sampled else count
        scalars |= measured
        return summarize(moments, scalars, self.m, rows, self.dim, self.sampled, self.spacing)

    def _kept_rows(self) -> Tensor:
        """Return the kept rows, ``(n, 4 or 1, k)``, in the order of their hashes."""
        keys = dim_zero_cat(self.kept_keys).flatten()
        order = keys.argsort()[: min(self.kept_size, int((keys < LAST).sum()))]
        return torch.as_tensor(dim_zero_cat(self.kept)[order])

    def _from_sums(
        self, rows: int, positives: bool, kept: Tensor
    ) -> tuple[Moments, dict[str, Tensor]]:
        sums = (self.sum_online, self.sum_target, self.sum_projection)
        C_p, C_z, C_y = (full_gram(s) / rows for s in sums)
        C_plus = (self.sum_positive + self.sum_positive.mT) / (2 * rows) if positives else None
        C_means = self.sum_means / rows if self.steps else None
        mean = self.sum_target_mean / rows
        pairs = rows // 2 if int(self.in_pairs) == int(self.batches) else 0
        scalars = {
            "mean_share/target": 1 - measures.spread(C_z.trace(), mean.square().sum()),
            "epps_pulley/projection": measures.epps_pulley_statistic(self.sum_waves, self.count),
        }
        if positives:
            scalars["positive_distance/target"] = self.sum_distance / rows
        scalars |= _uniformity(kept[:, 0])
        return from_matrices(C_p, C_z, C_plus, C_y, C_means, mean, pairs), scalars

    def _from_sample(self, kept: Tensor, positives: bool) -> tuple[Moments, dict[str, Tensor]]:
        from rdm_solo.spectra.dual_moments import from_rows  # rarely needed

        p, z, plus, y = (self._scaled(x) for x in kept.unbind(1))
        scalars = {
            "mean_share/target": measures.mean_share(z),
            "epps_pulley/projection": measures.epps_pulley(kept[:, 3]),
        }
        if positives:
            distances = (unit_rows(z) - unit_rows(plus)).square().sum(1)
            scalars["positive_distance/target"] = distances.mean()
        scalars |= _uniformity(kept[:, 1])
        length = min(self.sample, self.dim)
        moments = from_rows(p, z, plus if positives else None, y, length, centred=self.steps)
        return moments, scalars


def _uniformity(rows: Tensor) -> dict[str, Tensor]:
    """Return the uniformity of the nonzero rows, or an empty dict for fewer than two."""
    rows = unit_rows(rows[rows.any(1)]).to(rows.dtype)
    return {"uniformity/target": measures.uniformity(rows)} if len(rows) > 1 else {}


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows in float64, scaled to length 1; rows of zeros stay zero."""
    y = rows.double()
    if rows.dtype == torch.double:  # squares may overflow
        largest = torch.linalg.vector_norm(y, math.inf, dim=1, keepdim=True)
        y = y / torch.where(largest > 0, largest, 1.0)
    return torch.nn.functional.normalize(y, dim=1, eps=1e-150)


def upper_gram(x: Tensor) -> Tensor:
    """Return ``x^T x`` with zeros in the blocks below the diagonal."""
    k = x.shape[1]
    gram = x.new_zeros(k, k)
    for i in range(0, k, BLOCK):
        gram[i : i + BLOCK, i:] = x[:, i : i + BLOCK].mT @ x[:, i:]
    return gram


def full_gram(upper: Tensor) -> Tensor:
    """Return the symmetric matrix with this upper triangle."""
    return upper.triu() + upper.triu(1).mT


def in_pairs(target: Tensor, positive: Tensor, valid: Tensor) -> Tensor:
    """Return whether the halves of a batch are each other's positives: two views of each sample.

    Pairs without a valid row are ignored. A pair with only one valid row makes the result False.
    """
    half = len(target) // 2
    if len(target) % 2:
        return valid.new_zeros(())
    other_valid = valid.roll(half)
    alike = (positive.roll(half, 0) == target).all(1) & valid & other_valid
    return (alike | ~(valid | other_valid)).all()


def add_or_gather(x: Tensor, group: Any = None) -> list[Tensor]:
    """Reduce a state for torchmetrics, which would gather all matrices before summing them.

    Sampled rows and their hashes have three axes and are gathered; sums have fewer.
    """
    return gather(x) if x.ndim == 3 else [sum_over_processes(x.clone())]


def step_mean(total: Tensor, valid: Tensor) -> Tensor:
    """Return the step's mean over all processes, from the sum of this process's rows.

    The mean is scaled by the square root of this process's number of rows. Summed over processes,
    outer products of the scaled means are then the mean's part of the summed second moment.
    """
    count = valid.sum().to(total)
    counted = sum_over_processes(torch.cat([total, count[None]]))
    return counted[:-1] / counted[-1].clamp_min(1) * count.sqrt()
