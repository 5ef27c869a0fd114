"""Measure a backbone on a user's images, and leave the run that trains it as it was."""

import contextlib
import logging
import random
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from rdm_solo.ground.devices import has_float64
from rdm_solo.ground.distributed import broadcast_object, gather_objects, rank, world_size
from rdm_solo.ground.errors import UserError, first_line
from rdm_solo.observe import neighbours, parts
from rdm_solo.observe.outputs import rows
from rdm_solo.observe.recorder import Limits
from rdm_solo.observe.tokens import patch_tokens
from rdm_solo.runs.columns import held_out
from rdm_solo.runs.files import PATCHES, write_atomically
from rdm_solo.spectra import patches
from rdm_solo.spectra.epoch_summary import finite_scalars

log = logging.getLogger("rdm_solo")

KNN, CHANCE = "val/knn_acc1", "val/chance"
# Batch size for images that are given as a tensor.
BATCH = 512
# Most cosines between patches that are kept: 3 MB in float16.
MAX_COSINES = 1_500_000


@contextlib.contextmanager
def undisturbed(module: nn.Module, *loaders: Any) -> Iterator[None]:
    """Put a module in evaluation mode, without gradients; restore modes and random states.

    Random numbers start at the same seed each time, so a loader that shuffles gives the same order
    in all epochs and on all processes. Generators of the loaders and of their samplers, which
    training may share, are restored as well.
    """
    device = next(module.parameters(), torch.empty(0)).device
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index])
    for owner in (*loaders, *(getattr(loader, "sampler", None) for loader in loaders)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generators.append(generator)
    states = [generator.get_state() for generator in generators]
    modes = {part: part.training for part in module.modules()}
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        try:
            for generator in generators:
                generator.manual_seed(0)
            np.random.seed(0)
            random.seed(0)
            for part in modes:
                # A module's own eval() may do more: LoRA layers merge their weights in it.
                part.training = False
            yield
        finally:
            for part, mode in modes.items():
                part.training = mode
            for generator, state in zip(generators, states):
                generator.set_state(state)
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def features(backbone: nn.Module, images: Tensor) -> Tensor:
    """Return a backbone's features ``(N, k)``."""
    return rows(backbone(images), "backbone")


class UserImages:
    """Images that a user passed as ``option``: a loader, a tensor or a tuple of tensors."""

    def __init__(self, option: str, source: Any) -> None:
        if isinstance(source, Tensor):
            source = (source,)
        if isinstance(source, list) and source and getattr(source[-1], "ndim", 0) == 1:
            source = tuple(source)  # images and labels, not batches
        if isinstance(source, tuple):
            source = DataLoader(TensorDataset(*map(torch.as_tensor, source)), BATCH)
        self.option = option
        self.loader = source

    def batches(self) -> Iterator[list[Tensor]]:
        """Yield the tensors of each batch; the first one has images as the model takes them."""
        for batch in self.loader:
            tensors = [x for x in tree_leaves(batch) if isinstance(x, Tensor) and x.ndim]
            if not tensors or not tensors[0].is_floating_point():
                self.refuse("a batch must start with normalised images (floats)", tensors)
            yield tensors

    def shares(self) -> Iterator[list[Tensor]]:
        """Yield the places of this process's images in the whole data set, and their tensors.

        Each process takes every ``world_size()``-th image. A DistributedSampler has chosen these
        already; the images that it repeats to fill the last places count as further images.
        """
        first, step = rank(), world_size()
        has_sampler = isinstance(getattr(self.loader, "sampler", None), DistributedSampler)
        count = 0
        for tensors in self.batches():
            places = torch.arange(count, count + len(tensors[0]))
            start = (first - count) % step
            count += len(places)
            if has_sampler:
                yield [first + step * places, *tensors]
            elif start < len(places):
                yield [x[start::step] for x in (places, *tensors)]
        if not has_sampler and count < step:
            raise UserError(f"{self.option}: {count} images are too few for {step} process(es).")

    def encode(
        self,
        backbone: nn.Module | None,
        images: Tensor,
        call: Callable[[nn.Module, Tensor], Any] = features,
    ) -> Any:
        """Call the backbone with images on its device and in its dtype."""
        if backbone is None:
            raise UserError(f"{self.option} needs features: pass backbone='NAME'.")
        # DDP would synchronise buffers, and torch.compile would compile for this batch size.
        backbone = parts.unwrap(backbone)
        parameter = next(backbone.parameters(), images)
        try:
            return call(backbone, images.to(parameter.device, parameter.dtype))
        except Exception as error:
            self.refuse(f"the backbone cannot take a batch ({first_line(error)})", [images])

    def refuse(self, problem: str, tensors: list[Tensor]) -> NoReturn:
        """Raise UserError with the problem, and the types and shapes of a batch."""
        received = [f"{x.dtype} {tuple(x.shape)}" for x in tensors]
        raise UserError(f"{self.option}: {problem}, got {', '.join(received) or 'no tensor'}.")


class LabelledImages:
    """Measure the accuracy of weighted kNN: ``train`` is the memory, ``val`` is classified.

    Each is a loader of ``(images, labels)`` or a pair of tensors, as a tuple or a list.

    >>> images = torch.eye(2), torch.tensor([0, 1])
    >>> backbone = nn.Linear(2, 2)
    >>> LabelledImages(images, images, k=1).scalars(backbone, backbone)
    {'val/knn_acc1': 100.0, 'val/chance': 50.0}
    """

    def __init__(self, train: Any, val: Any, k: int = 20, temperature: float = 0.07) -> None:
        self.train = UserImages("labelled (train)", train)
        self.val = UserImages("labelled (val)", val)
        self.k = k
        self.temperature = temperature

    def scalars(self, backbone: nn.Module | None, module: nn.Module) -> dict[str, float]:
        """Return the scalars by column name, the same on all processes."""

        def encoded(images: UserImages) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            for places, x, *others in images.shares():
                y = others[0] if others else x
                if y.is_floating_point() or y.shape != x.shape[:1] or y.min() < 0:
                    images.refuse(
                        "a batch must have images and integer labels from 0", [x, *others]
                    )
                z = images.encode(backbone, x)
                yield z, y.to(z.device, torch.long), places

        with undisturbed(module, self.train.loader, self.val.loader):
            memory, queries = encoded(self.train), encoded(self.val)
            accuracy = neighbours.accuracy(memory, queries, self.k, self.temperature)
        return {KNN: float(accuracy.knn), CHANCE: float(accuracy.chance)}


class HeldOut(UserImages):
    """Measure the spectra of features on images that are not trained on.

    A batch is or starts with images, or with several views of the same images.

    >>> scalars = HeldOut("held_out", torch.eye(3)).scalars(nn.Identity(), nn.Identity(), Limits())
    >>> round(scalars["erank/held_out"], 6), round(scalars["erank/held_out_centred"], 6)
    (3.0, 2.0)
    """

    is_reported = False  # that the features have too many dimensions

    def scalars(
        self, backbone: nn.Module | None, module: nn.Module, limits: Limits
    ) -> dict[str, float]:
        """Return the scalars by column name, from about ``limits.max_rows`` features at most.

        If there are more images, one of 2, 4, 8, ... is used on average. They are evenly spread
        over the loader, which may be sorted, and the same on any number of processes.
        """
        from rdm_solo.spectra.features import FeatureSpectra

        kept: list[list[Tensor]] = []  # of each batch: places and features (n, views, k)
        step = 1  # one image of this many is used
        with undisturbed(module, self.loader):
            for places, images, *others in self.shares():
                views = [images, *(x for x in others if x.shape == images.shape)]
                most = max(1, limits.max_rows // len(views))
                while int(places[-1]) >= most * step:
                    step *= 2
                    kept = [_one_of(step, *batch) for batch in kept]
                used = _one_of(step, places, *views)
                if not len(used[0]):
                    if kept:
                        continue
                    used = [x[:1] for x in (places, *views)]  # to know the features' dimension
                places, *views = used
                encoded = [self.encode(backbone, view) for view in views]
                dim = encoded[0].shape[1]
                if dim > limits.max_features_dim:
                    self._report_width(dim)
                    return {}
                kept.append([places, torch.stack(encoded, 1)])
        step = max(gather_objects(step))
        features = torch.cat([_one_of(step, *batch)[1] for batch in kept])
        if not has_float64(features.device):
            features = features.cpu()
        # One update, because processes may have different numbers of batches.
        metric = FeatureSpectra(dim).to(features.device)
        metric.update(features.unbind(1))
        return {held_out(name): value for name, value in metric.compute().items()}

    def _report_width(self, dim: int) -> None:
        """Say once which limit excludes the features."""
        if not self.is_reported and rank() == 0:
            log.warning(
                f"note: {self.option} is not measured: features have {dim} dimensions; pass "
                f"max_features_dim={dim}"
            )
        self.is_reported = True


def _one_of(step: int, places: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Return the rows of about one of ``step`` places, the same in whatever batch they are."""
    used = neighbours.spread(places) * step < 2**32
    return [x[used.to(x.device)] for x in (places, *tensors)]


class Patches(UserImages):
    """Measure the patch tokens of the first batch of images, at most 32, which are kept.

    The reference of the drift is the first trained epoch that is measured. Its Gram matrices are
    written to the run's folder, so a run that resumes keeps its reference.
    """

    def __init__(self, option: str, source: Any, folder: Path) -> None:
        super().__init__(option, source)
        self.path = folder / PATCHES
        self.images: Tensor | None = None
        self.is_reported = False  # whether the note about their number was logged

    def scalars(
        self, backbone: nn.Module | None, module: nn.Module, epoch: int
    ) -> dict[str, float]:
        """Return the scalars by column name; none if the backbone has no patch tokens."""
        with undisturbed(module, self.loader):
            if self.images is None:
                first, *_ = next(self.batches())
                self.images = first[:32].float().cpu().clone()
            encoded = self.encode(backbone, self.images, patch_tokens)
        scalars = {}
        if encoded is not None:
            if not (encoded.is_number_known or self.is_reported or rank()):
                log.warning(f"note: {self.option}: {encoded.note()}")
            self.is_reported = True
            tokens = encoded.tokens.cpu()
            values = {"erank/patches": patches.patch_rank(tokens)}
            if epoch:
                most = max(1, MAX_COSINES // tokens.shape[1] ** 2)
                grams = patches.patch_grams(tokens[:most]).half()
                checksum = zlib.crc32(self.images.numpy().tobytes())
                reference = self._reference(grams.numpy(), epoch, checksum)
                drift = patches.gram_drift(grams, torch.from_numpy(reference))
                values["drift/patches"] = drift
            scalars = finite_scalars(values)
        return broadcast_object(scalars)

    def _reference(self, grams: np.ndarray, epoch: int, images: int) -> np.ndarray:
        """Return the reference in the folder; without one, ``grams`` become it.

        A file of other images, or of an epoch that is trained again, is replaced. The values of
        processes other than the first, which may lack the file, are not used.
        """
        if self.path.exists():
            with np.load(self.path, allow_pickle=False) as file:
                saved = dict(file)
            is_same = saved["images"] == images and saved["grams"].shape == grams.shape
            if is_same and saved["epoch"] < epoch:
                reference: np.ndarray = saved["grams"]
                return reference
        if rank() == 0:
            save = partial(np.savez, grams=grams, epoch=epoch, images=images)
            write_atomically(self.path, save)
        return grams


class FixedImages:
    """The images that a user passed to a watch: labelled ones, held-out ones, or both.

    Patches are measured on the first of the held-out or, without these, of the labelled images.
    """

    def __init__(self, labelled: tuple[Any, Any] | None, held_out: Any, folder: Path) -> None:
        self.labelled: LabelledImages | None = None
        self.held_out: HeldOut | None = None
        self.patches: Patches | None = None
        if labelled is not None:
            self.labelled = LabelledImages(*labelled)
            self.patches = Patches("labelled", labelled[1], folder)
        if held_out is not None:
            self.held_out = HeldOut("held_out", held_out)
            self.patches = Patches("held_out", held_out, folder)

    def scalars(
        self, backbone: nn.Module | None, module: nn.Module, limits: Limits, epoch: int
    ) -> dict[str, float]:
        """Return the scalars by column name; epoch 0 is the untrained network."""
        scalars: dict[str, float] = {}
        if self.labelled is not None:
            scalars |= self.labelled.scalars(backbone, module)
        if self.held_out is not None:
            scalars |= self.held_out.scalars(backbone, module, limits)
        if self.patches is not None:
            scalars |= self.patches.scalars(backbone, module, epoch)
        return scalars
