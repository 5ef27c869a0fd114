"""A callback by which a run of several processes equals one process on the whole batch: batch norm
sees a process's own images alone, since CPUs cannot synchronise it."""

from __future__ import annotations

from typing import Any

from torch import nn

from rdm_solo.lightning import pl


class WithoutBatchNorm(pl.Callback):
    """Puts norms of single images in the place of batch norms, before the optimiser is made."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        replace(pl_module)


def replace(module: nn.Module) -> None:
    """The new norms take over scale and shift."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d | nn.BatchNorm1d):
            norm = nn.GroupNorm(1, child.num_features, affine=False)
            if child.affine:
                norm.weight, norm.bias = child.weight, child.bias
            setattr(module, name, norm)
        else:
            replace(child)
