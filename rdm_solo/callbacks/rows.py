"""Outputs of a part of a network as rows ``(N, k)``."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from rdm_solo.messages import UserError

TOKENS = ("mean", "rows")


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor in an output, which may be a tuple or a mapping of several.

    >>> first_tensor({"loss": None, "tokens": (torch.ones(2), torch.zeros(3))})
    tensor([1., 1.])
    """
    if isinstance(output, Tensor):
        return output
    values: Iterable[Any] = output.values() if isinstance(output, Mapping) else ()
    values = output if isinstance(output, (tuple, list)) else values
    return next((x for x in map(first_tensor, values) if x is not None), None)


def rows(output: Any, of: str, tokens: str = "mean") -> Tensor:
    """Return the first tensor of an output as rows ``(N, k)``, without its graph.

    An image's row is the mean of its tokens ``(N, T, k)`` or of its map ``(N, k, H, W)``: tokens of
    one image differ by their place alone and would look like many images. With ``tokens="rows"``
    each of them is a row. ``of`` names the output in the message.

    >>> images = torch.arange(12.0).reshape(2, 3, 2)
    >>> rows(images, "head").tolist(), rows(images, "head", "rows").shape
    ([[2.0, 3.0], [8.0, 9.0]], torch.Size([6, 2]))
    """
    x = first_tensor(output)
    if x is None or not 2 <= x.ndim <= 4 or not x.is_floating_point():
        got = type(output).__name__ if x is None else f"{x.dtype} of shape {tuple(x.shape)}"
        raise UserError(
            f"{of} gives {got}, where rows (N, k), tokens (N, T, k) or maps (N, k, H, W) of "
            "floating-point numbers belong; name a part that gives these."
        )
    x = x.detach()
    if x.ndim == 4:
        x = x.flatten(2).mT
    if x.ndim == 3:
        wide = torch.promote_types(x.dtype, torch.float32)
        x = x.flatten(0, 1) if tokens == "rows" else x.mean(1, dtype=wide)
    return x
