"""A metric of both branches' spectra over an epoch, for one or several processes."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from rdm_solo.ground.distributed import world_size
from rdm_solo.ground.errors import UserError
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
from rdm_solo.spectra.sums import (
    LARGEST,
    SumMetric,
    full_gram,
    step_mean,
    upper_gram,
    valid_rows,
)

# Uniformity compares all pairs of at most this many rows.
PAIRED_ROWS = 4096


class BranchSpectra(SumMetric):
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

    full_state_update = True  # forward() cannot merge the kept rows of two states
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
        super().__init__()
        self.dim = dim
        self.normalize = normalize
        self.m = m
        self.sample = sample
        self.steps = steps
        self.sampled = dim > max_dim
        # The eps of the online outputs' dtype. It is not a state: all processes have the same.
        self.spacing = 0.0

        # Rows p (online), z (target), z_+ (positive) and y (projection) are summed over an epoch.
        self.add_count("count")  # rows
        self.add_count("broken")  # rows that are excluded
        self.add_count("batches")
        self.add_count("with_positives")  # batches
        self.add_sum("sum_mean", dim)  # y, over rows
        self.add_sum("sum_squared")  # |y|^2, over rows
        self.add_sum("sum_means_squared")  # N |mean of y|^2, over steps
        # Kept rows, those with the smallest hashes: p, z, z_+ and y if sampled, otherwise z alone.
        self.kept_size, self.kept_parts = PAIRED_ROWS, 1
        if self.sampled:
            self.kept_size, self.kept_parts = sample, 4
        self.add_state("kept", [], dist_reduce_fx="cat")  # [(kept_size, kept_parts, k)]
        self.add_state("kept_keys", [], dist_reduce_fx="cat")  # [(kept_size,)], their hashes
        if self.sampled:
            return
        self.add_count("in_pairs")  # batches of two views of each sample
        self.add_sum("sum_online", dim, dim)  # p p^T over rows, the upper triangle
        self.add_sum("sum_target", dim, dim)  # z z^T over rows, the upper triangle
        self.add_sum("sum_positive", dim, dim)  # z z_+^T, over rows
        self.add_sum("sum_projection", dim, dim)  # y y^T over rows, the upper triangle
        if steps:
            self.add_sum("sum_means", dim, dim)  # N m m^T of the mean m of y, over steps
        self.add_sum("sum_target_mean", dim)  # z, over rows
        self.add_sum("sum_distance")  # |z - z_+|^2 of unit rows, over rows
        axes = measures.directions(dim)
        self.register_buffer("directions", axes, persistent=False)
        points = 2 * (measures.POINTS - 1)
        # cos and sin of t u, where u is y along each axis, over rows
        self.add_sum("sum_waves", points, axes.shape[1])

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
        outputs = [online, target, y]
        if positive is not None:
            outputs.append(positive)
        for x in outputs:
            if x.shape != (len(online), self.dim):
                raise UserError(
                    f"all outputs must have shape (N, {self.dim}) with one N, "
                    f"got {tuple(x.shape)} and {tuple(online.shape)}."
                )
        valid = valid_rows(outputs, math.inf if self.normalize else LARGEST)
        self.count += valid.sum()
        self.broken += (~valid).sum()
        self.batches += 1
        self.with_positives += positive is not None
        self.spacing = max(self.spacing, torch.finfo(online.dtype).eps)
        if not self.sampled:
            self._add_sums(online, target, positive, y, valid)
            return
        # A few rows at a time are converted to float64.
        blocks = (self._rows(y[rows], valid[rows]) for rows in row_blocks(*y.shape))
        self._add_moments(blocks, valid)
        parts = [online, target, target if positive is None else positive, y]
        self._keep(parts, row_hashes(parts, valid))

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
            if not self.normalize:
                z, z_plus = unit_rows(z), unit_rows(z_plus)
            self.sum_distance += torch.dist(z, z_plus).square()
            self.in_pairs += in_pairs(target, positive, valid)
        self.sum_waves += measures.wave_sums(y, self.directions, valid)
        # Many images may share a target, such as a cluster: with the target's hash alone, all
        # copies would enter the sample together.
        self._keep([target], row_hashes([online, target], valid))

    def _keep(self, outputs: list[Tensor], hashes: Tensor) -> None:
        """Keep the rows with the smallest hashes among the kept rows and this batch."""
        is_double = any(x.dtype == torch.double for x in outputs)
        rows, keys = self._kept_buffers(torch.double if is_double else torch.float)
        keep_smallest(rows, keys, outputs, hashes)

    def _kept_buffers(self, dtype: torch.dtype = torch.float) -> tuple[Tensor, Tensor]:
        """Return the kept rows and their hashes, with room for ``kept_size`` rows."""
        kept, kept_keys = self.kept, self.kept_keys
        # There is no buffer before the first update, and one of another size after a sync.
        if not kept or len(kept[0]) != self.kept_size:
            if kept:
                dtype = kept[0].dtype
            device = self.count.device
            shape = (self.kept_size, self.kept_parts, self.dim)
            rows = torch.empty(shape, dtype=dtype, device=device)
            keys = torch.full((self.kept_size,), LAST, device=device)
            for old_rows, old_keys in zip(kept, kept_keys):
                keep_smallest(rows, keys, old_rows.unbind(1), old_keys)
            self.kept, self.kept_keys = [rows], [keys]
        return self.kept[0], self.kept_keys[0]

    def sync(self, *args: Any, **options: Any) -> None:
        """Sync as torchmetrics does, but send N rows in total instead of N per process."""
        if world_size() > 1 and not self._is_synced and options.get("should_sync", True):
            rows, keys = union_candidates(*self._kept_buffers())
            self.kept, self.kept_keys = [rows], [keys]
        super().sync(*args, **options)

    @torch.no_grad()
    def compute(self) -> Spectra:
        """Return eigenvalues, curves and scalars of all rows since the last reset."""
        count = int(self.count)
        if count == 0:
            seen = "no finite row" if self.broken else "no batch yet; call update() first"
            raise UserError(f"BranchSpectra has seen {seen}.")
        has_positives = bool(self.with_positives)
        if has_positives and self.with_positives < self.batches:
            raise UserError(
                "some batches since the last reset had positives and others had none; pass "
                "positive always or never."
            )
        moment = self.sum_squared / count
        mean = self.sum_mean / count
        scalars = {"feature/variance": moment - mean.square().sum()}
        if self.steps:
            scalars["feature/spread"] = measures.spread(moment, self.sum_means_squared / count)
        kept = self._kept_rows()
        if self.sampled:
            count = len(kept)
            targets = kept[:, 1]
            moments, measured = self._from_sample(kept, has_positives)
        else:
            targets = kept[:, 0]
            moments, measured = self._from_sums(count, has_positives)
        scalars |= measured
        # Rows of zeros have no direction.
        unit_targets = unit_rows(targets[targets.any(1)]).to(targets.dtype)
        if len(unit_targets) > 1:
            scalars["uniformity/target"] = measures.uniformity(unit_targets)
        return summarize(moments, scalars, self.m, count, self.dim, self.sampled, self.spacing)

    def _kept_rows(self) -> Tensor:
        """Return the kept rows, ``(n, 4 or 1, k)``, in the order of their hashes."""
        keys = dim_zero_cat(self.kept_keys)
        number = min(self.kept_size, int((keys < LAST).sum()))
        rows: Tensor = dim_zero_cat(self.kept)
        return rows[keys.argsort()[:number]]

    def _from_sums(self, rows: int, has_positives: bool) -> tuple[Moments, dict[str, Tensor]]:
        """Return the moments and scalars of all rows."""
        C_p = full_gram(self.sum_online) / rows
        C_z = full_gram(self.sum_target) / rows
        C_y = full_gram(self.sum_projection) / rows
        mean = self.sum_target_mean / rows
        scalars = {
            "mean_share/target": 1 - measures.spread(C_z.trace(), mean.square().sum()),
            "epps_pulley/projection": measures.epps_pulley_statistic(self.sum_waves, self.count),
        }
        C_plus = C_means = None
        if has_positives:
            C_plus = (self.sum_positive + self.sum_positive.mT) / (2 * rows)
            scalars["positive_distance/target"] = self.sum_distance / rows
        if self.steps:
            C_means = self.sum_means / rows
        pairs = 0
        if self.in_pairs == self.batches:
            pairs = rows // 2
        return from_matrices(C_p, C_z, C_plus, C_y, C_means, mean, pairs), scalars

    def _from_sample(self, kept: Tensor, has_positives: bool) -> tuple[Moments, dict[str, Tensor]]:
        """Return the moments and scalars of the kept rows."""
        from rdm_solo.spectra.dual_moments import from_rows  # rarely needed

        p, z, z_plus, y = map(self._scaled, kept.unbind(1))
        scalars = {
            "mean_share/target": measures.mean_share(z),
            "epps_pulley/projection": measures.epps_pulley(kept[:, 3]),
        }
        if has_positives:
            differences = unit_rows(z) - unit_rows(z_plus)
            scalars["positive_distance/target"] = differences.square().sum(1).mean()
        positives = z_plus if has_positives else None
        length = min(self.sample, self.dim)
        return from_rows(p, z, positives, y, length, centred=self.steps), scalars


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows in float64, scaled to length 1; rows of zeros stay zero."""
    y = rows.double()
    if rows.dtype == torch.double:  # squares may overflow
        largest = torch.linalg.vector_norm(y, math.inf, dim=1, keepdim=True)
        y = y / torch.where(largest > 0, largest, 1.0)
    return torch.nn.functional.normalize(y, dim=1, eps=1e-150)


def in_pairs(target: Tensor, positive: Tensor, valid: Tensor) -> Tensor:
    """Return whether the halves of a batch are each other's positives: two views of each sample.

    Pairs without a valid row are ignored. A pair with only one valid row makes the result False.
    """
    half = len(target) // 2
    if len(target) != 2 * half:
        return valid.new_zeros(())
    other_valid = valid.roll(half)
    is_pair = (positive.roll(half, 0) == target).all(1) & valid & other_valid
    return (is_pair | ~(valid | other_valid)).all()
