"""Measure the features of an encoder, and say which of its numbers should not be trusted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from rdm_solo import data
from rdm_solo.data import Dataset, Files, Loader, Views, generator
from rdm_solo.evaluate.extraction import CHUNK, extract, represent
from rdm_solo.evaluate.probe import fit_linear
from rdm_solo.observe import neighbours
from rdm_solo.observe.tokens import patch_tokens
from rdm_solo.spectra.features import FeatureSpectra
from rdm_solo.spectra.patches import patch_rank
from rdm_solo.spectra.ranks import correlation, descending

KNN = "val/knn_acc1"
LINEAR = "linear/top1"
LIDAR = "lidar/features"
ALPHA = "alpha_req/features"
R2 = "alpha_req_r2/features"
PATCHES = "erank/patches"
PATCH_IMAGES = 64  # images whose patch tokens are measured
PART = 5  # one image of five is a query of kNN, and one of five has views for LiDAR
MIN_R2 = 0.9  # of alpha-ReQ's fit


@dataclass(frozen=True)
class Images:
    """Loaders of clean images, and of views for LiDAR; ``val`` is None without labels."""

    train: Loader
    val: Loader | None
    views: Loader
    num_classes: int


def choose(
    dataset: Dataset,
    views: Views,
    count: int,
    seed: int,
    device: torch.device,
    channels: int | None,
) -> Images:
    """Return loaders of at most ``count`` images; the seed determines which."""
    part = count // PART
    val = None
    if dataset.labelled and dataset.val is not None:
        val = subset(dataset.val, part, seed)
        count -= len(val)
    clean = replace(dataset, train=subset(dataset.train, count, seed), val=val)
    viewed = replace(clean, train=subset(clean.train, part, seed))
    largest = views.pipelines[0].size
    large = Views([pipeline for pipeline in views.pipelines if pipeline.size == largest])
    load = partial(
        data.loader, batch_size=CHUNK, seed=seed, device=device, expand_channels=channels
    )
    return Images(
        train=load(clean, "train"),
        val=None if val is None else load(clean, "val"),
        views=load(viewed, "train", views=large, drop_last=False),
        num_classes=dataset.num_classes,
    )


def subset(images: data.Images | Files, count: int, seed: int) -> data.Images | Files:
    """Return at most this many images, chosen at random and in their order."""
    order = torch.randperm(len(images), generator=generator(seed, "measure"))
    rows = order[:count].sort().values
    labels = images.labels[rows]
    if isinstance(images, Files):
        return replace(images, source=Subset(images.source, rows.tolist()), labels=labels)
    return data.Images(images.images[rows], labels)


@dataclass(frozen=True, eq=False)
class Scores:
    """The measures of one encoder, by the names of their columns."""

    name: str
    images: int
    dimensions: int
    values: dict[str, float]
    spectrum: list[float]  # eigenvalues of the features' covariance, descending
    patch_spectrum: list[float]  # of the patch tokens' covariance within images; may be empty
    remarks: list[str] = field(default_factory=list)


def score(name: str, module: nn.Module, images: Images, seed: int) -> Scores:
    """Measure a module's features of clean images, their augmented views, and their labels."""
    module.to(images.train.device).eval()
    train, labels = extract(module, images.train)
    parts = [train]
    if images.val is not None:
        val, val_labels = extract(module, images.val)
        parts.append(val)
    features = torch.cat(parts)
    dim = features.shape[1]
    is_finite = features.isfinite().all(1)
    spectra = FeatureSpectra(dim)
    spectra.update([features])
    values = spectra.compute()
    remarks = []
    if not is_finite.all():
        broken = int((~is_finite).sum())
        remarks.append(f"The features of {broken} of {len(features)} images are not finite.")
    elif values["erank/features_centred"] == 0:
        remarks.append("The features of all images are equal.")
    if is_finite.all() and images.val is not None:
        accuracy, _ = neighbours.accuracy([(train, labels)], [(val, val_labels)], 20, 0.07)
        values[KNN] = float(accuracy)
        probe = fit_linear(
            to_unit_scale(train, train),
            labels,
            to_unit_scale(val, train),
            val_labels,
            images.num_classes,
            seed=seed,
            quiet=True,
        )
        values[LINEAR] = probe.curve[-1].top1

    of_views = FeatureSpectra(dim)
    for _, crops, _ in images.views:
        of_views.update([represent(module, crop).cpu() for crop in crops])
    values_of_views = of_views.compute()
    if LIDAR in values_of_views:
        values[LIDAR] = values_of_views[LIDAR]
    spectrum = covariance_spectrum(features[is_finite]) if is_finite.any() else []
    patch_spectrum = []
    pixels, _ = next(iter(images.train))
    with torch.no_grad():
        patches = patch_tokens(module, pixels[:PATCH_IMAGES])
    if patches is not None and not patches.is_number_known:
        remarks.append(f"Patches: {patches.note()}")
    if patches is not None and patches.tokens.isfinite().all():
        tokens = patches.tokens.cpu()
        values[PATCHES] = float(patch_rank(tokens))
        patch_spectrum = covariance_spectrum(tokens)
    module.cpu()  # leaves the GPU's memory to the next encoder
    return Scores(name, len(features), dim, values, spectrum, patch_spectrum, remarks)


def covariance_spectrum(x: Tensor) -> list[float]:
    """Return the eigenvalues of rows ``(N, k)``, or of rows within images ``(N, T, k)``."""
    x = x.double()
    centred = x - x.mean(-2, keepdim=True)
    return list(descending(correlation(centred.flatten(0, -2))).tolist())


def to_unit_scale(x: Tensor, train: Tensor) -> Tensor:
    """Subtract the training features' mean, and divide by their root mean squared length.

    The linear classifier's learning rate is tuned for this scale, and encoders differ.

    >>> to_unit_scale(torch.tensor([[1.0], [5.0]]), torch.tensor([[1.0], [5.0]])).tolist()
    [[-1.0], [1.0]]
    """
    mean = train.mean(0)
    length = (train - mean).square().sum(1).mean().sqrt()
    return (x - mean) / torch.where(length > 0, length, 1.0)


def add_remarks(scores: Scores, baselines: Sequence[Scores], images: Images) -> None:
    """Add the reasons not to trust an encoder's numbers, which are measured on ``images``."""
    views = len(images.views.dataset)
    queries = 0 if images.val is None else len(images.val.dataset)
    values = scores.values
    needed = 2 * scores.dimensions
    rows = f"fewer than twice the {scores.dimensions} dimensions"
    if scores.images < needed:
        scores.remarks.append(f"{scores.images} images are {rows}, which keeps all ranks low.")
    elif views < needed:
        scores.remarks.append(f"LiDAR has seen {views} images, {rows}.")
    if values.get(R2, 1.0) < MIN_R2:
        scores.remarks.append(
            f"Ignore α-ReQ: R² = {values[R2]:.2f}, so the eigenvalues follow no power law."
        )
    for baseline in baselines:
        if KNN not in values or KNN not in baseline.values:
            continue
        own, other = values[KNN], baseline.values[KNN]
        variances = own * (100 - own) + other * (100 - other)
        error = math.sqrt(variances / queries)
        if own < other - error:
            scores.remarks.append(
                f"kNN ({own:.1f} %) is below {baseline.name} ({other:.1f} %), by more than the "
                f"standard error of the difference ({error:.1f})."
            )
