"""The linear classifier: against an independent float64 one, its schedule, its refusals."""

import numpy as np
import pytest
import torch

from rdm_solo.data.draws import generator
from rdm_solo.evaluate.probe import Protocol, accuracies, fit_linear
from rdm_solo.ground.errors import UserError


def blobs(n: int, classes: int, seed: int, width: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping classes, so that neither loss nor accuracy is trivial."""
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=rng)
    return centres[labels] + 1.5 * torch.randn(n, width, generator=rng), labels


def numpy_probe(x, y, classes: int, protocol: Protocol, seed: int):
    """Softmax regression written out: momentum SGD, or LARS around it, in float64."""
    weight = torch.empty(classes, x.shape[1])
    weight.normal_(std=0.01, generator=generator(seed, "probe", 0))
    parts = [weight.double().numpy(), np.zeros(classes)]
    momenta, losses = [np.zeros_like(part) for part in parts], []
    x, y = x.double().numpy(), y.numpy()
    for epoch in range(protocol.epochs):
        order = torch.randperm(len(x), generator=generator(seed, "probe", 1 + epoch)).numpy()
        total = 0.0
        for low in range(0, len(x), protocol.batch_size):
            rows = order[low : low + protocol.batch_size]
            logits = x[rows] @ parts[0].T + parts[1]
            share = np.exp(logits - logits.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            total -= np.log(share[np.arange(len(rows)), y[rows]]).sum()
            share[np.arange(len(rows)), y[rows]] -= 1
            gradients = [share.T @ x[rows] / len(rows), share.mean(0)]
            for i, gradient in enumerate(gradients):
                gradient = gradient + protocol.weight_decay * parts[i]
                norms = np.linalg.norm(parts[i]), np.linalg.norm(gradients[i])
                if protocol.optimizer == "lars" and all(norms):
                    gradient = gradient * 0.001 * norms[0] / norms[1]
                momenta[i] = protocol.momentum * momenta[i] + gradient
                parts[i] = parts[i] - protocol.rate(epoch) * momenta[i]
        losses.append(total / len(x))
    return parts, losses


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(epochs=10, batch_size=64, lr=4.0),
        Protocol(epochs=10, batch_size=64, lr=4.0, weight_decay=0.01, milestones=(0.3,), gamma=0.5),
        Protocol(epochs=6, batch_size=200, lr=1.0, schedule="cosine"),
        Protocol("lars", epochs=10, batch_size=64, lr=4.0, schedule="cosine"),
    ],
)
def test_it_is_softmax_regression_written_out_in_float64(protocol):
    x, y = blobs(150, 7, seed=0)
    result = fit_linear(x, y, x, y, 7, protocol, seed=3)
    (weight, bias), losses = numpy_probe(x, y, 7, protocol, seed=3)
    for got, expected in zip(result.classifier.parameters(), (weight, bias)):
        # Measured over eight seeds: at most 4.5e-7 of each parameter; a factor of ten to spare.
        limit = 6e-6 * np.abs(expected).max()
        np.testing.assert_allclose(got.detach().numpy(), expected, rtol=0, atol=limit)
    np.testing.assert_allclose([row.loss for row in result.curve], losses, rtol=6e-6)
    predicted = (x.double().numpy() @ weight.T + bias).argmax(1)
    assert result.curve[-1].top1 == pytest.approx(100 * (predicted == y.numpy()).mean())


def test_rates_of_imagenet():
    lars = Protocol("lars", 90, 4096, 0.1, schedule="cosine")
    expected = [1.6 * (1 + np.cos(np.pi * epoch / 90)) / 2 for epoch in range(90)]
    assert [lars.rate(epoch) for epoch in range(90)] == pytest.approx(expected)


def test_accuracies_by_sorting():
    logits = torch.randn(200, 9, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(9, (200,), generator=torch.Generator().manual_seed(1))
    ranks = np.array([(row > row[label]).sum().item() for row, label in zip(logits, labels)])
    expected = 100 * (ranks == 0).mean(), 100 * (ranks < 5).mean()
    assert accuracies(logits, labels) == pytest.approx(expected)
    assert accuracies(logits[:, :3], labels % 3)[1] == 100, "of three classes, all count"


@pytest.mark.parametrize(
    "option", [{"epochs": 0}, {"lr": float("nan")}, {"gamma": 2}, {"milestones": (60, 80)}]
)
def test_an_option_out_of_range_is_named(option):
    with pytest.raises(UserError, match=next(iter(option))):
        Protocol(**option)


def test_divergence_and_broken_features_are_errors():
    x, y = blobs(20, 4, seed=0)
    with pytest.raises(UserError, match="lower lr=100000"):
        fit_linear(1e30 * x, y, 1e30 * x, y, 4, Protocol(lr=1e5, batch_size=256))
    broken = x.clone()
    broken[3, 0] = float("nan")
    for train, val in ((broken, x), (x, broken)):
        with pytest.raises(UserError, match="features are not finite"):
            fit_linear(train, y, val, y, 4)
