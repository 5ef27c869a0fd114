"""Find the patch tokens that a backbone computes."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rdm_solo.observe.outputs import first_tensor

# Names of the tokens in what DINOv2 and Hugging Face's models return.
NAMES = ("x_norm_patchtokens", "last_hidden_state")


def patch_tokens(backbone: nn.Module, images: Tensor) -> Tensor | None:
    """Return the patch tokens ``(N, T, k)`` of images; None if the backbone has none.

    They are the backbone's output if that has tokens or a map ``(N, k, H, W)``. Otherwise they are
    computed inside: the last output that has the shape of most outputs ``(N, T, k)``, which in a
    vision transformer is that of the last norm. Class and register tokens, which precede the
    patches, are dropped: as many as timm's ``num_prefix_tokens``, or all but the largest square.

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
        output = [output[name] for name in NAMES if name in output] or output
    x = first_tensor(output)
    if x is not None and x.ndim == 4:
        return x.flatten(2).mT
    if x is None or x.ndim != 3:
        if not counts:
            return None
        ((shape, _),) = counts.most_common(1)
        x = latest[shape]

    count = x.shape[1]
    prefix = count - math.isqrt(count) ** 2
    for part in backbone.modules():
        prefix = getattr(part, "num_prefix_tokens", prefix)
    return x[:, prefix:] if count - prefix > 1 else None
