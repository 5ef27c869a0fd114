"""Backbones out of files: our runs, solo-learn's checkpoints, plain state dicts, safetensors.

Nothing in a file is executed (:mod:`rdm_solo.methods.torch_files`).
"""

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rdm_solo.messages import UserError, first_line, listed
from rdm_solo.methods import torch_files

log = logging.getLogger("rdm_solo")

# Arguments of backbones that fetch or read files.
FETCHING = ("pretrained", "checkpoint_path", "cache_dir", "weights")
# Words that a backbone looks up in a table of its own, such as global_pool=avg; no path, no module.
PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
SPARE = 2**26  # values that a model may have beyond those of its file

# Classifiers behind a backbone; a backbone has none.
HEADS = ("fc.", "head.", "classifier.")

# By the number of blocks in each stage, and whether these are bottlenecks.
RESNETS = {(2, 2, 2, 2, False): "resnet18", (3, 4, 6, 3, True): "resnet50"}


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

    ``spec`` is what an export says it is, or what its shapes show. ``certain``: an export or
    solo-learn wrote it, and nothing about its stem is assumed.
    """

    path: Path
    state: dict[str, Tensor]
    epoch: int | None = None
    step: int | None = None
    spec: Spec | None = None
    certain: bool = False


def load(weights: Weights, spec: Spec, image_size: int = 224) -> nn.Module:
    """The backbone with a file's weights, frozen and in eval mode.

    ValueError, naming what does not fit, where it is not the one whose weights these are.
    """
    with no_larger_than(weights.state, weights.path):
        backbone = build(spec, image_size)
    own, given = backbone.state_dict(), weights.state
    faults = {
        "lacks": [n for n in own if n not in given and not n.endswith("num_batches_tracked")],
        "has unexpected": [name for name in given if name not in own],
        "has": [
            f"{name} is {tuple(given[name].shape)} instead of {tuple(value.shape)}"
            for name, value in own.items()
            if name in given and given[name].shape != value.shape
        ],
    }
    if any(faults.values()):
        found = weights.spec
        hint = "give the backbone.name and backbone.stem that it was trained with"
        if found is not None and (found.name, found.stem) != (spec.name, spec.stem):
            hint = f"it looks like {found}: backbone.name={found.name} backbone.stem={found.stem}"
        said = " and ".join(f"{what} {listed(names)}" for what, names in faults.items() if names)
        raise UserError(f"{weights.path} does not fit {spec}: it {said}; {hint}")
    backbone.load_state_dict(given, strict=False)
    return backbone.eval().requires_grad_(False)


def build(spec: Spec, image_size: int = 224) -> nn.Module:
    """The backbone as solo-learn builds it, with fresh weights."""
    from rdm_solo.methods import solo_learn  # takes seconds

    try:
        with torch.random.fork_rng(devices=[]):
            return solo_learn.backbone(spec.name, spec.stem, spec.kwargs, image_size)
    except Exception as error:  # whatever a builder raises on an argument
        if isinstance(error, ImportError) or str(error).startswith("backbone."):
            raise
        reason = f"KeyError: {error}" if isinstance(error, KeyError) else first_line(error)
        raise UserError(
            f"backbone.name={spec.name} cannot be built: {reason}; look at backbone.kwargs."
        ) from error


def known(weights: Weights) -> Spec:
    """The backbone that a file holds; ValueError where it does not show."""
    if weights.spec is None:
        raise UserError(
            f"{weights.path} does not show which backbone it holds "
            f"({listed(sorted(weights.state))}): give backbone.name=..., and "
            "backbone.stem=... of a resnet"
        )
    return weights.spec


def guess(state: Mapping[str, Tensor]) -> Spec | None:
    """The backbone that weights of these names and shapes belong to, where that is certain."""
    if "stem.0.weight" in state and "stages.0.conv1.weight" in state:
        width, channels = state["stem.0.weight"].shape[:2]
        return Spec("small_resnet", "small", {"in_channels": int(channels), "width": int(width)})
    depth = [
        len({name.split(".")[1] for name in state if name.startswith(f"layer{i}.")})
        for i in range(1, 5)
    ]
    name = RESNETS.get((*depth, "layer1.0.conv3.weight" in state))
    if name is None or "conv1.weight" not in state:
        return None
    stem = {3: "small", 7: "imagenet"}.get(state["conv1.weight"].shape[-1])
    return None if stem is None else Spec(name, stem)


def assumed(weights: Weights, spec: Spec) -> str | None:
    """What no shape of a weight tells about a small stem, and a warning that it is assumed.

    None where nothing is assumed.
    """
    if weights.certain or spec.stem != "small" or "conv1.weight" not in weights.state:
        return None
    stem = "conv1 with padding 2, no max-pooling"
    log.warning(
        f"warning: {weights.path} shows a 3x3 conv1, but not its padding: {stem} is assumed, as in "
        "solo-learn. With padding 1 in training, as in many CIFAR ResNets, the features here are "
        "wrong; if the stem is right, backbone.stem=small ends this warning"
    )
    return stem


def read(path: str | Path, saved: Any = None) -> Weights:
    """The backbone's weights in a file, whatever program wrote it; ``saved`` is its content, where
    it has been read."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}: give a .ckpt, .pt, .pth or .safetensors")
    if path.suffix == ".safetensors":
        saved, about = _read_safetensors(path)
    else:
        beside = path.with_suffix(".json")
        about = _said(beside, beside.read_bytes()) if beside.is_file() else {}
        saved = saved or torch_files.read(path, other_objects=True)
    state, certain = _backbone_of(_state_dict(saved, path))
    check_finite(state, path)
    spec = guess(state)
    if isinstance(about.get("backbone"), dict):
        spec, certain = _spec(path, about["backbone"]), True
    epoch, step = (saved.get(name, about.get(name)) for name in ("epoch", "global_step"))
    epoch = epoch if isinstance(epoch, int) else None
    if epoch is not None and ("epoch" in saved or "format" not in about):
        epoch += 1  # Lightning counts from 0, as our exports did before they had a format
    step = step if isinstance(step, int) else None
    return Weights(path, state, epoch, step, spec, certain)


def not_finite(state: Mapping[str, Any]) -> list[str]:
    """The names of tensors that hold NaN or infinity.

    >>> not_finite({"whole": torch.ones(2), "broken": torch.tensor([1.0, torch.nan]), "steps": 3})
    ['broken']
    """
    floats = {n: x for n, x in state.items() if isinstance(x, Tensor) and x.is_floating_point()}
    if not floats:
        return []
    finite = torch.stack([x.isfinite().all() for x in floats.values()])  # one wait for a device
    return [name for name, fine in zip(floats, finite.tolist()) if not fine]


def check_finite(state: Mapping[str, Any], path: Path) -> None:
    """Refuse a file's weights where they hold NaN or infinity."""
    if broken := not_finite(state):
        raise UserError(
            f"{path} holds NaN or infinity ({listed(broken)}): training had diverged when it was "
            "written, and nothing can be made of it."
        )


def _backbone_of(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """The backbone's entries of a state dict, under its own names; whether solo-learn wrote it.

    solo-learn's current version calls it ``backbone``, its release ``encoder``; a momentum copy,
    heads and the classifier are left out, as are the prefixes of DDP, ``torch.compile`` and a plain
    wrapper.
    """
    bare = {
        name.replace("_orig_mod.", "").removeprefix("module.").removeprefix("model."): value
        for name, value in state.items()
    }
    for prefix in ("backbone.", "encoder.", ""):
        own = {n.removeprefix(prefix): value for n, value in bare.items() if n.startswith(prefix)}
        if own:
            break
    return {n: value for n, value in own.items() if not n.startswith(HEADS)}, bool(prefix)


def _state_dict(saved: Any, path: Path) -> Mapping[str, Tensor]:
    if isinstance(saved, Mapping):
        for wrapper in ("state_dict", "model"):
            if isinstance(saved.get(wrapper), Mapping):
                saved = saved[wrapper]
                break
        state = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
        if state and all(isinstance(name, str) for name in state):
            return state
    raise UserError(
        f"{path} holds no state dict: save model.state_dict(), or {{'state_dict': ...}}, not the "
        "model itself"
    )


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            about = dict(file.metadata() or {})
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{path} is no intact safetensors file: {error}") from error
    return saved, _said(path, about.get("rdm_solo", "{}"))


def _said(path: Path, text: str | bytes) -> dict[str, Any]:
    """What a file says about weights."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} does not say in JSON what the weights are ({error})") from error
    return found if isinstance(found, dict) else {}


def _spec(path: Path, said: Mapping[str, Any]) -> Spec:
    """The backbone that a file names; its arguments are numbers and plain words, which fetch and
    read nothing."""
    name, stem, kwargs = (said.get(key) for key in ("name", "stem", "kwargs"))
    plain = isinstance(kwargs, dict) and all(
        not key.startswith(FETCHING)
        and (isinstance(value, (bool, int, float, type(None))) or is_plain_word(value))
        for key, value in kwargs.items()
    )
    if not isinstance(name, str) or not isinstance(stem, str) or not plain:
        raise UserError(
            f"{path} names a backbone with values that may not come from a file: {said!r:.200}"
        )
    return Spec(name, stem, kwargs)


def is_plain_word(value: object) -> bool:
    """Whether a backbone may get the value although a file says so.

    >>> is_plain_word("avg"), is_plain_word("os.system"), is_plain_word("/etc/passwd")
    (True, False, False)
    """
    return isinstance(value, str) and PLAIN_WORD.fullmatch(value) is not None


@contextlib.contextmanager
def no_larger_than(state: Mapping[str, Any], path: Path) -> Iterator[None]:
    """Refuse a model of many times the weights of a file, before it fills the memory."""
    tensors = [value for value in state.values() if isinstance(value, Tensor)]
    known = sum(x.untyped_storage().nbytes() // x.element_size() for x in tensors)
    count = 0

    def add(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        count += 0 if parameter is None else parameter.numel()
        if count > 4 * known + SPARE:
            raise UserError(f"{path} holds {known:,} weights, and its model would have far more")

    handle = nn.modules.module.register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        handle.remove()
