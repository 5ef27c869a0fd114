"""The linear classifier: against an independent float64 one, its schedule, its refusals."""

from dataclasses import replace

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
    parameters = [weight.double().numpy(), np.zeros(classes)]
    momenta = [np.zeros_like(parameter) for parameter in parameters]
    losses = []
    x = x.double().numpy()
    one_hot = np.eye(classes)[y.numpy()]
    for epoch in range(protocol.epochs):
        order = torch.randperm(len(x), generator=generator(seed, "probe", 1 + epoch)).numpy()
        total = 0.0
        for start in range(0, len(x), protocol.batch_size):
            rows = order[start : start + protocol.batch_size]
            logits = x[rows] @ parameters[0].T + parameters[1]
            share = np.exp(logits - logits.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            total -= (one_hot[rows] * np.log(share)).sum()
            error = (share - one_hot[rows]) / len(rows)
            gradients = [error.T @ x[rows], error.sum(0)]
            for i, gradient in enumerate(gradients):
                step = gradient + protocol.weight_decay * parameters[i]
                parameter_norm = np.linalg.norm(parameters[i])
                gradient_norm = np.linalg.norm(gradient)
                if protocol.optimizer == "lars" and parameter_norm and gradient_norm:
                    step = step * 0.001 * parameter_norm / gradient_norm
                momenta[i] = protocol.momentum * momenta[i] + step
                parameters[i] = parameters[i] - protocol.rate(epoch) * momenta[i]
        losses.append(total / len(x))
    return parameters, losses


STEPS = Protocol(epochs=10, batch_size=64, lr=4.0)


@pytest.mark.parametrize(
    "protocol",
    [
        STEPS,
        replace(STEPS, weight_decay=0.01, milestones=(0.3,), gamma=0.5),
        Protocol(epochs=6, batch_size=200, lr=1.0, schedule="cosine"),
        replace(STEPS, optimizer="lars", schedule="cosine"),
    ],
)
def test_it_is_softmax_regression_written_out_in_float64(protocol):
    x, y = blobs(150, 7, seed=0)
    result = fit_linear(x, y, x, y, 7, protocol, seed=3)
    (weight, bias), losses = numpy_probe(x, y, 7, protocol, seed=3)
    for actual, expected in zip(result.classifier.parameters(), (weight, bias)):
        # Measured over eight seeds: at most 4.5e-7 of each parameter; a factor of ten to spare.
        atol = 6e-6 * np.abs(expected).max()
        np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=0, atol=atol)
    np.testing.assert_allclose([row.loss for row in result.curve], losses, rtol=6e-6)
    predicted = (x.double().numpy() @ weight.T + bias).argmax(1)
    top1 = 100 * (predicted == y.numpy()).mean()
    assert result.curve[-1].top1 == pytest.approx(top1)


def test_rates_of_imagenet():
    lars = Protocol("lars", 90, 4096, 0.1, schedule="cosine")
    for epoch in range(90):
        expected = 1.6 * (1 + np.cos(np.pi * epoch / 90)) / 2
        assert lars.rate(epoch) == pytest.approx(expected)


def test_accuracies_by_sorting():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 9, generator=rng)
    labels = torch.randint(9, (200,), generator=rng)
    order = logits.argsort(descending=True).numpy()
    ranks = (order == labels.numpy()[:, None]).argmax(1)
    expected = 100 * (ranks == 0).mean(), 100 * (ranks < 5).mean()
    assert accuracies(logits, labels) == pytest.approx(expected)
    _, top5 = accuracies(logits[:, :3], labels % 3)
    assert top5 == 100, "of three classes, all count"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", 0),
        ("lr", float("nan")),
        ("gamma", 2),
        ("milestones", (60, 80)),
    ],
)
def test_an_option_out_of_range_is_named(option, value):
    with pytest.raises(UserError, match=option):
        Protocol(**{option: value})


def test_divergence_and_broken_features_are_errors():
    x, y = blobs(20, 4, seed=0)
    with pytest.raises(UserError, match="lr=100000"):
        fit_linear(1e30 * x, y, 1e30 * x, y, 4, Protocol(lr=1e5, batch_size=256))
    broken = x.clone()
    broken[3, 0] = float("nan")
    for train, val in ((broken, x), (x, broken)):
        with pytest.raises(UserError, match="not finite"):
            fit_linear(train, y, val, y, 4)
