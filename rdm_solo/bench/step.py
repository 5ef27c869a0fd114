"""The share of the predictor, or of a filter in its place, in a SimSiam step."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import nn

from rdm_solo.bench.timing import interleaved, ratio
from rdm_solo.filters import SpectralFilter

__all__ = ["bench_step"]


def bench_step(runs: int, device: str, batch: int, size: int) -> None:
    """The share of each head in a two-view SimSiam step: ResNet-18, CIFAR stem, SGD."""
    from torchvision.models import resnet18

    torch.manual_seed(0)
    backbone = resnet18()
    backbone.fc = nn.Identity()
    backbone.conv1 = nn.Conv2d(3, 64, 3, 1, 2, bias=False)
    backbone.maxpool = nn.Identity()
    k = 2048
    projector = nn.Sequential(
        nn.Linear(512, k, bias=False),
        nn.BatchNorm1d(k),
        nn.ReLU(),
        nn.Linear(k, k, bias=False),
        nn.BatchNorm1d(k),
        nn.ReLU(),
        nn.Linear(k, k),
        nn.BatchNorm1d(k, affine=False),
    )
    predictor = nn.Sequential(
        nn.Linear(k, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, k)
    )
    trunk = nn.Sequential(backbone, projector).to(device)
    optimizer = torch.optim.SGD(trunk.parameters(), lr=0.1, momentum=0.9)
    predictor.to(device)
    head_optimizer = torch.optim.SGD(predictor.parameters(), lr=0.1, momentum=0.9)
    views = [torch.randn(batch, 3, size, size, device=device) for _ in range(2)]
    z = [torch.randn(batch, k, device=device) for _ in range(2)]
    grad = torch.randn(batch, k, device=device)

    def step() -> None:
        """The step without any head; a head's own cost is timed beside it."""
        z1, z2 = trunk(views[0]), trunk(views[1])
        loss = -(
            nn.functional.cosine_similarity(z1, z2.detach()).mean()
            + nn.functional.cosine_similarity(z2, z1.detach()).mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def head(module: nn.Module, learns: bool = False, online: bool = True) -> Callable[[], None]:
        def run() -> None:
            for features in z:
                out = module(features.detach().requires_grad_(online))
                if online:
                    out.backward(grad)
            if learns:
                head_optimizer.step()
                head_optimizer.zero_grad()

        return run

    online, target = SpectralFilter("online", "log1p"), SpectralFilter("target", "pow", p=-0.5)
    contestants = {
        "learnable predictor": head(predictor, learns=True),
        "online filter": head(online),
        "target filter": head(target, online=False),
    }
    seconds = interleaved([step, *contestants.values()], runs, device)
    base = statistics.median(seconds[0])
    print(f"step without a head, batch {batch}, {size} px: {base * 1e3:.0f} ms")
    for label, times in zip(contestants, seconds[1:]):
        share = ratio(times, seconds[0])[0]
        print(f"{label:<20}{statistics.median(times) * 1e3:>9.2f} ms{share:>9.2%} of it")
