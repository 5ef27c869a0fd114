"""A network, and a copy that replays CUDA graphs in training."""

import copy

import torch
from torch import Tensor, nn

from rdm_solo.methods.cuda_graphs import ReplayedForward


def with_replayed_copy(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    replayed = copy.deepcopy(module)
    replayed.forward = ReplayedForward(replayed)
    return module, replayed


def captured(module: nn.Module) -> int:
    """Return how many pairs of passes the module has captured."""
    return sum(map(len, module.forward._passes.values()))


def images(seed: int = 0, n: int = 6, size: int = 8, device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, size, size, generator=generator).to(device)


def outputs_of_three_steps(module: nn.Module, **options) -> list[Tensor]:
    """Take steps of two views without setting gradients to zero; return all outputs."""
    outputs = []
    for step in range(3):
        views = [module(images(2 * step + view, **options)) for view in range(2)]
        (views[0].square().mean() + views[1].sin().mean()).backward()
        outputs += views
    return outputs
