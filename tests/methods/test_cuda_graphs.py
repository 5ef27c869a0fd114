"""CUDA graphs of a backbone, as far as a CPU shows them; ``tests/gpu`` captures and replays."""

import contextlib
import logging
from types import SimpleNamespace

import pytest
import torch
from support.replayed import captured, images, outputs_of_three_steps, with_replayed_copy
from support.small_methods import batch, configure, loss_of, make
from support.small_runs import SMALL, run
from torch import Tensor, nn
from torch.func import functional_call

from rdm_solo import methods
from rdm_solo.ground.errors import UserError
from rdm_solo.methods import cuda_graphs
from rdm_solo.methods.backbones import SmallResNet
from rdm_solo.methods.cuda_graphs import (
    WARM_UPS,
    OriginalForward,
    Passes,
    ReplayedForward,
    capture_passes,
    own_leaves,
)


def recomputed_passes(original: OriginalForward, x: Tensor) -> Passes:
    """Return passes that each replay computes again, in the same memory."""
    images = x.clone()
    weights = original.trained_weights()
    aliases = own_leaves(weights)
    output = original(x).detach()
    output_gradient = torch.empty_like(output)
    gradients = [torch.empty_like(weight) for weight in weights.values()]
    latest = []

    def forward() -> None:
        with torch.enable_grad():
            latest[:] = [functional_call(original, aliases, images)]
        output.copy_(latest[0].detach())

    def backward() -> None:
        leaves = list(aliases.values())
        computed = torch.autograd.grad(latest[0], leaves, output_gradient, retain_graph=True)
        for static, gradient in zip(gradients, computed):
            static.copy_(gradient)

    return Passes(
        images=images,
        weights=list(weights.values()),
        forward=SimpleNamespace(replay=forward),
        output=output,
        output_gradient=output_gradient,
        backward=SimpleNamespace(replay=backward),
        gradients=gradients,
    )


@pytest.fixture
def pair(monkeypatch):
    """Return a small network and its copy, which replays passes on the CPU."""
    monkeypatch.setattr(cuda_graphs, "DEVICE", "cpu")
    monkeypatch.setattr(
        ReplayedForward, "_capture", lambda self, x: recomputed_passes(self._original, x)
    )
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 5)
    return with_replayed_copy(nn.Sequential(*layers))


def test_views_have_their_own_graphs_results_are_kept_and_gradients_accumulate(pair):
    plain, replayed = pair
    plain_outputs, replayed_outputs = map(outputs_of_three_steps, pair)
    assert captured(replayed) == 2
    for actual, expected in zip(replayed_outputs, plain_outputs, strict=True):
        assert torch.equal(actual, expected)
    for actual, expected in zip(replayed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-5, atol=1e-7)


def test_shapes_and_autocast_have_their_own_graphs_and_passes_without_training_have_none(pair):
    plain, replayed = pair
    for n in (6, 4, 6):
        replayed(images(n=n)).sum().backward()
    assert captured(replayed) == 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert replayed(images()).dtype == torch.bfloat16
    assert captured(replayed) == 3
    assert torch.equal(replayed.eval()(images(n=3)), plain(images(n=3)))
    with torch.no_grad():
        replayed.train()(images(n=3))
    replayed(images(n=3).requires_grad_()).sum().backward()
    assert captured(replayed) == 3


def test_a_hook_on_a_layer_is_called_with_a_warning(pair, caplog):
    _, replayed = pair
    replayed.register_forward_hook(lambda *arguments: seen.append("backbone"))
    seen = []
    replayed(images()).sum().backward()
    assert captured(replayed) == 1, "the backbone's own hooks are outside its forward"
    replayed[0].register_forward_hook(lambda *arguments: seen.append("layer"))
    with caplog.at_level(logging.WARNING, logger="rdm_solo"):
        for _ in range(2):
            replayed(images(n=5)).sum().backward()
    assert seen == ["backbone", "layer", "backbone", "layer", "backbone"]
    assert captured(replayed) == 1
    assert caplog.text.count("hook") == 1


def test_a_graph_is_used_again_after_its_backward_pass_or_without_its_output(pair):
    plain, replayed = pair
    for module in pair:
        first, second = module(images(0)), module(images(1))
        first.sum().backward()
        third = module(images(2))  # while the second view still needs its activations
        (second.sum() + third.sum()).backward()
    assert captured(replayed) == 2
    for actual, expected in zip(replayed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-5, atol=1e-6)
    for _ in range(3):
        replayed(images())
    assert captured(replayed) == 2


def test_a_second_backward_pass_is_refused(pair):
    _, replayed = pair
    loss = replayed(images()).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once per output"):
        loss.backward()
    loss = replayed(images()).sum()
    loss.backward(retain_graph=True)
    replayed(images(1))
    with pytest.raises(RuntimeError, match="once per output"):
        loss.backward()


def test_a_captured_pass_reads_the_weights_but_sums_no_gradient_in_them():
    """The weights' own nodes belong to another stream; using them would end the capture."""
    backbone = SmallResNet(width=4)
    x = images()
    original = OriginalForward(backbone)
    aliases = own_leaves(original.trained_weights())
    for _ in range(2):
        output = functional_call(original, aliases, x)
        assert torch.equal(output, backbone(x))
        with torch.no_grad():
            for weight in backbone.parameters():
                weight.mul_(1.5)
    functional_call(original, aliases, x).sum().backward()
    assert all(weight.grad is None for weight in backbone.parameters())
    assert all(alias.grad is not None for alias in aliases.values())


class ReadsTheDevice(nn.Conv2d):
    """Fails in a capture as ``.item()`` does there."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > WARM_UPS:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return super().forward(x)


@contextlib.contextmanager
def failing_capture(*_):
    """End as torch's capture does: its own error hides the first one."""
    try:
        yield
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.fixture
def without_a_device(monkeypatch):
    """Run what would be captured, on the CPU."""
    monkeypatch.setattr(cuda_graphs, "DEVICE", "cpu")
    monkeypatch.setattr(cuda_graphs, "side_stream", contextlib.nullcontext)
    monkeypatch.setattr(cuda_graphs, "capturing", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(pool=lambda: None))


def test_a_failed_capture_names_its_cause_and_the_option(without_a_device, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "capturing", failing_capture)
    original = OriginalForward(ReadsTheDevice(3, 4, 3))
    with pytest.raises(UserError, match=r"not permitted.*backbone\.cuda_graph=false"):
        capture_passes(original, images())


class NotesAutocast(nn.Conv2d):
    """Notes in each backward pass whether autocast is enabled."""

    def forward(self, x):
        y = super().forward(x)
        y.register_hook(lambda _: self.notes.append(torch.is_autocast_enabled("cpu")))
        return y


def test_a_backward_pass_is_captured_without_autocast_as_in_a_training_step(without_a_device):
    layer = NotesAutocast(3, 4, 3)
    layer.notes = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        passes = capture_passes(OriginalForward(layer), images())
    assert passes.output.dtype == torch.bfloat16
    assert layer.notes == [False] * (WARM_UPS + 1)


def test_on_a_cpu_a_model_that_can_replay_computes_the_same():
    results = []
    for cuda_graph in ("false", "true"):
        overrides = ["method=simsiam", f"backbone.cuda_graph={cuda_graph}"]
        model = make(*overrides)
        methods.prepare(model, configure(*overrides).backbone)
        assert isinstance(model.backbone.forward, ReplayedForward) == (cuda_graph == "true")
        loss = loss_of(model, batch())
        loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters()}
        results.append((loss, gradients, list(model.state_dict())))
    (loss, gradients, names), (other_loss, other_gradients, other_names) = results
    assert torch.equal(loss, other_loss)
    assert names == other_names
    torch.testing.assert_close(gradients, other_gradients, rtol=0, atol=0)


def test_a_cpu_and_a_compiler_are_refused(tmp_path):
    options = [*SMALL, "backbone.cuda_graph=true"]
    with pytest.raises(UserError, match=r"backbone\.compile .* backbone\.cuda_graph=true"):
        run(tmp_path, *options, "backbone.compile=true")
    with pytest.raises(UserError, match="one GPU"):
        run(tmp_path, *options)
