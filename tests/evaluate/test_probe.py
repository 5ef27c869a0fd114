"""The linear classifier: against an independent float64 one, its schedule, its refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax

from rdm_solo.data.draws import generator
from rdm_solo.evaluate.probe import Protocol, fit_linear
from rdm_solo.ground.errors import UserError

CLASSES = 7


@pytest.fixture(scope="module")
def blobs():
    """Return features of overlapping classes, so that neither loss nor accuracy is trivial."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, 12, generator=rng)
    labels = torch.randint(CLASSES, (150,), generator=rng)
    noise = torch.randn(150, 12, generator=rng)
    return centres[labels] + 1.5 * noise, labels


class NumpyProbe:
    """Softmax regression written out in float64: momentum SGD, or LARS around it."""

    def __init__(self, x, labels, protocol, seed):
        self.protocol = protocol
        rng = generator(seed, "probe", 0)
        weight = torch.empty(CLASSES, x.shape[1]).normal_(std=0.01, generator=rng)
        self.parameters = [weight.double().numpy(), np.zeros(CLASSES)]
        self.momenta = [np.zeros_like(parameter) for parameter in self.parameters]
        self.losses = []
        targets = np.eye(CLASSES)[labels]
        for epoch in range(protocol.epochs):
            rng = generator(seed, "probe", 1 + epoch)
            order = torch.randperm(len(x), generator=rng)
            total = 0.0
            for batch in order.split(protocol.batch_size):
                rows = batch.numpy()
                total += self.step(x[rows], targets[rows], protocol.rate(epoch))
            self.losses.append(total / len(x))

    def logits(self, x):
        weight, bias = self.parameters
        return x @ weight.T + bias

    def step(self, x, targets, lr):
        """Update the parameters and return the sum of the losses before that."""
        q = softmax(self.logits(x), axis=1)
        error = (q - targets) / len(x)
        gradients = [error.T @ x, error.sum(0)]
        for i, gradient in enumerate(gradients):
            parameter = self.parameters[i]
            update = gradient + self.protocol.weight_decay * parameter
            parameter_norm = np.linalg.norm(parameter)
            gradient_norm = np.linalg.norm(gradient)
            if self.protocol.optimizer == "lars" and parameter_norm and gradient_norm:
                update = update * 0.001 * parameter_norm / gradient_norm
            self.momenta[i] = self.protocol.momentum * self.momenta[i] + update
            self.parameters[i] = parameter - lr * self.momenta[i]
        return -(targets * np.log(q)).sum()


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
def test_it_is_softmax_regression_written_out_in_float64(protocol, blobs):
    features, labels = blobs
    classifier, curve = fit_linear(*blobs, *blobs, CLASSES, protocol, seed=3)
    x = features.double().numpy()
    oracle = NumpyProbe(x, labels.numpy(), protocol, seed=3)
    for actual, expected in zip(classifier.parameters(), oracle.parameters):
        # Measured over eight seeds: at most 4.5e-7 of each parameter; a factor of ten to spare.
        atol = 6e-6 * np.abs(expected).max()
        np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=0, atol=atol)
    losses = [row.loss for row in curve]
    np.testing.assert_allclose(losses, oracle.losses, rtol=6e-6)
    logits = oracle.logits(x)
    of_label = np.take_along_axis(logits, labels.numpy()[:, None], axis=1)
    ranks = (logits > of_label).sum(1)
    assert curve[-1].top1 == pytest.approx(100 * (ranks < 1).mean())
    assert curve[-1].top5 == pytest.approx(100 * (ranks < 5).mean())


def test_the_rate_falls_along_half_a_cosine():
    lars = Protocol("lars", 90, 4096, 0.1, schedule="cosine")
    rates = [lars.rate(epoch) for epoch in (0, 30, 45, 60)]
    assert rates == pytest.approx([1.6, 1.2, 0.8, 0.4])


def test_an_option_out_of_range_is_named():
    options = {"epochs": 0, "lr": float("nan"), "gamma": 2, "milestones": (60, 80)}
    for option, value in options.items():
        with pytest.raises(UserError, match=option):
            Protocol(**{option: value})


def test_a_loss_or_logits_that_are_not_finite_are_errors(blobs):
    x, y = blobs
    broken = x.clone()
    broken[3, 0] = float("nan")
    for train, val in ((broken, x), (x, broken)):
        with pytest.raises(UserError, match="lr=30"):
            fit_linear(train, y, val, y, CLASSES)
