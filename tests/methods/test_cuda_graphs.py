"""CUDA graphs of a backbone, as far as a CPU shows them; ``tests/gpu`` replays them."""

import pytest
import torch
from support.small_methods import batch, configure, loss_of, make
from support.small_runs import SMALL, run
from torch.func import functional_call

from rdm_solo import methods
from rdm_solo.ground.errors import UserError
from rdm_solo.methods.backbones import SmallResNet
from rdm_solo.methods.cuda_graphs import Original, own_leaves


def leaves(output: torch.Tensor) -> set[torch.Tensor]:
    """Return the leaves that the backward pass of this output reaches."""
    found, waiting = set(), {output.grad_fn}
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.add(node.variable)
        waiting |= {child for child, _ in node.next_functions if child is not None}
    return found


def test_a_captured_pass_reads_the_weights_but_is_apart_from_them_in_autograd():
    """Nodes of the weights belong to another stream, which would end the capture."""
    backbone = SmallResNet(width=4)
    x = torch.randn(5, 3, 8, 8)
    original = Original(backbone)
    weights = original.trained_weights()
    aliases = own_leaves(weights)
    for _ in range(2):
        output = functional_call(original, aliases, x)
        assert torch.equal(output, backbone(x))
        assert leaves(output) == set(aliases.values())
        assert leaves(backbone(x)) == set(weights.values())
        with torch.no_grad():
            for weight in backbone.parameters():
                weight.mul_(1.5)


def test_on_a_cpu_training_stays_the_same():
    results = []
    for cuda_graph in ("false", "true"):
        overrides = ["method=simsiam", f"backbone.cuda_graph={cuda_graph}"]
        model = make(*overrides)
        methods.prepare(model, configure(*overrides).backbone)
        loss = loss_of(model, batch())
        loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters()}
        results.append((loss, gradients, list(model.state_dict())))
    (loss, gradients, names), (other_loss, other_gradients, other_names) = results
    assert torch.equal(loss, other_loss)
    assert names == other_names
    torch.testing.assert_close(gradients, other_gradients, rtol=0, atol=0)


def test_several_processes_and_a_compiler_are_refused(tmp_path):
    options = [*SMALL, "backbone.cuda_graph=true"]
    with pytest.raises(UserError, match=r"backbone\.compile .* backbone\.cuda_graph=true"):
        run(tmp_path, *options, "backbone.compile=true")
    with pytest.raises(UserError, match="one device"):
        run(tmp_path, *options, "trainer.devices=2", "trainer.strategy=ddp")
