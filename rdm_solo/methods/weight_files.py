"""Load backbones from files: our runs, solo-learn's checkpoints, plain state dicts, safetensors.

Nothing in a file is executed (:mod:`rdm_solo.methods.torch_files`).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rdm_solo.messages import UserError, listed
from rdm_solo.methods import torch_files

log = logging.getLogger("rdm_solo")

# Prefixes of backbone arguments that download or read files.
FETCHING = ("pretrained", "checkpoint_path", "cache_dir", "weights")
HEADS = ("fc.", "head.", "classifier.")  # of networks that classify
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
    """The backbone in a file: its weights, and the epoch (from 1) and step that the file names.

    ``spec`` is what the shapes show. ``certain`` is true where solo-learn wrote the file, so that
    nothing about the stem has to be assumed.
    """

    path: Path
    state: dict[str, Tensor]
    epoch: int | None = None
    step: int | None = None
    spec: Spec | None = None
    certain: bool = False


def read(path: str | Path, content: Any = None) -> Weights:
    """Return the backbone's weights in a file; ``content`` is what it holds, if it was read."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}: give a .ckpt, .pt, .pth or .safetensors")
    if content is None and path.suffix == ".safetensors":
        content = _read_safetensors(path)
    elif content is None:
        content = torch_files.read(path, other_objects=True)
    state, certain = _backbone_state(_state_dict(content, path))
    check_finite(state, path)
    epoch, step = (content.get(name) for name in ("epoch", "global_step"))
    return Weights(
        path,
        state,
        epoch + 1 if isinstance(epoch, int) else None,  # Lightning counts from 0
        step if isinstance(step, int) else None,
        guess(state),
        certain,
    )


def load(weights: Weights, spec: Spec, image_size: int = 224) -> nn.Module:
    """Return the backbone with these weights, frozen and in eval mode.

    A :class:`UserError` names what does not match.
    """
    backbone = build(spec, image_size)
    try:
        backbone.load_state_dict(weights.state)
    except RuntimeError as error:
        faults = " ".join(f"{line.strip():.200}" for line in str(error).splitlines()[1:6])
        hint = "give the backbone.name and backbone.stem that it was trained with"
        if (own := weights.spec) and (own.name, own.stem) != (spec.name, spec.stem):
            hint = f"it looks like {own}: backbone.name={own.name} backbone.stem={own.stem}"
        raise UserError(f"{weights.path} does not fit {spec}: {faults}; {hint}") from error
    return backbone.eval().requires_grad_(False)


def build(spec: Spec, image_size: int = 224) -> nn.Module:
    """Return the backbone as solo-learn builds it, with fresh weights."""
    from rdm_solo.methods import solo_learn  # takes seconds

    with torch.random.fork_rng(devices=[]):
        return solo_learn.backbone(spec.name, spec.stem, spec.kwargs, image_size)


def known(weights: Weights) -> Spec:
    """Return the backbone that a file holds; raise a :class:`UserError` if it does not show."""
    if weights.spec is None:
        raise UserError(
            f"{weights.path} does not show which backbone it holds "
            f"({listed(sorted(weights.state))}): give backbone.name=..., and "
            "backbone.stem=... of a resnet"
        )
    return weights.spec


def guess(state: Mapping[str, Tensor]) -> Spec | None:
    """Return the backbone that has weights of these names and shapes, if only one has."""
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
    """Return what is assumed about a small stem, with a warning; None if nothing is."""
    if weights.certain or spec.stem != "small" or "conv1.weight" not in weights.state:
        return None
    stem = "conv1 with padding 2, no max-pooling"
    log.warning(
        f"warning: {weights.path} has a 3x3 conv1, whose padding no weight shows: {stem} is "
        "assumed, as in solo-learn. A network trained with padding 1, as many CIFAR ResNets are, "
        "gives wrong features here. backbone.stem=small confirms the stem and ends this warning"
    )
    return stem


def not_finite(state: Mapping[str, Any]) -> list[str]:
    """Return the names of tensors that hold NaN or infinity.

    >>> not_finite({"whole": torch.ones(2), "broken": torch.tensor([1.0, torch.nan]), "steps": 3})
    ['broken']
    """
    floats = {n: x for n, x in state.items() if isinstance(x, Tensor) and x.is_floating_point()}
    if not floats:
        return []
    finite = torch.stack([x.isfinite().all() for x in floats.values()])  # one wait for a device
    return [name for name, fine in zip(floats, finite.tolist()) if not fine]


def check_finite(state: Mapping[str, Any], path: Path) -> None:
    """Refuse weights of a file that hold NaN or infinity."""
    if broken := not_finite(state):
        raise UserError(
            f"{path} holds NaN or infinity ({listed(broken)}): training had diverged when it was "
            "written."
        )


def _backbone_state(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """Return the backbone's entries under its own names, and whether solo-learn wrote them."""
    bare = {  # without the prefixes of DDP, torch.compile and a wrapper
        name.replace("_orig_mod.", "").removeprefix("module.").removeprefix("model."): value
        for name, value in state.items()
    }
    for prefix in ("backbone.", "encoder.", ""):  # of solo-learn's two versions, and of others
        part = {n.removeprefix(prefix): value for n, value in bare.items() if n.startswith(prefix)}
        if part:
            break
    return {n: value for n, value in part.items() if not n.startswith(HEADS)}, bool(prefix)


def _state_dict(content: Any, path: Path) -> Mapping[str, Tensor]:
    if isinstance(content, Mapping):
        for wrapper in ("state_dict", "model"):
            if isinstance(content.get(wrapper), Mapping):
                content = content[wrapper]
                break
        state = {name: value for name, value in content.items() if isinstance(value, Tensor)}
        if state:
            return state
    raise UserError(
        f"{path} holds no state dict: save model.state_dict(), or {{'state_dict': ...}}, not the "
        "model itself"
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} cannot be read as a safetensors file: {error}") from error
