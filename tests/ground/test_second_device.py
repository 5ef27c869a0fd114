"""The tests' own device and counter: it refuses what accelerators refuse, and each wait counts."""

from __future__ import annotations

import pytest
import torch
from support.second_device import DEVICE
from support.waits import Waits
from torch import nn


def refused(what: str) -> str:
    x, y = torch.ones(3, device=DEVICE), torch.ones(3)
    attempts = {
        "a sum": lambda: x + y,
        "in place": lambda: y.add_(x),
        "a product": lambda: torch.ones(3, 3, device=DEVICE) @ y,
        "a module": lambda: nn.Linear(3, 3)(x),
        "numpy": x.numpy,
        "draws": lambda: x.normal_(generator=torch.Generator()),
    }
    try:
        attempts[what]()
    except (RuntimeError, TypeError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("what", ["a sum", "in place", "a product", "a module", "numpy", "draws"])
def test_the_host_and_the_device_do_not_mix(on_second_device, what):
    assert on_second_device(refused, what)


def numbers() -> dict[str, int]:
    x, mask = torch.arange(6.0, device=DEVICE), torch.arange(6, device=DEVICE) > 2
    one = torch.tensor(2, device=DEVICE)
    attempts = {
        "item": x[0].item,
        "float": lambda: float(x[0]),
        "if": lambda: bool(x[0]),
        "cpu": x.cpu,
        "list": x.tolist,
        "tensor": lambda: torch.tensor([1.0], device=DEVICE),
        "to the device": lambda: torch.ones(3).to(DEVICE),
        "a mask": lambda: x[mask],
        "a mask set": lambda: x.__setitem__(mask, x[:3].clone()),
        "nonzero": mask.nonzero,
        "equal": lambda: torch.equal(x, x),
        "index": lambda: x[one],
        "indices of the host": lambda: x[torch.tensor([0, 1])],
        "a filled value": lambda: x.masked_fill(mask, x[0]),
        "unique": x.unique,
        "repeat": lambda: x.repeat_interleave(mask.long()),
        "eigh": lambda: torch.linalg.eigh(torch.eye(3, device=DEVICE)),
        "none: a sum": lambda: x + 1,
        "none: where": lambda: torch.where(mask, x, 0.0),
        "none: indices": lambda: x[mask.long()],
        "none: dtype": lambda: x.to(torch.float64),
        "none: a copy": lambda: torch.ones(3).to(DEVICE, non_blocking=True),
        "none: a mask filled": lambda: x.masked_fill_(mask, 1.0),
        "none: full": lambda: torch.full((), 2.0, device=DEVICE),
        "none: the host's": lambda: torch.ones(3).sum().item(),
    }
    found = {}
    for name, attempt in attempts.items():
        with Waits() as waits:
            attempt()
        found[name] = len(waits.found)
    return found


def test_each_wait_is_counted(on_second_device):
    for name, count in on_second_device(numbers).items():
        assert (count == 0) == name.startswith("none: "), name
