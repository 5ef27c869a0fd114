"""What docs/cost.md says of torch.compile, export, torch.func and derivatives, row by row."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from conftest import features, oracle
from torch.autograd import forward_ad

from rdm_solo.filters import SpectralFilter, get, relative_cut

SHAPES = [(6, 9), (9, 6)]
EXACT = 1e-11  # of float64, as in test_filters.py


def made(n: int, k: int):
    """A filter, a batch, and the constant W that the derivatives are to be those of."""
    x = features("1/i", n, k).double()
    _, w = oracle(x, get("log1p"), relative_cut(torch.float64, n, k))
    return SpectralFilter("online", "log1p"), x, w


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=EXACT, atol=EXACT * float(want.abs().max()))


@pytest.mark.parametrize(("n", "k"), SHAPES)
class TestDerivatives:
    def test_forward_mode_holds_w_constant(self, n, k):
        module, x, w = made(n, k)
        tangent = features("gaussian", n, k, seed=5).double()
        value, derivative = torch.func.jvp(module, (x,), (tangent,))
        close(value, x @ w)
        close(derivative, tangent @ w)
        with forward_ad.dual_level(), torch.no_grad():
            out = module(forward_ad.make_dual(x, tangent))
            close(forward_ad.unpack_dual(out).tangent, tangent @ w)

    def test_a_target_has_no_derivative_of_any_kind(self, n, k):
        _, x, _ = made(n, k)
        target = SpectralFilter("target", "pow", -0.5)
        assert not torch.func.jvp(target, (x,), (x,))[1].any()
        assert not torch.func.grad(lambda x: (target(x) * x.detach()).sum())(x).any()
        with forward_ad.dual_level():
            assert forward_ad.unpack_dual(target(forward_ad.make_dual(x, x))).tangent is None

    def test_grad_vjp_and_jacobians(self, n, k):
        module, x, w = made(n, k)
        grad = features("gaussian", n, k, seed=5).double()
        close(torch.func.grad(lambda x: (module(x) * grad).sum())(x), grad @ w)
        close(torch.func.vjp(module, x)[1](grad)[0], grad @ w)
        want = torch.einsum("ab,cd->adbc", torch.eye(n).double(), w)  # d out[a,d] / d x[b,c]
        close(torch.func.jacrev(module)(x), want)
        close(torch.func.jacfwd(module)(x), want)

    def test_second_derivatives_are_those_of_x_times_a_constant(self, n, k):
        module, x, w = made(n, k)

        def of(apply, x):
            leaf = x.clone().requires_grad_()
            (first,) = torch.autograd.grad(apply(leaf).pow(3).sum(), leaf, create_graph=True)
            return first, torch.autograd.grad(first.pow(2).sum(), leaf)[0]

        for found, want in zip(of(module, x), of(lambda x: x @ w, x)):
            close(found, want)
        found = torch.func.hessian(lambda x: module(x).pow(3).sum())(x)
        close(found, torch.func.hessian(lambda x: (x @ w).pow(3).sum())(x))

    def test_checkpointing_and_in_place_changes_of_the_output(self, n, k):
        module, x, w = made(n, k)
        leaf = x.clone().requires_grad_()
        out = torch.utils.checkpoint.checkpoint(module, leaf, use_reentrant=False)
        out.mul_(2.0).sum().backward()
        close(leaf.grad, torch.full_like(x, 2.0) @ w)


@pytest.mark.parametrize("branch", ["online", "target"])
def test_deterministic_algorithms_inference_mode_and_copies(branch):
    x = features("1/i", 9, 6)
    module = SpectralFilter(branch, "log1p")
    want = module(x)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), want)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(module(x.clone().requires_grad_()), module(x.clone().requires_grad_()))
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.inference_mode():
        assert torch.equal(module(x), want)


@pytest.mark.parametrize("branch", ["online", "target"])
def test_what_a_filter_refuses_while_it_trains(branch):
    module, x = SpectralFilter(branch, "log1p"), features("1/i", 9, 6)
    with pytest.raises(ValueError, match=r"one batch at a time.*vmap over batches is not possible"):
        torch.func.vmap(module)(torch.stack([x, x]))
    for call in (
        lambda: torch.jit.trace(module, (x,)),
        lambda: torch.export.export(module, (x,)),
    ):
        with pytest.raises(ValueError, match=r"cannot be exported or traced.*Call eval\(\) first"):
            call()
    exported = torch.export.export(module.eval(), (x,)).module()
    assert torch.equal(exported(x), x)


def compiled(backend: str, **options):
    """Outputs and gradients of a network with a filter in it, compiled and as it is."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 12), SpectralFilter("online", "log1p"), torch.nn.Linear(12, 3)
    )
    torch._dynamo.reset()
    fast = torch.compile(net, backend=backend, **options)
    for n in (9, 20, 31):
        x = features("1/i", n, 8)
        found = []
        for function in (fast, net):
            net.zero_grad()
            out = function(x)
            out.square().mean().backward()
            found.append([out.detach(), *(p.grad.clone() for p in net.parameters())])
        yield from zip(*found)


def test_compiled_networks_run_the_filter_as_it_is():
    for found, want in compiled("aot_eager", dynamic=True):
        assert torch.equal(found, want)
    torch._dynamo.reset()
    whole = torch.compile(SpectralFilter("online", "log1p"), backend="eager", fullgraph=True)
    # torch 2.8 names the kind of the error in place of its sentence.
    with pytest.raises(Exception, match=r"a filter is not compiled|<class 'ValueError'>"):
        whole(features("1/i", 9, 6))
    evaluated = torch.compile(SpectralFilter("online").eval(), backend="eager", fullgraph=True)
    x = features("1/i", 9, 6)
    assert torch.equal(evaluated(x), x)


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [None, True])
def test_inductor_gives_the_same_to_rounding(dynamic):
    for found, want in compiled("inductor", dynamic=dynamic):
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)
