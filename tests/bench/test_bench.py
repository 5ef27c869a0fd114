"""The cost benchmark runs the runs' own steps and counts the bytes that it says it counts."""

from __future__ import annotations

import pytest
import torch

from rdm_solo.bench import cost as bench_cost
from rdm_solo.bench import spectra as bench_spectra

SMALL = ["backbone.name=small_resnet", "+backbone.kwargs.width=4"]
SMALL += ["method.kwargs.proj_hidden_dim=16", "method.kwargs.proj_output_dim=8"]


@pytest.mark.parametrize("key", [("simsiam", "target_pow"), ("byol", "learnable"), ("swav", None)])
def test_a_step_is_a_whole_step(key):
    step = bench_cost.Step(*key, batch=8, size=8, device="cpu", extra=SMALL)
    before = {name: value.clone() for name, value in step.model.state_dict().items()}
    step.optimizer.param_groups[0]["lr"] = 0.1  # the schedule's warm-up starts at zero
    step()
    after = step.model.state_dict()
    assert not torch.equal(before["backbone.stem.0.weight"], after["backbone.stem.0.weight"])
    if key[0] == "byol":
        name = "momentum_backbone.stem.0.weight"
        assert not torch.equal(before[name], after[name])


def test_the_peak_counts_what_is_held_at_once():
    def run() -> None:
        kept = torch.zeros(250, 1000)  # a megabyte
        for _ in range(5):
            kept.add(1)  # a second one, given back each time

    assert 2.0e6 <= bench_cost.peak_bytes(run, "cpu") < 2.1e6


def test_residents_are_weights_buffers_and_momentum():
    step = bench_cost.Step("vanilla", None, batch=8, size=8, device="cpu", extra=SMALL)
    weights = sum(p.nbytes for p in step.model.parameters())
    buffers = sum(b.nbytes for b in step.model.buffers())
    assert step.resident() == weights + buffers
    step()
    learnt = sum(p.nbytes for group in step.optimizer.param_groups for p in group["params"])
    assert step.resident() == weights + buffers + learnt


def test_the_share_of_the_spectra_is_of_whole_epochs(capsys):
    """Its terms are on the page: steps, recorded steps, seconds of each."""
    share = bench_spectra.bench_spectra(2, "cpu", 8, 8, [*SMALL, "diagnostics.max_rows=1000"])
    out = capsys.readouterr().out
    assert "k = 8, batch 8" in out
    assert "6250 steps, 63 recorded (max_rows=1000)" in out  # each hundredth: 16 rows a step
    assert f"{share:.2%}" in out
    assert 0 < share < 1
