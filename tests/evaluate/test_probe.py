"""The linear classifier: against an independent float64 one, its schedule, its refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rdm_solo.data.draws import generator
from rdm_solo.evaluate.probe import Protocol, accuracies, fit, fit_linear


def blobs(n: int, classes: int, seed: int, width: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping classes, so that neither loss nor accuracy is trivial."""
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=rng)
    return centres[labels] + 1.5 * torch.randn(n, width, generator=rng), labels


def numpy_probe(x, y, classes: int, protocol: Protocol, seed: int, lars: bool = False):
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
                if lars and all(norms):
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
    ],
)
def test_sgd_equals_softmax_regression_written_out_in_float64(protocol):
    x, y = blobs(150, 7, seed=0)
    result = fit_linear(x, y, x, y, 7, protocol, seed=3)
    (weight, bias), losses = numpy_probe(x, y, 7, protocol, seed=3)
    # Measured: at most 5.5e-7; a factor of ten to spare.
    limit = 6e-6 * np.abs(weight).max()
    for got, expected in zip(result.classifier.parameters(), (weight, bias)):
        np.testing.assert_allclose(got.detach().numpy(), expected, rtol=0, atol=limit)
    np.testing.assert_allclose([row.loss for row in result.curve], losses, rtol=6e-6)
    predicted = (x.double().numpy() @ weight.T + bias).argmax(1)
    assert result.curve[-1].top1 == pytest.approx(100 * (predicted == y.numpy()).mean())


def test_lars_rescales_every_step_even_without_weight_decay():
    x, y = blobs(150, 7, seed=0)
    protocol = Protocol("lars", epochs=10, batch_size=64, lr=4.0, schedule="cosine")
    result = fit_linear(x, y, x, y, 7, protocol, seed=3)
    (weight, bias), losses = numpy_probe(x, y, 7, protocol, seed=3, lars=True)
    for got, expected in zip(result.classifier.parameters(), (weight, bias)):
        limit = 6e-6 * np.abs(expected).max()
        np.testing.assert_allclose(got.detach().numpy(), expected, rtol=0, atol=limit)
    np.testing.assert_allclose([row.loss for row in result.curve], losses, rtol=6e-6)
    (other, _), _ = numpy_probe(x, y, 7, protocol, seed=3)
    assert np.abs(other - weight).max() > 0.1 * np.abs(weight).max()


class TestSchedule:
    def test_the_papers_rates(self):
        rates = [Protocol().rate(epoch) for epoch in range(100)]
        assert rates[:60] == [30.0] * 60
        assert rates[60:80] == pytest.approx([3.0] * 20)
        assert rates[80:] == pytest.approx([0.3] * 20)

    def test_a_shorter_run_drops_at_the_same_shares(self):
        rates = [Protocol(epochs=10, batch_size=512).rate(epoch) for epoch in range(10)]
        assert rates == pytest.approx([60.0] * 6 + [6.0] * 2 + [0.6] * 2)

    def test_imagenets_cosine_starts_at_the_scaled_rate(self):
        protocol = Protocol("lars", 90, 4096, 0.1, schedule="cosine")
        expected = [1.6 * (1 + np.cos(np.pi * epoch / 90)) / 2 for epoch in range(90)]
        assert [protocol.rate(epoch) for epoch in range(90)] == pytest.approx(expected)


def test_every_row_is_seen_once_an_epoch_the_short_batch_included():
    x = torch.arange(23.0)[:, None]
    y = torch.zeros(23, dtype=torch.int64)
    # Without a gradient's noise: one class, so the loss is 0 whatever the batch holds.
    seen: list[list[int]] = []

    def batches(epoch):
        order = torch.randperm(23, generator=torch.Generator().manual_seed(epoch))
        seen.append([len(rows) for rows in order.split(5)])
        for rows in order.split(5):
            yield x[rows], y[rows]

    assert fit(batches, x, y, 1, Protocol(epochs=2)).curve[-1].loss == 0
    assert seen == [[5, 5, 5, 5, 3]] * 2
    # A batch of one row is a batch, and weighs as one row in the epoch's loss.
    features, labels = blobs(65, 3, seed=1)
    quiet = Protocol(epochs=1, batch_size=64, lr=0.0)
    loss = fit_linear(features, labels, features, labels, 3, quiet).curve[0].loss
    weight = torch.empty(3, 12).normal_(std=0.01, generator=generator(0, "probe", 0))
    whole = torch.nn.functional.cross_entropy(features @ weight.T, labels)
    assert loss == pytest.approx(float(whole), rel=1e-6)


def test_a_seed_repeats_to_the_bit_and_another_differs():
    x, y = blobs(100, 4, seed=0)
    runs = [fit_linear(x, y, x, y, 4, Protocol(epochs=3), seed=s) for s in (5, 5, 6)]
    torch.manual_seed(1)  # the global generator has no say
    runs.append(fit_linear(x, y, x, y, 4, Protocol(epochs=3), seed=5))
    assert torch.equal(runs[0].classifier.weight, runs[1].classifier.weight)
    assert torch.equal(runs[0].classifier.weight, runs[3].classifier.weight)
    assert runs[0].curve == runs[1].curve
    assert not torch.equal(runs[0].classifier.weight, runs[2].classifier.weight)


def test_accuracies_by_sorting():
    logits = torch.randn(200, 9, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(9, (200,), generator=torch.Generator().manual_seed(1))
    ranks = [(row > row[label]).sum().item() for row, label in zip(logits, labels)]
    top1, top5 = accuracies(logits, labels)
    assert top1 == pytest.approx(100 * np.mean([rank == 0 for rank in ranks]))
    assert top5 == pytest.approx(100 * np.mean([rank < 5 for rank in ranks]))
    assert 30 < top5 < 80
    x, y = blobs(60, 3, seed=0)
    few = fit_linear(x, y, x, y, 3, Protocol(epochs=1))
    assert few.curve[-1].top5 == 100


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
            ({"batch_size": 2.5}, "batch_size must be a whole number of at least 1, got 2.5"),
            ({"lr": -1}, "lr must be a number from 0 to 100000, got -1"),
            ({"lr": float("nan")}, "got nan"),
            ({"lr": 1e30}, r"lr must be a number from 0 to 100000, got 1e\+30"),
            ({"gamma": 2}, "gamma must be a number from 0 to 1, got 2"),
            ({"milestones": 3}, r"a list of shares of the epochs, such as \[0.6, 0.8\], got 3"),
            ({"optimizer": "adam"}, "optimizer must be one of sgd, lars, got 'adam'"),
            ({"schedule": "steps"}, "schedule must be one of step, cosine"),
            (
                {"milestones": (60, 80)},
                "a share of the epochs, must be a number above 0 and at most 1",
            ),
        ],
    )
    def test_protocol(self, options, says):
        with pytest.raises(ValueError, match=says):
            Protocol(**options)

    def test_features(self):
        x, y = blobs(20, 4, seed=0)
        broken = x.clone()
        broken[3, 0], broken[7] = float("nan"), float("inf")
        with pytest.raises(ValueError, match="2 of 20 features of the training set"):
            fit_linear(broken, y, x, y, 4)
        with pytest.raises(ValueError, match="2 of 20 features of the validation set"):
            fit_linear(x, y, broken, y, 4)

    def test_a_loss_that_is_not_finite_names_the_rate(self):
        x, y = blobs(20, 4, seed=0)
        with pytest.raises(ValueError, match="lower lr=100000"):
            fit_linear(1e30 * x, y, 1e30 * x, y, 4, Protocol(lr=1e5, batch_size=256))
