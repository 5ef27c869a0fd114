"""Backbones out of files: our runs, solo-learn's checkpoints, plain state dicts, safetensors.

Nothing in a file is executed. What torch refuses under ``weights_only`` (a checkpoint may hold
configs, schedulers, argparse results beside its weights) is read by an unpickler that knows
tensors alone and puts an inert object in place of everything else.
"""

from __future__ import annotations

import json
import logging
import pickle
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Spec", "Weights", "assumed", "backbone_of", "build", "guess", "known", "load", "read"]

log = logging.getLogger("rdm_solo")


# Classifiers behind a backbone; a backbone has none.
HEADS = ("fc.", "head.", "classifier.")


TENSOR_PARTS = {
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch", "Size"),
    ("torch", "device"),
    *(("torch", str(kind).removeprefix("torch.")) for kind in (torch.float32, torch.float16)),
    *(("torch", str(kind).removeprefix("torch.")) for kind in (torch.bfloat16, torch.int64)),
}


@dataclass(frozen=True)
class Spec:
    """A backbone by name, stem (``small`` or ``imagenet``) and arguments."""

    name: str
    stem: str = "imagenet"
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} with the {self.stem} stem"


@dataclass(frozen=True)
class Weights:
    """A file's backbone: its weights, and what the file says about them.

    ``prefix`` stood before its names, ``backbone.`` or ``encoder.`` in solo-learn's checkpoints.
    """

    path: Path
    state: dict[str, Tensor]
    epoch: int | None = None
    step: int | None = None
    spec: Spec | None = None
    prefix: str = ""


def load(
    source: str | Path | Weights, spec: Spec | None = None, image_size: int = 224
) -> nn.Module:
    """The backbone in a file (or what :func:`read` made of it), frozen and in eval mode.

    What it is stands in the file of an export, and otherwise in the shapes of its weights; ``spec``
    decides where it is given.
    """
    weights = source if isinstance(source, Weights) else read(source)
    if spec is None:
        spec = known(weights)
        assumed(weights, spec)
    backbone = build(spec, image_size)
    _fill(backbone, weights, spec)
    return backbone.eval().requires_grad_(False)


def known(weights: Weights) -> Spec:
    """The backbone that a file holds, or a ValueError where it does not show."""
    spec = weights.spec or guess(weights.state)
    if spec is None:
        raise ValueError(
            f"{weights.path} does not show which backbone it holds "
            f"({_some(sorted(weights.state))}): give backbone.name=..., and backbone.stem=... of a "
            "resnet"
        )
    return spec


def assumed(weights: Weights, spec: Spec) -> str | None:
    """What no shape of a weight tells about a small stem, and a warning that it is assumed.

    None where the file is an export or has solo-learn's names, or where nothing is assumed.
    """
    certain = weights.spec is not None or weights.prefix != ""
    if certain or spec.stem != "small" or "conv1.weight" not in weights.state:
        return None
    stem = "conv1 with padding 2, no max-pooling"
    log.warning(
        f"warning: {weights.path} does not tell its stem beyond a 3x3 conv1: assumed is {stem}, as "
        "in solo-learn. Weights trained with padding 1, as in many a ResNet for CIFAR, would have "
        "other features here; backbone.stem=small says that it is right"
    )
    return stem


def read(path: str | Path) -> Weights:
    """The backbone's weights in a file, whatever program wrote it."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}: give a .ckpt, .pt, .pth or .safetensors")
    if path.suffix == ".safetensors":
        saved, about = _read_safetensors(path)
    else:
        saved, about = _read_pickle(path), {}
        beside = path.with_suffix(".json")
        if beside.is_file():
            about = json.loads(beside.read_text())
    saved_state = _state_dict(saved, path)
    spec = None
    if isinstance(about.get("backbone"), dict):
        spec = Spec(**about["backbone"])
    epoch, step = (saved.get(name, about.get(name)) for name in ("epoch", "global_step"))
    if isinstance(epoch, int) and ("epoch" in saved or "format" not in about):
        epoch += 1  # Lightning counts from 0, as our exports did before they had a format
    return Weights(
        path,
        backbone_of(saved_state),
        epoch if isinstance(epoch, int) else None,
        step if isinstance(step, int) else None,
        spec,
        _prefix(_bare(saved_state)),
    )


def backbone_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The backbone's own entries of a state dict, under the backbone's own names.

    solo-learn's current generation calls it ``backbone``, its release ``encoder``; a momentum copy,
    heads and the classifier are left out, as are the prefixes of DDP and ``torch.compile``.

    >>> x = torch.zeros(1)
    >>> list(backbone_of({"module.encoder.conv1.weight": x, "momentum_encoder.conv1.weight": x}))
    ['conv1.weight']
    """
    bare = _bare(state)
    prefix = _prefix(bare)
    own = {n[len(prefix) :]: value for n, value in bare.items() if n.startswith(prefix)}
    return {name: value for name, value in own.items() if not name.startswith(HEADS)}


def _bare(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefixes of DDP, ``torch.compile`` and a plain wrapper."""
    bare = {}
    for name, value in state.items():
        name = name.replace("_orig_mod.", "")
        for wrapper in ("module.", "model."):
            name = name.removeprefix(wrapper)
        bare[name] = value
    return bare


def _prefix(bare: Mapping[str, Tensor]) -> str:
    """What solo-learn calls the backbone in these names; empty where nothing is called so."""
    for prefix in ("backbone.", "encoder."):
        if any(name.startswith(prefix) for name in bare):
            return prefix
    return ""


def guess(state: Mapping[str, Tensor]) -> Spec | None:
    """The backbone that weights of these names and shapes belong to, where that is certain."""
    if "stem.0.weight" in state and "stages.0.conv1.weight" in state:
        width, channels = state["stem.0.weight"].shape[:2]
        return Spec("small_resnet", "small", {"in_channels": int(channels), "width": int(width)})
    if "layer1.0.conv1.weight" not in state or "conv1.weight" not in state:
        return None
    layers = [
        {name.split(".")[1] for name in state if name.startswith(f"layer{i}.")} for i in range(1, 5)
    ]
    deep = "layer1.0.conv3.weight" in state
    depths = {(False, (2, 2, 2, 2)): "resnet18", (True, (3, 4, 6, 3)): "resnet50"}
    a, b, c, d = map(len, layers)
    name = depths.get((deep, (a, b, c, d)))
    stem = {3: "small", 7: "imagenet"}.get(state["conv1.weight"].shape[-1])
    return Spec(name, stem) if name and stem else None


def build(spec: Spec, image_size: int = 224) -> nn.Module:
    """The backbone as solo-learn builds it, with fresh weights."""
    from rdm_solo.methods import solo_learn

    with torch.random.fork_rng(devices=[]):
        built: nn.Module = solo_learn.backbone(spec.name, spec.stem, spec.kwargs, image_size)
    return built


def _fill(backbone: nn.Module, weights: Weights, spec: Spec) -> None:
    """Every weight from the file, or a ValueError that names what does not fit."""
    own, given = backbone.state_dict(), weights.state
    missing = [n for n in own if n not in given and not n.endswith("num_batches_tracked")]
    unexpected = [name for name in given if name not in own]
    shapes = [
        f"{name} is {tuple(given[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    if missing or unexpected or shapes:
        found = guess(given)
        hint = "give the backbone.name and backbone.stem that it was trained with"
        if found is not None and (found.name, found.stem) != (spec.name, spec.stem):
            hint = f"it looks like {found}: backbone.name={found.name} backbone.stem={found.stem}"
        faults = [
            f"{what} {_some(names)}"
            for what, names in (("lacks", missing), ("has unexpected", unexpected), ("has", shapes))
            if names
        ]
        raise ValueError(f"{weights.path} does not fit {spec}: it {', '.join(faults)}; {hint}")
    backbone.load_state_dict(given, strict=False)


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            about = dict(file.metadata() or {})
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is no intact safetensors file: {error}") from error
    return saved, json.loads(about["rdm_solo"]) if "rdm_solo" in about else {}


def _read_pickle(path: Path) -> Any:
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            return _read_inert(path)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{path} cannot be read as a checkpoint of torch: {reason}") from error


def _read_inert(path: Path) -> Any:
    left: set[str] = set()

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) in TENSOR_PARTS:
                return super().find_class(module, name)
            left.add(f"{module}.{name}")
            return _Inert

    tools: Any = types.ModuleType("inert")  # torch wants what looks like the pickle module
    tools.Unpickler = Unpickler
    tools.load = lambda file, **options: Unpickler(file, **options).load()
    saved = torch.load(path, map_location="cpu", weights_only=False, pickle_module=tools)
    log.info(f"{path}: left unread, being no weights: {_some(sorted(left))}")
    return saved


class _Inert:
    """Stands where a file asks for an object that is no tensor, and does nothing."""

    def __new__(cls, *args: object, **kwargs: object) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __call__(self, *args: object, **kwargs: object) -> _Inert:
        return self

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    append = extend = add = update = __call__


def _state_dict(saved: Any, path: Path) -> Mapping[str, Tensor]:
    if isinstance(saved, Mapping):
        for wrapper in ("state_dict", "model"):
            if isinstance(saved.get(wrapper), Mapping):
                saved = saved[wrapper]
                break
        state = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
        if state and all(isinstance(name, str) for name in state):
            return state
    raise ValueError(
        f"{path} holds no state dict: save model.state_dict(), or {{'state_dict': ...}}, not the "
        "model itself"
    )


def _some(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
