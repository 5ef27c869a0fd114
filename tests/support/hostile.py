"""Batches that break numerics, drawn at random: sizes, ranks, spectra, scales, dtypes, layouts."""

import math
import random

import torch

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
REACH = {torch.float64: 60, torch.float32: 30, torch.bfloat16: 30, torch.float16: 4}
# Singular values of r directions, numbered from 1.
SPECTRA = [
    lambda i: 1 / i,
    lambda i: i**-2,
    lambda i: i**-4,
    lambda i: 2.0**-i,
    lambda i: 1 + 1e-9 * i,
    lambda i: 10.0 ** -(i // 3),
    lambda i: (i == 1).double(),
]
# Functions of Gaussian numbers.
KINDS = [
    lambda x: x,
    lambda x: (3 * x).round(),
    lambda x: x * (x.abs() > 1.6),
    lambda x: (5 * x).softmax(1),
]
CHANGES = [
    lambda x, draw, rng: torch.zeros_like(x) if draw.random() < 0.3 else x,
    lambda x, draw, rng: x[torch.randint(len(x), (len(x),), generator=rng)],  # duplicates
    lambda x, draw, rng: x[:1].expand(len(x), -1).clone(),
    lambda x, draw, rng: x.masked_fill(torch.rand(len(x), 1, generator=rng) < 0.5, -0.0),
    lambda x, draw, rng: x + draw.choice([1.0, 1e3, 1e6]),  # nearly constant columns
    lambda x, draw, rng: torch.cat([x[:1] * draw.choice([1e3, 1e8, 1e20]), x[1:]]),
    lambda x, draw, rng: x * 10.0 ** -(12 * torch.rand(len(x), 1, generator=rng).double()),
    lambda x, draw, rng: x * 10.0 ** -(12 * torch.rand(x.shape[1], generator=rng).double()),
    lambda x, draw, rng: x / x.std(0, correction=0).clamp_min(1e-12),
]
# The same numbers in other memory layouts.
LAYOUTS = [
    lambda x: x,
    lambda x: x.t().contiguous().t(),
    lambda x: torch.stack([x, x], 2)[..., 0],
    lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    lambda x: x.clone().requires_grad_()[:],
]


def batch(draw: random.Random, largest: int = 40, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a batch ``(n, k)`` with n and k up to ``largest``."""
    rng = torch.Generator().manual_seed(draw.getrandbits(40))
    n, k = (draw.choice([1, 2, draw.randint(1, largest), largest]) for _ in range(2))
    dtype = dtype or draw.choice(DTYPES)
    kind = draw.choice(KINDS)
    x = kind(torch.randn(n, k, generator=rng, dtype=torch.float64))

    # The spectrum, and what breaks rows or columns.
    if draw.random() < 0.6:
        u, _, vh = torch.linalg.svd(x, full_matrices=False)
        sigma = draw.choice(SPECTRA)(torch.arange(1, min(n, k) + 1).double())
        x = (u * sigma) @ vh
    for change in draw.sample(CHANGES, draw.choice([0, 0, 1, 1, 2, 3])):
        x = change(x, draw, rng)

    # The scale: up to the limits of the dtype, and sometimes subnormal.
    reach = REACH[dtype]
    power = draw.choice([0, 0, 0, -reach, reach, draw.uniform(-reach, reach)])
    x = x / x.abs().max().clamp_min(1e-30) * 10.0**power
    if draw.random() < 0.05:
        tiny = max(torch.finfo(dtype).tiny, 1e-38) * draw.choice([1, 1e-3])
        x = x / x.abs().max().clamp_min(1e-300) * tiny
    x = x.to(dtype)

    # NaN and infinity.
    if draw.random() < 0.1:
        x = x.clone()
        elements = x.view(-1)
        for _ in range(draw.choice([1, 3, x.numel()])):
            elements[draw.randrange(x.numel())] = draw.choice([math.nan, math.inf, -math.inf])
    layout = draw.choice(LAYOUTS)
    return layout(x)


def describe(x: torch.Tensor) -> str:
    size = x.detach().double().abs()
    return f"{tuple(x.shape)} {str(x.dtype)[6:]} {float(size.min()):.1e} to {float(size.max()):.1e}"
