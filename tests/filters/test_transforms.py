"""The table of benchmarks/cost.md on torch.compile, export, torch.func and derivatives."""

import copy
import pickle

import pytest
import torch
from conftest import features, oracle
from torch import Tensor
from torch.autograd import forward_ad

from rdm_solo.filters import SpectralFilter, get, relative_cut

ONLINE = SpectralFilter("online", "log1p")
TARGET = SpectralFilter("target", "pow", -0.5)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Compare float64 results."""
    atol = 1e-11 * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=atol)


@pytest.fixture(params=[(6, 9), (9, 6)], ids=str)
def x(request) -> Tensor:
    return features("1/i", *request.param).double()


@pytest.fixture
def w(x) -> Tensor:
    """The constant W of the online filter."""
    return oracle(x, get("log1p"), relative_cut(torch.float64, *x.shape))[1]


def tangent_of(x: Tensor) -> Tensor:
    return features("gaussian", *x.shape, seed=5).double()


def test_forward_mode_keeps_w_constant(x, w):
    tangent = tangent_of(x)
    value, derivative = torch.func.jvp(ONLINE, (x,), (tangent,))
    assert_close(value, x @ w)
    assert_close(derivative, tangent @ w)
    with forward_ad.dual_level(), torch.no_grad():
        out = ONLINE(forward_ad.make_dual(x, tangent))
        assert_close(forward_ad.unpack_dual(out).tangent, tangent @ w)


def test_a_target_has_no_derivative_of_any_kind(x):
    assert not torch.func.jvp(TARGET, (x,), (x,))[1].any()
    assert not torch.func.grad(lambda y: (TARGET(y) * x).sum())(x).any()
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(TARGET(forward_ad.make_dual(x, x))).tangent is None


def test_vjp_and_jacobians(x, w):
    _, vjp = torch.func.vjp(ONLINE, x)
    assert_close(vjp(tangent_of(x))[0], tangent_of(x) @ w)
    eye = torch.eye(len(x)).double()
    jacobian = torch.einsum("ab,cd->adbc", eye, w)  # d out[a,d] / d x[b,c]
    assert_close(torch.func.jacrev(ONLINE)(x), jacobian)
    assert_close(torch.func.jacfwd(ONLINE)(x), jacobian)


def test_second_derivatives_and_checkpointing(x, w):
    hessian = torch.func.hessian(lambda y: ONLINE(y).pow(3).sum())(x)
    assert_close(hessian, torch.func.hessian(lambda y: (y @ w).pow(3).sum())(x))
    leaf = x.clone().requires_grad_()
    out = torch.utils.checkpoint.checkpoint(ONLINE, leaf, use_reentrant=False)
    out.mul_(2.0).sum().backward()
    assert_close(leaf.grad, torch.full_like(x, 2.0) @ w)


@pytest.mark.parametrize("module", [ONLINE, TARGET], ids=["online", "target"])
def test_inference_mode_and_copies_give_the_same_bits(module):
    x = features("1/i", 9, 6)
    expected = module(x)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(x), expected)
    with torch.inference_mode():
        assert torch.equal(module(x), expected)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(module(x), expected)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_filter_in_training_is_not_traced_exported_or_vmapped():
    module = SpectralFilter("online", "log1p")
    x = features("1/i", 9, 6)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(module)(torch.stack([x, x]))
    for transform in (torch.jit.trace, torch.export.export):
        with pytest.raises(ValueError, match="eval"):
            transform(module, (x,))
    exported = torch.export.export(module.eval(), (x,)).module()
    assert torch.equal(exported(x), x)


def gradients_of(function, net: torch.nn.Module, x: Tensor) -> list[Tensor]:
    net.zero_grad()
    function(x).square().mean().backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


def test_compiled_networks_run_the_filter_as_it_is():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 12), SpectralFilter("online", "log1p"), torch.nn.Linear(12, 3)
    )
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="aot_eager", dynamic=True)
    for n in (9, 20, 31):
        x = features("1/i", n, 8)
        actual = gradients_of(compiled, net, x)
        expected = gradients_of(net, net, x)
        assert all(map(torch.equal, actual, expected))
