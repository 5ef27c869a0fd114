"""A metric of both branches' spectra over an epoch, for one or several processes."""

from typing import Any

import torch
from torch import Tensor

from rdm_solo.ground.errors import UserError
from rdm_solo.spectra.dual_moments import from_rows
from rdm_solo.spectra.epoch_summary import Spectra, summarize
from rdm_solo.spectra.moments import Moments, from_matrices
from rdm_solo.spectra.rows import (
    POINTS,
    SLICES,
    directions,
    epps_pulley,
    epps_pulley_statistic,
    mean_share,
    positive_distance,
    spread,
    uniformity,
    unit_rows,
    wave_sums,
)
from rdm_solo.spectra.sampling import (
    LAST,
    gather_smallest,
    keep_smallest,
    row_hashes,
    rows_at_a_time,
)
from rdm_solo.spectra.sums import (
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
        self.steps = steps
        self.sampled = dim > max_dim
        # The eps of the online outputs' dtype. It is not a state: all processes have the same.
        self.spacing = 0.0

        # Below, p are the online outputs, z the targets, z_+ their positives and y the projections.
        # Number of rows with finite outputs:
        self.add_count("count")
        # Number of rows that are excluded because an output is not finite:
        self.add_count("broken")
        # Number of batches, and of those with positives:
        self.add_count("batches")
        self.add_count("with_positives")
        # Sum of y over rows:
        self.add_sum("sum_mean", dim)
        # Sum of |y|^2 over rows:
        self.add_sum("sum_squared")
        # Sum of N |m|^2 over steps, where m is the mean of the step's N projections:
        self.add_sum("sum_means_squared")
        # A list of one tensor, after a sync one for each process: rows with the smallest hashes,
        # (N, 4, k) of p, z, z_+ and y, or (N, 1, k) of z alone.
        self.add_state("kept", [])
        # Their hashes, (N,):
        self.add_state("kept_keys", [])
        if self.sampled:
            self.kept_shape = sample, 4, dim
            return  # the rows replace the matrices
        self.kept_shape = PAIRED_ROWS, 1, dim
        # Sums of p p^T, z z^T and y y^T over rows, the blocks on and above the diagonal:
        self.add_sum("sum_online", dim, dim)
        self.add_sum("sum_target", dim, dim)
        self.add_sum("sum_projection", dim, dim)
        # Sum of z z_+^T over rows:
        self.add_sum("sum_positive", dim, dim)
        # Sum of N m m^T over steps, where m is the mean of the step's N projections:
        if steps:
            self.add_sum("sum_means", dim, dim)
        # Sum of z over rows:
        self.add_sum("sum_target_mean", dim)
        # Sum of |z - z_+|^2 over rows of length 1:
        self.add_sum("sum_distance")
        # Number of batches that consist of two views of each sample:
        self.add_count("in_pairs")
        # Sums of cos(t u) and sin(t u) over rows, where u is y along each of the directions:
        self.add_sum("sum_waves", 2 * (POINTS - 1), SLICES)
        self.register_buffer("directions", directions(dim), persistent=False)

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
        has_positives = positive is not None
        # Targets stand in for outputs that are not passed; `is target` recognises them below.
        positive = target if positive is None else positive
        projection = target if projection is None else projection
        outputs = [online, target, positive, projection]
        valid = valid_rows(outputs)
        count = valid.sum()
        self.count += count
        self.broken += len(valid) - count
        self.batches += 1
        self.with_positives += has_positives
        self.spacing = torch.finfo(online.dtype).eps
        if self.sampled:
            hashes = row_hashes(outputs, valid)
            self._keep(outputs, hashes)
            # A batch in float64 may take too much memory.
            total = torch.zeros_like(self.sum_mean)
            step = rows_at_a_time(projection)
            for block, is_valid in zip(torch.split(projection, step), torch.split(valid, step)):
                y = self._rows(block, is_valid)
                total += y.sum(0)
                self.sum_squared += y.square().sum()
        else:
            total = self._add_sums(outputs, valid, has_positives)
        self.sum_mean += total
        if self.steps:
            mean = step_mean(total, count)
            self.sum_means_squared += mean.square().sum()
            if not self.sampled:
                self.sum_means.addr_(mean, mean)

    def _add_sums(self, outputs: list[Tensor], valid: Tensor, has_positives: bool) -> Tensor:
        """Add a batch to all sums over rows, and return the sum of the projections."""
        online, target, positive, projection = outputs
        p = self._rows(online, valid)
        z = self._rows(target, valid)
        gram_p = upper_gram(p)
        gram_z = upper_gram(z)
        # At most one branch has a filter, so the projections are often the other branch's outputs.
        if projection is target:
            y = z
            gram_y = gram_z
        elif projection is online:
            y = p
            gram_y = gram_p
        else:
            y = self._rows(projection, valid)
            gram_y = upper_gram(y)
        self.sum_online += gram_p
        self.sum_target += gram_z
        self.sum_projection += gram_y
        self.sum_squared += y.square().sum()
        self.sum_target_mean += z.sum(0)
        self.sum_waves += wave_sums(projection, self.directions, valid)
        if has_positives:
            z_plus = self._rows(positive, valid)
            self.sum_positive += z.mT @ z_plus
            if not self.normalize:
                z = unit_rows(z)
                z_plus = unit_rows(z_plus)
            self.sum_distance += torch.dist(z, z_plus).square()
            self.in_pairs += in_pairs(target, positive, valid)
        # Many images may share a target, such as a cluster: with the target's hash alone, all
        # copies would enter the sample together.
        hashes = row_hashes([online, target], valid)
        self._keep([target], hashes)
        return y.sum(0)

    def _rows(self, x: Tensor, valid: Tensor) -> Tensor:
        # Rows of zeros add nothing to sums. Dropping rows would synchronise with the device.
        x = x.where(valid[:, None], 0.0)
        return self._scaled(x)

    def _scaled(self, x: Tensor) -> Tensor:
        if self.normalize:
            return unit_rows(x)
        return x.double()

    def _keep(self, outputs: list[Tensor], hashes: Tensor) -> None:
        """Keep the rows with the smallest hashes among the kept rows and this batch."""
        if not self.kept:
            self._allocate(outputs[0].dtype)
        keep_smallest(self.kept[0], self.kept_keys[0], outputs, hashes)

    def _allocate(self, dtype: torch.dtype) -> None:
        """Make room for the kept rows, in float64 if the outputs are, otherwise in float32."""
        dtype = torch.promote_types(dtype, torch.float)
        device = self.count.device
        rows = torch.empty(self.kept_shape, dtype=dtype, device=device)
        keys = torch.full(self.kept_shape[:1], LAST, device=device)
        self.kept = [rows]
        self.kept_keys = [keys]

    def _sync_dist(self, *args: Any, **options: Any) -> None:
        """Add the sums of all processes, and gather N kept rows in total."""
        super()._sync_dist(*args, **options)
        if not self.kept:  # no batch on this process
            self._allocate(torch.float)
        self.kept, self.kept_keys = gather_smallest(self.kept[0], self.kept_keys[0])

    @torch.no_grad()
    def compute(self) -> Spectra:
        """Return eigenvalues, curves and scalars of all rows since the last reset."""
        counts = torch.stack([self.count, self.batches, self.with_positives])
        count, batches, with_positives = counts.tolist()
        if count == 0:
            raise UserError(
                "BranchSpectra has seen no finite row since the last reset; call update() first."
            )
        if 0 < with_positives < batches:
            raise UserError(
                "some batches since the last reset had positives and others had none; pass "
                "positive always or never."
            )
        moment = self.sum_squared / count
        mean = self.sum_mean / count
        scalars = {"feature/variance": moment - mean.square().sum()}
        if self.steps:
            scalars["feature/spread"] = spread(moment, self.sum_means_squared / count)
        # The kept rows of all processes in the order of their hashes, (n, 4 or 1, k)
        keys, order = torch.cat(self.kept_keys).sort()
        order = order[keys < LAST][: self.kept_shape[0]]
        kept = torch.cat(self.kept)[order]
        if self.sampled:
            count = len(kept)
            targets = kept[:, 1]
            moments, measured = self._from_sample(kept, with_positives > 0)
        else:
            targets = kept[:, 0]
            moments, measured = self._from_sums(count, with_positives > 0)
        scalars |= measured
        # Rows of zeros have no direction.
        targets = targets[targets.any(1)]
        if len(targets) > 1:
            scalars["uniformity/target"] = uniformity(targets)
        return summarize(
            moments,
            scalars,
            m=self.m,
            rows=count,
            dim=self.dim,
            sampled=self.sampled,
            spacing=self.spacing,
        )

    def _from_sums(self, rows: int, has_positives: bool) -> tuple[Moments, dict[str, Tensor]]:
        """Return the moments and scalars of all rows."""
        C_p = full_gram(self.sum_online) / rows
        C_z = full_gram(self.sum_target) / rows
        C_y = full_gram(self.sum_projection) / rows
        mean = self.sum_target_mean / rows
        mean_moment = mean.square().sum()
        scalars = {
            "mean_share/target": 1 - spread(C_z.trace(), mean_moment),
            "epps_pulley/projection": epps_pulley_statistic(self.sum_waves, self.count),
        }
        C_plus = None
        if has_positives:
            total = self.sum_positive + self.sum_positive.mT
            C_plus = total / (2 * rows)
            scalars["positive_distance/target"] = self.sum_distance / rows
        C_means = None
        if self.steps:
            C_means = self.sum_means / rows
        pairs = 0
        if self.in_pairs == self.batches:
            pairs = rows // 2
        moments = from_matrices(C_p, C_z, C_plus, C_y, C_means, mean, pairs)
        return moments, scalars

    def _from_sample(self, kept: Tensor, has_positives: bool) -> tuple[Moments, dict[str, Tensor]]:
        """Return the moments and scalars of the kept rows."""
        p, z, z_plus, y = map(self._scaled, kept.unbind(1))
        scalars = {
            "mean_share/target": mean_share(z),
            "epps_pulley/projection": epps_pulley(kept[:, 3]),
        }
        positives = None
        if has_positives:
            positives = z_plus
            scalars["positive_distance/target"] = positive_distance(z, z_plus)
        length = min(self.kept_shape[0], self.dim)
        moments = from_rows(p, z, positives, y, length, centred=self.steps)
        return moments, scalars


def in_pairs(target: Tensor, positive: Tensor, valid: Tensor) -> Tensor:
    """Return whether the halves of a batch are each other's positives: two views of each sample.

    Pairs without a valid row are ignored. A pair with only one valid row makes the result False.
    """
    half = len(target) // 2
    is_equal = (target == positive.roll(half, 0)).all(1)
    both_or_none = valid == valid.roll(half)
    is_pair = both_or_none & (is_equal | ~valid)
    has_halves = len(target) % 2 == 0
    return is_pair.all() & has_halves
