"""Load backbones from files: our runs, solo-learn's checkpoints, plain state dicts, safetensors.

Nothing in a file is executed.
"""

import logging
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from rdm_solo.ground.devices import nonfinite_names
from rdm_solo.ground.errors import UserError, first_line, join_first

log = logging.getLogger("rdm_solo")

HEADS = ("fc.", "head.", "classifier.")  # prefixes of a classifier's weights
# ResNets by their number of state-dict entries, without the classifier.
RESNETS = {120: "resnet18", 318: "resnet50"}
# Origins of a ResNet's weights that tell its stem. lightly's ResNet has numbered layers, and none
# for the ReLU after bn1 (1.6).
SOLO_LEARN, LIGHTLY = "solo-learn", "lightly"
RESNET_LAYERS = ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4")  # those with weights
# Functions that a pickle calls to create a tensor; torch.load itself creates the storages.
TENSOR_PARTS = (
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor_v2"),
)


@dataclass(frozen=True)
class Spec:
    """A backbone's name, stem (``small`` or ``imagenet``) and arguments."""

    name: str
    stem: str = "imagenet"
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} with the {self.stem} stem"


@dataclass(frozen=True)
class Weights:
    """A backbone's weights from a file, with the epoch (from 1) and the step stored there.

    ``origin`` says how a small stem was built; None if that is unknown.
    """

    path: Path
    state: dict[str, Tensor]
    epoch: int | None
    step: int | None
    origin: str | None


def read(path: str | Path, content: Any = None) -> Weights:
    """Read the backbone's weights from a file; pass ``content`` if it was already loaded."""
    path = Path(path)
    if content is None:
        content = read_file(path, other_objects=True)
    mapping: Any = content if isinstance(content, Mapping) else {}
    entries = mapping.get("state_dict", mapping.get("model", mapping))
    state, origin = _backbone_state(entries if isinstance(entries, Mapping) else {})
    if not state:
        raise UserError(
            f"{path} holds no state dict: save model.state_dict() or {{'state_dict': ...}}"
        )
    check_finite(state, path)
    epoch = mapping.get("epoch")
    if epoch is not None:
        epoch += 1  # Lightning counts from 0
    return Weights(path, state, epoch, mapping.get("global_step"), origin)


def read_file(path: Path, other_objects: bool = False) -> Any:
    """Return the content of a torch or safetensors file, or raise a :class:`UserError`.

    With ``other_objects``, the file may hold configs, schedulers or argparse results besides
    weights, as solo-learn's checkpoints do. They are replaced by placeholders. Checking the zip's
    checksums, which torch does not do, takes 0.1 s for 100 MB.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        zipped = zipfile.is_zipfile(path)  # since torch 1.6
        if zipped:
            with zipfile.ZipFile(path) as file:
                damaged = file.testzip()
                for info in file.infolist():
                    if info.external_attr & 0x10:  # a folder, of which torch reads garbage
                        damaged = info.filename
            if damaged:
                raise UserError(f"bytes have changed since it was written (in {damaged})")
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            if not (other_objects and zipped):
                raise
            tensors_only = SimpleNamespace(__name__="tensors_only", Unpickler=_TensorsOnly)
            return torch.load(
                path, map_location="cpu", weights_only=False, pickle_module=tensors_only
            )
    except Exception as error:  # a truncated file can raise almost anything
        raise UserError(f"{path} cannot be read as a checkpoint: {first_line(error)}") from error


class _TensorsOnly(pickle.Unpickler):
    """Unpickle only tensors. torch's ``safe_globals`` does not accept subclasses of dict."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in TENSOR_PARTS:
            return super().find_class(module, name)
        return _Placeholder


class _Placeholder:
    """Replaces any object that is not a tensor; its methods do nothing."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    # Methods that an unpickler calls on the objects that it creates.
    __call__ = __setstate__ = __setitem__ = append = extend = add = __init__


def _backbone_state(entries: Mapping[str, Any]) -> tuple[dict[str, Tensor], str | None]:
    """Return the backbone's state dict and its origin."""
    tensors = {}
    for name, value in entries.items():
        if isinstance(value, Tensor):
            # DDP, torch.compile and wrappers add prefixes.
            name = name.replace("_orig_mod.", "").removeprefix("module.").removeprefix("model.")
            tensors[name] = value
    prefix = ""
    # lightly's DINO, solo-learn 1.0.2, solo-learn 1.0.6 and lightly
    for candidate in ("teacher_backbone.", "encoder.", "backbone."):
        if any(name.startswith(candidate) for name in tensors):
            prefix = candidate
    state = {}
    for name, value in tensors.items():
        bare_name = name.removeprefix(prefix)
        if name.startswith(prefix) and not bare_name.startswith(HEADS):
            state[bare_name] = value
    if {"0.weight", "1.running_mean"} <= state.keys():
        without_relu = any(name.startswith("2.") for name in state)
        return _named_layers(state), LIGHTLY if without_relu else None
    return state, SOLO_LEARN if prefix else None


def _named_layers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a ResNet's state dict with names of layers instead of numbers."""
    layers: dict[str, str] = {}
    names = iter(RESNET_LAYERS)
    named = {}
    for name, value in state.items():
        number, _, rest = name.partition(".")
        if number not in layers:
            layers[number] = next(names, number)
        # lightly's own ResNet calls it a shortcut.
        rest = rest.replace("shortcut.", "downsample.")
        named[f"{layers[number]}.{rest}"] = value
    return named


def check_finite(state: Mapping[str, Any], path: Path) -> None:
    """Raise UserError if a file's weights contain NaN or infinity."""
    if broken := nonfinite_names(state):
        raise UserError(
            f"{path} holds NaN or infinity ({join_first(broken)}): its training diverged."
        )


def build(spec: Spec, image_size: int = 224, origin: str | None = None) -> nn.Module:
    """Return the backbone as solo-learn builds it, or with the stem of another origin.

    Its weights are fresh.
    """
    from rdm_solo.methods import solo_learn  # importing it takes seconds

    with torch.random.fork_rng(devices=[]):
        backbone = solo_learn.backbone(spec.name, spec.stem, spec.kwargs, image_size)
    if origin == LIGHTLY:
        backbone.relu = nn.Identity()
        if spec.stem == "small":
            conv1: Any = backbone.conv1
            conv1.padding = (1, 1)
    return backbone


def load(weights: Weights, spec: Spec, image_size: int = 224) -> nn.Module:
    """Return the backbone with these weights, frozen and in eval mode."""
    backbone = build(spec, image_size, weights.origin)
    try:
        backbone.load_state_dict(weights.state)
    except RuntimeError as error:
        mismatches = " ".join(str(error).split())
        raise UserError(f"{weights.path} does not fit {spec}: {mismatches:.800}") from error
    return backbone.eval().requires_grad_(False)


def recognise(state: Mapping[str, Tensor]) -> Spec | None:
    """Return the backbone whose weights have these names and shapes; None if it is unknown."""
    if "stages.0.conv1.weight" in state:
        width, channels = state["stem.0.weight"].shape[:2]
        return Spec("small_resnet", "small", {"in_channels": channels, "width": width})
    name = RESNETS.get(len(state))
    if name is None or "conv1.weight" not in state:
        return None
    kernel = state["conv1.weight"].shape[-1]
    return Spec(name, "small" if kernel == 3 else "imagenet")


def spec_of(weights: Weights) -> Spec:
    """Return the backbone that a file holds; raise a :class:`UserError` if it is unknown."""
    spec = recognise(weights.state)
    if spec is None:
        raise UserError(
            f"{weights.path} holds an unknown backbone ({join_first(weights.state)}): pass "
            "backbone.name=... and, for a ResNet, backbone.stem=..."
        )
    return spec


def assumed_stem(weights: Weights, spec: Spec) -> str | None:
    """Log and return the assumption about a small stem; None if there is none."""
    if weights.origin or spec.stem != "small" or "conv1.weight" not in weights.state:
        return None
    stem = "conv1 with padding 2, no max-pooling"
    log.warning(
        f"warning: {weights.path} has a 3x3 conv1; solo-learn's stem is assumed ({stem}). If the "
        "padding was 1 in training, features are wrong. Pass backbone.stem=small to confirm"
    )
    return stem
