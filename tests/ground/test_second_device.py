"""The tests' own device and counter: it refuses what accelerators refuse, and each wait counts."""

from __future__ import annotations

import torch
from support.second_device import DEVICE
from support.waits import Waits
from torch import nn


def accepted() -> list[str]:
    """Return which attempts to mix the host and the device did not fail."""
    x, y = torch.ones(3, device=DEVICE), torch.ones(3)
    attempts = {
        "a sum": lambda: x + y,
        "in place": lambda: y.add_(x),
        "a module": lambda: nn.Linear(3, 3)(x),
        "numpy": x.numpy,
        "draws": lambda: x.normal_(generator=torch.Generator()),
    }
    names = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except (RuntimeError, TypeError):
            continue
        names.append(name)
    return names


def test_the_host_and_the_device_do_not_mix(on_second_device):
    assert on_second_device(accepted) == []


def numbers() -> dict[str, int]:
    x, mask = torch.arange(6.0, device=DEVICE), torch.arange(6, device=DEVICE) > 2
    attempts = {
        "item": x[0].item,
        "cpu": x.cpu,
        "tensor": lambda: torch.tensor([1.0], device=DEVICE),
        "to the device": lambda: torch.ones(3).to(DEVICE),
        "a mask": lambda: x[mask],
        "a mask set": lambda: x.__setitem__(mask, x[:3].clone()),
        "nonzero": mask.nonzero,
        "indices of the host": lambda: x[torch.tensor([0, 1])],
        "a filled value": lambda: x.masked_fill(mask, x[0]),
        "repeat": lambda: x.repeat_interleave(mask.long()),
        "eigh": lambda: torch.linalg.eigh(torch.eye(3, device=DEVICE)),
        "none: where": lambda: torch.where(mask, x, 0.0),
        "none: indices": lambda: x[mask.long()],
        "none: a copy": lambda: torch.ones(3).to(DEVICE, non_blocking=True),
        "none: the host's": lambda: torch.ones(3).sum().item(),
    }
    counts = {}
    for name, attempt in attempts.items():
        with Waits() as waits:
            attempt()
        counts[name] = len(waits.found)
    return counts


def test_each_wait_is_counted(on_second_device):
    for name, count in on_second_device(numbers).items():
        assert (count == 0) == name.startswith("none: "), name
