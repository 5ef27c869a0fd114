"""The host launches few operators in a training step, which limits small networks on a GPU."""

import pytest

from benchmarks import operators

# Operators of everything but the views, on a ResNet-18. They were 1,232 and 2,003 when each weight
# had operators of its own in the optimiser and in BYOL's average.
BOUNDS = {
    "SimSiam, learned predictor": 900,
    "SimSiam, σ^-0.5": 900,
    "BYOL, learned predictor": 1200,
}


@pytest.mark.long
@pytest.mark.parametrize("name", BOUNDS)
def test_a_step_of_cifar_has_few_operators(name):
    counts = operators.count(operators.SETTINGS[name])
    assert 300 < counts["views"] <= 450
    assert 500 < operators.launched(counts) <= BOUNDS[name]
