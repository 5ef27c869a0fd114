"""Find the patch tokens that a backbone computes."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rdm_solo.observe.outputs import first_tensor

# DINOv2's name of the patch tokens, and Hugging Face's name of all tokens.
PATCHES = "x_norm_patchtokens"
ALL = "last_hidden_state"
# Parameters (1, n, k) that vision transformers put before the patches.
PREFIXES = ("cls_token", "class_token", "distillation_token", "register_tokens", "storage_tokens")


def patch_tokens(backbone: nn.Module, images: Tensor) -> Tensor | None:
    """Return the patch tokens ``(N, T, k)`` of images; None if the backbone has none.

    They are the backbone's output if that has tokens or a map ``(N, k, H, W)``. Otherwise they are
    computed inside: the last output whose shape is the most common ``(N, T, k)`` shape. In a
    vision transformer this is the final norm's output. Class and register tokens, which precede
    the patches, are dropped.

    >>> patch_tokens(nn.Conv2d(1, 8, 2), torch.ones(1, 1, 5, 5)).shape
    torch.Size([1, 16, 8])
    """
    counts: Counter[torch.Size] = Counter()
    latest: dict[torch.Size, Tensor] = {}

    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 3:
            counts[output.shape] += 1
            latest[output.shape] = output

    hooks = [part.register_forward_hook(record) for part in backbone.modules()]
    try:
        output = backbone(images)
    finally:
        for hook in hooks:
            hook.remove()
    if isinstance(output, Mapping):
        if PATCHES in output:
            return first_tensor(output[PATCHES])
        output = output.get(ALL, output)
    x = first_tensor(output)
    if x is not None and x.ndim == 4:
        return x.flatten(2).mT
    if x is None or x.ndim != 3:
        if not counts:
            return None
        ((shape, _),) = counts.most_common(1)
        x = latest[shape]

    prefix = prefix_length(backbone, x.shape[1])
    return x[:, prefix:] if x.shape[1] - prefix > 1 else None


def prefix_length(backbone: nn.Module, count: int) -> int:
    """Return how many of ``count`` tokens are class and register tokens.

    Without a known name of such tokens, they are all but the largest square.
    """
    for part in backbone.modules():
        prefix = getattr(part, "num_prefix_tokens", None)  # timm
        if isinstance(prefix, int):
            return prefix
    prefix = 0
    for name, parameter in backbone.named_parameters():
        if name.endswith(PREFIXES) and parameter.ndim == 3:
            prefix += parameter.shape[1]
    return prefix or count - math.isqrt(count) ** 2
