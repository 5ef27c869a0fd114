"""Load encoders: files of weights, run folders, timm's models, and modules of the user's."""

import copy
import pkgutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from rdm_solo.ground.errors import UserError, first_line, join_first
from rdm_solo.methods import backbones, weight_files
from rdm_solo.methods.solo_learn import TIMM, check_backbone
from rdm_solo.runs import checkpoints
from rdm_solo.runs.folder import checked_config

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
            return _from_file(name, weights, recognised, image_size)
        if name.startswith(TIMM):
            return _from_timm(name, image_size, pretrained)
        return _from_function(name)


def _from_file(
    name: str, weights: weight_files.Weights, spec: weight_files.Spec, size: int
) -> Encoder:
    module = weight_files.load(weights, spec, size)
    untrained = weight_files.build(spec, size, weights.padding)
    assumed = weight_files.assumed_stem(weights, spec)
    note = f"The file does not say the stem; assumed: {assumed}." if assumed else ""
    return Encoder(name, module, untrained, note=note)


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
        module = timm.create_model(model, pretrained=True, num_classes=0, **options)
    except Exception as error:  # of a size that does not fit, or of any download
        raise UserError(f"{name} for {size} px, pretrained={pretrained}: {first_line(error)}") from error
    return Encoder(name, module, untrained, trained_size=module.pretrained_cfg["input_size"][-1])


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
        note = "It has parameters outside of modules with reset_parameters, so no untrained network was made."
    return Encoder(name, module, untrained, note=note)


def reinitialised(module: nn.Module) -> nn.Module | None:
    """Return a copy with new weights, or None if a part with parameters cannot draw them.

    >>> layer = nn.Linear(2, 2)
    >>> bool(reinitialised(layer).weight.equal(layer.weight))
    False
    >>> layer.scale = nn.Parameter(torch.ones(2))
    """
    untrained = copy.deepcopy(module)
    for part in untrained.modules():
        reset = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()
        elif any(True for _ in part.parameters(recurse=False)):
            return None
    return untrained
