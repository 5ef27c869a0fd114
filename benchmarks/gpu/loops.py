"""SimSiam on a ResNet-18 in plain PyTorch: what a step and an epoch cost at least."""

import time

import torch
import torchvision  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu.bench import Bench

HALF = torch.bfloat16


def layer(before: int, after: int) -> list[nn.Module]:
    return [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU()]


def predictor(k: int) -> nn.Module:
    """Return SimSiam's predictor."""
    return nn.Sequential(*layer(k, k // 4), nn.Linear(k // 4, k))


def minus_cosine(p: Tensor, z: Tensor) -> Tensor:
    return -F.cosine_similarity(p, z).mean()


class PlainLoop:
    """A step of SimSiam in plain PyTorch: no Lightning and no logging.

    Without views it trains on noise that is on the device.
    """

    def __init__(self, bench: Bench, dtype: torch.dtype | None) -> None:
        batch, size, k = (8, 8, 32) if bench.small else (256, 32, 2048)
        torch.manual_seed(0)
        self.build(k, bench.small)
        self.modules.to(bench.device)
        self.noise = torch.randn(2, batch, 3, size, size, device=bench.device)
        self.autocast = torch.autocast(bench.device, dtype=dtype or HALF, enabled=bool(dtype))
        self.optimizer = self.configure(bench.on_gpu)

    def build(self, k: int, small: bool) -> None:
        """Create ``modules`` and the loss ``compare``; small: with one convolution."""
        backbone = torchvision.models.resnet18()
        backbone.conv1 = nn.Conv2d(3, 64, 3, padding=2, bias=False)  # as in solo-learn
        backbone.maxpool = backbone.fc = nn.Identity()
        if small:
            convolution = nn.Conv2d(3, 512, 3, stride=2)
            backbone = nn.Sequential(convolution, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        *projector, _ = layer(512, k) + layer(k, k) + layer(k, k)  # no ReLU at the end
        self.modules = nn.ModuleDict(
            {
                "backbone": backbone.to(memory_format=torch.channels_last),
                "projector": nn.Sequential(*projector),
                "predictor": predictor(k),
            }
        )
        self.compare = minus_cosine

    def configure(self, fused: bool) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.modules.parameters(), lr=0.1, momentum=0.9, fused=fused)

    def __call__(self, views: Tensor | None = None) -> Tensor:
        """Take a step on a stack of two views and return its loss."""
        if views is None:
            views = self.noise
        with self.autocast:
            z1, z2 = (self.modules["projector"](self.modules["backbone"](v)) for v in views)
            p1 = self.modules["predictor"](z1)
            p2 = self.modules["predictor"](z2)
            loss = (self.compare(p1, z2.detach()) + self.compare(p2, z1.detach())) / 2
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class LightlyLoop(PlainLoop):
    """The loop of lightly's example: its heads, loss and optimiser, and no channels-last layout."""

    def build(self, k: int, small: bool) -> None:
        from lightly.loss import NegativeCosineSimilarity
        from lightly.models.modules import heads

        super().build(k, small)
        self.modules["backbone"].to(memory_format=torch.contiguous_format)
        self.modules["projector"] = heads.SimSiamProjectionHead(512, k, k)
        self.modules["predictor"] = heads.SimSiamPredictionHead(k, k // 4, k)
        self.compare = NegativeCosineSimilarity()

    def configure(self, fused: bool) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.modules.parameters(), lr=0.1, momentum=0.9)


def random_views(images: Tensor) -> Tensor:
    """Crop, flip and jitter a batch of bytes; each image has its own parameters.

    Shapes: ``(n, 3, H, W) -> (n, 3, H, W)``, floats.
    """
    n = len(images)
    x = images.float() / 255

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.empty(n, *shape, device=x.device).uniform_(low, high)

    side = uniform(0.2, 1.0).sqrt()  # a square of 20 to 100 % of the area
    sign = uniform(-1, 1).sign()  # -1 mirrors
    boxes = torch.zeros(n, 2, 3, device=x.device)
    boxes[:, 0, 0] = side * sign
    boxes[:, 1, 1] = side
    boxes[:, :, 2] = (1 - side[:, None]) * uniform(-1, 1, 2)
    grid = F.affine_grid(boxes, list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, align_corners=False)

    x = x * uniform(0.6, 1.4, 1, 1, 1)  # brightness
    mean = x.mean((1, 2, 3), keepdim=True)
    x = mean.lerp(x, uniform(0.6, 1.4, 1, 1, 1))  # contrast
    grey = x.mean(1, keepdim=True)
    return grey.lerp(x, uniform(0.0, 1.4, 1, 1, 1)).clamp(0, 1)  # saturation, down to grey


def plain_epochs(bench: Bench, count: int) -> list[float]:
    """Train on bytes on the device and return the seconds of each epoch but the first."""
    loop = PlainLoop(bench, HALF if bench.on_gpu else None)
    batch, size = loop.noise.shape[1], loop.noise.shape[-1]
    images = torch.randint(256, (64 if bench.small else 50_000, 3, size, size), dtype=torch.uint8)
    images = images.to(bench.device)
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        order = torch.randperm(len(images), device=bench.device)
        for rows in order[: len(order) // batch * batch].split(batch):
            views = random_views(images[rows.repeat(2)])
            loss = loop(views.unflatten(0, (2, batch)))
        loss.item()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return seconds[1:]
