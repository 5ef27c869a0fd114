"""The second device's counter notices every operator that waits, and no other."""

import torch
from support.second_device import DEVICE
from support.waits import Waits


def count_waits() -> dict[str, int]:
    x = torch.arange(6.0, device=DEVICE)
    mask = torch.arange(6, device=DEVICE) > 2
    operators = {
        "tensor": lambda: torch.tensor([1.0], device=DEVICE),
        "to the device": lambda: torch.ones(3).to(DEVICE),
        "a mask": lambda: x[mask],
        "nonzero": mask.nonzero,
        "indices of the host": lambda: x[torch.tensor([0, 1])],
        "a filled value": lambda: x.masked_fill(mask, x[0]),
        "none: where": lambda: torch.where(mask, x, 0.0),
        "none: a copy": lambda: torch.ones(3).to(DEVICE, non_blocking=True),
        "none: the host's": lambda: torch.ones(3).sum().item(),
    }
    counts = {}
    for name, operator in operators.items():
        with Waits() as waits:
            operator()
        counts[name] = len(waits.found)
    return counts


def test_every_wait_is_counted(on_second_device):
    counts = on_second_device(count_waits)
    for name, count in counts.items():
        is_free = name.startswith("none: ")
        assert (count == 0) == is_free, name
