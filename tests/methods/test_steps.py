"""What a training step leaves out or computes at once changes none of its numbers."""

import pytest
import torch
from support.small_methods import make
from torch import nn

from rdm_solo import methods


def test_the_average_of_weights_is_solo_learns_bit_for_bit():
    """Weights keep their strides, also 1x1 and single-channel convolutions in channels-last.

    Bits are equal on any processor, since each number is rounded after each operation.
    """
    model = make("method=byol", "backbone.name=resnet18", "backbone.kwargs={}")
    methods.prepare(model, channels_last=True, compiler=False)
    pairs = list(model.momentum_pairs)
    for tau in (0.99, 0.99612, 0.5):
        model.momentum_updater.cur_tau = tau
        for online, momentum in pairs:
            generator = torch.Generator().manual_seed(1)
            expected, strides = [], []
            for p, average in zip(online.parameters(), momentum.parameters(), strict=True):
                noise = torch.randn(p.shape, generator=generator)
                p.data.add_(noise)
                expected.append((tau * average + (1 - tau) * p).detach())
                strides.append(average.stride())
            model.momentum_updater.update(online, momentum)
            for average, value, stride in zip(momentum.parameters(), expected, strides):
                assert torch.equal(average, value)
                assert average.stride() == stride


@pytest.mark.parametrize(
    ("compiler", "expected"),
    [
        (True, {"backend": "inductor"}),
        ("eager", {"backend": "eager"}),
        ("default", {"mode": "default"}),
        (False, None),
    ],
)
def test_a_compiler_is_a_mode_or_a_backend(compiler, expected, monkeypatch):
    chosen = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **options: chosen.append(options))
    methods.prepare(make("method=simsiam"), channels_last=False, compiler=compiler)
    assert chosen == ([] if expected is None else [expected])
