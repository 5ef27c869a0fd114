"""Two processes whose steps have unequal rows: the same steps are recorded as by one process."""

import pytest
import torch
from conftest import features
from torch import nn

from rdm_solo.observe.branches import Observer, Outputs
from rdm_solo.observe.epoch_spectra import EpochSpectra

STEPS, ROWS, K = 8, 24, 10


def shares(rank: int, size: int) -> list[int]:
    """The rows of a batch that a process has: two processes have 20 and 4 of 24."""
    rows = list(range(ROWS))
    return rows if size == 1 else (rows[:20], rows[20:])[rank]


def measured(rank: int, size: int, softmax: bool, unknown: tuple[int, ...], steps: float):
    """Scalars of an epoch, and its recorded steps. With a softmax, logits come from the hidden
    rows. In ``unknown`` steps the last process has no outputs."""
    torch.manual_seed(0)
    module = nn.Linear(6, K, bias=False)
    observer = Observer(module)
    observer.normalize, observer.last_layer = not softmax, module if softmax else None
    spectra, recorded = EpochSpectra(max_rows=100, max_dim=64, sample=16), []
    spectra.begin_epoch()
    mine = shares(rank, size)
    for step in range(STEPS):
        if not spectra.should_record(step, steps):
            continue
        hidden = features("1/i", ROWS, 6, seed=step)
        logits = hidden @ module.weight.detach().T
        z = (logits.softmax(1) if softmax else logits)[mine]
        outputs = Outputs(z, z.roll(1, 1), z.flip(1), z, hidden[mine] if softmax else None)
        left_out = step in unknown and rank == size - 1
        before = spectra._steps
        spectra.add(None if left_out else outputs, observer)
        recorded += [step] * (spectra._steps - before)
    found = spectra.end_epoch(1, observer)
    return (None if found is None else found.scalars), recorded


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("steps", [STEPS, float("inf")])
@pytest.mark.parametrize("unknown", [(), (0, 1, 4), tuple(range(STEPS))])
def test_unequal_processes_record_what_one_does(worlds, softmax, steps, unknown):
    want, of_one = measured(0, 1, softmax, unknown, steps)
    if not unknown:
        assert of_one == ([0, 2, 4, 6] if steps == STEPS else [0, 1, 2, 3, 4])
    for found, recorded in worlds(2).run(measured, softmax, unknown, steps):
        assert recorded == of_one
        if want is None:
            assert found is None
            continue
        assert found.keys() == want.keys()
        for name, value in want.items():
            assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
