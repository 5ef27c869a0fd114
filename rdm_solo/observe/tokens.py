"""Find the patch tokens that a backbone computes."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rdm_solo.observe.outputs import first_tensor

# DINOv2's name of the patch tokens, and Hugging Face's name of all tokens.
PATCHES = "x_norm_patchtokens"
ALL = "last_hidden_state"


class PatchTokens(NamedTuple):
    """Tokens ``(N, T, k)``. If their number is unknown, class tokens may be among them."""

    tokens: Tensor
    is_number_known: bool

    def note(self) -> str:
        """Return what a user should know if the number of patches is unknown."""
        return (
            f"all {self.tokens.shape[1]} tokens count as patches, because no patch embedding "
            "(Conv2d) shows how many of them are class or register tokens."
        )


def patch_tokens(backbone: nn.Module, images: Tensor) -> PatchTokens | None:
    """Return the patch tokens of images; None if the backbone has none.

    They are the backbone's output if that has tokens or a map ``(N, k, H, W)``. Otherwise they are
    computed inside: the last output whose shape is the most common ``(N, T, k)`` shape. In a
    vision transformer this is the final norm's output.

    Class and register tokens, which precede the patches, are dropped. There are as many patches as
    positions in the map of the patch embedding, the last ``Conv2d`` before tokens of this shape.
    Without one, or if there are fewer tokens, nothing is dropped.

    >>> patch_tokens(nn.Conv2d(1, 8, 2), torch.ones(1, 1, 5, 5)).tokens.shape
    torch.Size([1, 16, 8])
    """
    counts: Counter[torch.Size] = Counter()
    latest: dict[torch.Size, Tensor] = {}
    positions = 0  # of the latest map
    positions_before: dict[torch.Size, int] = {}  # those before the first tokens of a shape

    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal positions
        if isinstance(module, nn.Conv2d):
            positions = output.shape[-2:].numel()
        if isinstance(output, Tensor) and output.ndim == 3 and len(output) == len(images):
            counts[output.shape] += 1
            latest[output.shape] = output
            positions_before.setdefault(output.shape, positions)

    hooks = [part.register_forward_hook(record) for part in backbone.modules()]
    try:
        output = backbone(images)
    finally:
        for hook in hooks:
            hook.remove()
    are_patches = isinstance(output, Mapping) and PATCHES in output
    if isinstance(output, Mapping):
        output = output.get(PATCHES, output.get(ALL, output))
    x = first_tensor(output)
    if x is not None and x.ndim == 4:
        x = x.flatten(2).mT
        are_patches = True
    if x is None or x.ndim != 3:
        if not counts:
            return None
        ((shape, _),) = counts.most_common(1)
        x = latest[shape]
    if not are_patches:
        positions = positions_before.get(x.shape, positions)
        are_patches = 0 < positions <= x.shape[1]
        if are_patches:
            x = x[:, x.shape[1] - positions :]
    return PatchTokens(x, are_patches) if x.shape[1] > 1 else None
