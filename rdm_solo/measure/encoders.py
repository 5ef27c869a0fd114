"""Load encoders: files of weights, run folders, timm's models, and modules of the user's."""

import copy
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rdm_solo.evaluate.extraction import represent
from rdm_solo.ground.errors import UserError, first_line, join_first
from rdm_solo.methods import backbones, weight_files
from rdm_solo.methods.solo_learn import TIMM, check_backbone
from rdm_solo.runs import checkpoints
from rdm_solo.runs.folder import checked_config

MOST, FEWEST = 5000, 1000  # images, if their number is not passed
# Floating-point operations that take a minute on two cores. A trained and an untrained network see
# each image, and a fifth of the images in two views.
CPU_OPERATIONS = 4e12 / (2 * 1.4)
NEAR = 1.5  # largest ratio of image sizes that needs no remark
KINDS = "a checkpoint file, a run folder, timm/NAME or MODULE.FUNCTION that returns a module"


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen network, and the same architecture with fresh weights if it can be built."""

    name: str  # as it was passed
    module: nn.Module
    untrained: nn.Module | None
    trained_size: int | None = None  # side of the images that it was trained on, if known
    note: str = ""  # what to know about its weights

    @property
    def channels(self) -> int | None:
        """The input channels of its first convolution, None if it has none."""
        for part in self.module.modules():
            if isinstance(part, nn.Conv2d):
                return part.in_channels
        return None

    def remarks(self, image_size: int) -> list[str]:
        """Return what to know when it is measured on images of this size."""
        remarks = [self.note] if self.note else []
        ratio = image_size / (self.trained_size or image_size)
        if not 1 / NEAR <= ratio <= NEAR:
            remarks.append(
                f"It was trained on images of {self.trained_size} px; these have {image_size} px."
            )
        return remarks


def load(name: str, image_size: int, pretrained: bool, seed: int) -> Encoder:
    """Return the encoder that a user named; ``seed`` determines all fresh weights."""
    path = Path(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if path.is_dir():
            weights, spec = checkpoints.read_backbone(path)
            return _from_file(name, weights, spec, checked_config(path).dataset.image_size)
        if path.is_file():
            weights = weight_files.read(path)
            recognised = weight_files.recognise(weights.state)
            if recognised is None:
                raise UserError(
                    f"{name} holds an unknown backbone ({join_first(weights.state)}): pass "
                    "MODULE.FUNCTION, your function that builds it and loads the weights."
                )
            return _from_file(name, weights, recognised)
        if name.startswith(TIMM):
            return _from_timm(name, image_size, pretrained)
        return _from_function(name)


def _from_file(
    name: str,
    weights: weight_files.Weights,
    spec: weight_files.Spec,
    trained_size: int | None = None,
) -> Encoder:
    # A network that is built for one size is a run's; the recognised ones take any size.
    size = trained_size or 224
    module = weight_files.load(weights, spec, size)
    untrained = weight_files.build(spec, size, weights.origin)
    note = ""
    stem = weight_files.assumed_stem(weights, spec)
    if stem:
        note = f"Its file does not say which stem it has; assumed: {stem}."
    return Encoder(name, module, untrained, trained_size, note)


def _from_timm(name: str, size: int, pretrained: bool) -> Encoder:
    """Return timm's model; pretrained weights come from its cache or are downloaded."""
    import timm

    check_backbone(name)
    model = name.removeprefix(TIMM)
    options = backbones.arguments(name, "imagenet", {}, size)
    try:
        untrained = timm.create_model(model, num_classes=0, **options)
        if not pretrained:
            note = "Its weights are random: pretrained=true loads timm's."
            return Encoder(name, untrained, None, note=note)
        module: Any = timm.create_model(model, pretrained=True, num_classes=0, **options)
    except Exception as error:  # the image size does not fit, or the download failed
        raise UserError(
            f"{name} of {size} px with pretrained={str(pretrained).lower()} cannot be built or "
            f"loaded: {first_line(error)}"
        ) from error
    trained_size = module.pretrained_cfg["input_size"][-1]
    return Encoder(name, module, untrained, trained_size)


def _from_function(name: str) -> Encoder:
    """Return the module that a function of the user's returns."""
    try:
        function = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{name} is not {KINDS} ({first_line(error)}).") from error
    module = function()
    if not isinstance(module, nn.Module):
        raise UserError(f"{name} must return a module, got {type(module).__name__}.")
    untrained = reinitialised(module)
    note = ""
    if untrained is None:
        note = "No untrained network: a part with parameters has no reset_parameters()."
    return Encoder(name, module, untrained, note=note)


def reinitialised(module: nn.Module) -> nn.Module | None:
    """Return a copy with new weights, or None if a part with parameters cannot draw them.

    >>> layer = nn.Linear(2, 2)
    >>> bool(reinitialised(layer).weight.equal(layer.weight))
    False
    """
    untrained = copy.deepcopy(module)
    for part in untrained.modules():
        reset = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()
        elif any(True for _ in part.parameters(recurse=False)):
            return None
    return untrained


def affordable(encoder: Encoder, channels: int, size: int, device: torch.device) -> int:
    """Return how many images are measured by default: on a CPU, those of about a minute.

    It raises UserError if the encoder refuses images of this size.
    """
    image = torch.zeros(1, encoder.channels or channels, size, size, device=device)
    module = encoder.module.to(device).eval()
    try:
        with FlopCounterMode(display=False) as counter:
            represent(module, image)
    except UserError:
        raise
    except Exception as error:  # the user's module can raise anything
        raise UserError(
            f"{encoder.name} cannot take images of {size} px: {first_line(error)}"
        ) from error
    module.cpu()
    if device.type != "cpu":
        return MOST
    operations = max(1, counter.get_total_flops())
    return max(FEWEST, min(MOST, int(CPU_OPERATIONS / operations)))
