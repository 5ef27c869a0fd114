"""The table of benchmarks/cost.md on torch.compile, export, torch.func and derivatives."""

import copy
import pickle

import pytest
import torch
from conftest import features, oracle
from torch.autograd import forward_ad

from rdm_solo.filters import SpectralFilter, get, relative_cut

EXACT = 1e-11  # of float64


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=EXACT, atol=EXACT * float(want.abs().max()))


@pytest.fixture(params=[(6, 9), (9, 6)], ids=str)
def case(request):
    """A filter, a batch, and the constant W of which derivatives are to be."""
    x = features("1/i", *request.param).double()
    _, w = oracle(x, get("log1p"), relative_cut(torch.float64, *request.param))
    return SpectralFilter("online", "log1p"), x, w


def test_forward_mode_holds_w_constant(case):
    module, x, w = case
    tangent = features("gaussian", *x.shape, seed=5).double()
    value, derivative = torch.func.jvp(module, (x,), (tangent,))
    close(value, x @ w)
    close(derivative, tangent @ w)
    with forward_ad.dual_level(), torch.no_grad():
        out = module(forward_ad.make_dual(x, tangent))
        close(forward_ad.unpack_dual(out).tangent, tangent @ w)


def test_a_target_has_no_derivative_of_any_kind(case):
    _, x, _ = case
    target = SpectralFilter("target", "pow", -0.5)
    assert not torch.func.jvp(target, (x,), (x,))[1].any()
    assert not torch.func.grad(lambda x: (target(x) * x.detach()).sum())(x).any()
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(target(forward_ad.make_dual(x, x))).tangent is None


def test_vjp_jacobians_second_derivatives_and_checkpointing(case):
    module, x, w = case
    grad = features("gaussian", *x.shape, seed=5).double()
    close(torch.func.vjp(module, x)[1](grad)[0], grad @ w)
    want = torch.einsum("ab,cd->adbc", torch.eye(len(x)).double(), w)  # d out[a,d] / d x[b,c]
    close(torch.func.jacrev(module)(x), want)
    close(torch.func.jacfwd(module)(x), want)
    hessian = torch.func.hessian(lambda x: module(x).pow(3).sum())(x)
    close(hessian, torch.func.hessian(lambda x: (x @ w).pow(3).sum())(x))
    leaf = x.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(module, leaf, use_reentrant=False).mul_(2.0).sum().backward()
    close(leaf.grad, torch.full_like(x, 2.0) @ w)


@pytest.mark.parametrize("branch", ["online", "target"])
def test_inference_mode_and_copies_give_the_same_bits(branch):
    x = features("1/i", 9, 6)
    module = SpectralFilter(branch, "log1p")
    want = module(x)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), want)
    with torch.inference_mode():
        assert torch.equal(module(x), want)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(module(x.clone().requires_grad_()), module(x.clone().requires_grad_()))
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_filter_in_training_is_not_traced_exported_or_vmapped():
    module, x = SpectralFilter("online", "log1p"), features("1/i", 9, 6)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(module)(torch.stack([x, x]))
    for transform in (torch.jit.trace, torch.export.export):
        with pytest.raises(ValueError, match=r"Call eval\(\) first"):
            transform(module, (x,))
    exported = torch.export.export(module.eval(), (x,)).module()
    assert torch.equal(exported(x), x)


def test_compiled_networks_run_the_filter_as_it_is():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 12), SpectralFilter("online", "log1p"), torch.nn.Linear(12, 3)
    )
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="aot_eager", dynamic=True)
    for n in (9, 20, 31):
        x, results = features("1/i", n, 8), []
        for function in (compiled, net):
            net.zero_grad()
            out = function(x)
            out.square().mean().backward()
            results.append([out.detach(), *(p.grad.clone() for p in net.parameters())])
        for got, want in zip(*results):
            assert torch.equal(got, want)
