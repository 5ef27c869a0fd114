"""Batches that break numerics, drawn at random: sizes, ranks, spectra, scales, dtypes, layouts."""

import math
import random

import torch

# By dtype, a power of ten within its range.
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
    "zero",
    "duplicates",
    "one row",
    "zero rows",
    "nearly constant",
    "a large row",
    "scaled rows",
    "scaled columns",
    "standardised",
]
# The same numbers in other memory layouts.
LAYOUTS = [
    lambda x: x,
    lambda x: x.t().contiguous().t(),
    lambda x: torch.stack([x, x], 2)[..., 0],
    lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    lambda x: x.clone().requires_grad_()[:],
]


def changed(x: torch.Tensor, change: str, size: float) -> torch.Tensor:
    """Return the batch with broken rows or columns; ``size`` is a power of ten."""
    n, k = x.shape
    match change:
        case "zero":
            return x * (torch.rand(1) > 0.3)
        case "duplicates":
            indices = torch.randint(n, (n,))
            return x[indices]
        case "one row":
            return x[:1].repeat(n, 1)
        case "zero rows":
            return x.masked_fill(torch.rand(n, 1) < 0.5, -0.0)
        case "nearly constant":
            return x + size
        case "a large row":
            return torch.cat([x[:1] * size, x[1:]])
        case "scaled rows":
            return x * size ** -torch.rand(n, 1).double()
        case "scaled columns":
            return x * size ** -torch.rand(k).double()
    return x / x.std(0, correction=0).clamp_min(1e-12)


def batch(draw: random.Random, largest: int) -> torch.Tensor:
    """Return a batch ``(n, k)`` with n and k up to ``largest``."""
    torch.manual_seed(draw.getrandbits(40))
    n = draw.choice([1, 2, draw.randint(1, largest), largest])
    k = draw.choice([1, 2, draw.randint(1, largest), largest])
    dtype = draw.choice([torch.float32, *REACH])
    kind = draw.choice(KINDS)
    x = kind(torch.randn(n, k, dtype=torch.float64))

    if draw.random() < 0.6:
        u, _, vh = torch.linalg.svd(x, full_matrices=False)
        i = torch.arange(1, min(n, k) + 1).double()
        spectrum = draw.choice(SPECTRA)
        x = (u * spectrum(i)) @ vh
    number = draw.choice([0, 0, 1, 1, 2, 3])
    for change in draw.sample(CHANGES, number):
        size = draw.choice([1.0, 1e3, 1e6, 1e12, 1e20])
        x = changed(x, change, size)

    # The scale: up to the limits of the dtype, and sometimes subnormal.
    reach = REACH[dtype]
    power = draw.choice([0, 0, 0, -reach, reach, draw.uniform(-reach, reach)])
    scale = 10.0**power
    if draw.random() < 0.05:
        tiny = max(torch.finfo(dtype).tiny, 1e-38)
        scale = tiny * draw.choice([1, 1e-3])
    x = x / x.abs().max().clamp_min(1e-30) * scale
    x = x.to(dtype)

    if draw.random() < 0.1:
        x = x.clone()
        elements = x.view(-1)
        for _ in range(draw.choice([1, 3, len(elements)])):
            position = draw.randrange(len(elements))
            elements[position] = draw.choice([math.nan, math.inf, -math.inf])
    layout = draw.choice(LAYOUTS)
    return layout(x)


def describe(x: torch.Tensor) -> str:
    return f"{tuple(x.shape)} {x.dtype}"
