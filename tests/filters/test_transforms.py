"""The table of benchmarks/cost.md on torch.compile, export, torch.func and derivatives."""

import copy
import pickle

import pytest
import torch
from conftest import features
from torch.autograd import forward_ad, grad
from torch.func import hessian, jacfwd, jacrev, jvp, vjp, vmap

from rdm_solo.filters import SpectralFilter

ONLINE = SpectralFilter("online", "log1p")
TARGET = SpectralFilter("target", "pow", -0.5)


def assert_close(actual, expected) -> None:
    """Compare float64 results relative to the largest one."""
    atol = 1e-11 * float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@pytest.fixture(params=[(6, 9), (9, 6)], ids=str)
def x(request):
    return features("1/i", *request.param).double()


@pytest.fixture
def w(x):
    """The constant W of the online filter."""
    _, sigma, vh = torch.linalg.svd(x, full_matrices=False)
    return (vh.mT * sigma.log1p()) @ vh


def test_forward_mode_keeps_w_constant(x, w):
    tangent = x.roll(1, 0)
    value, derivative = jvp(ONLINE, (x,), (tangent,))
    assert_close(value, x @ w)
    assert_close(derivative, tangent @ w)


def test_a_target_has_no_derivative_of_any_kind(x):
    _, derivative = jvp(TARGET, (x,), (x,))
    assert not derivative.any()
    _, pull_back = vjp(TARGET, x)
    assert not pull_back(x)[0].any()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        out = forward_ad.unpack_dual(TARGET(dual))
        assert out.tangent is None


def test_jacobians_and_hessians_keep_w_constant(x, w):
    eye = torch.eye(len(x), dtype=torch.float64)
    jacobian = torch.einsum("ab,cd->adbc", eye, w)  # d out[a,d] / d x[b,c]
    for transform in (jacrev, jacfwd):
        assert_close(transform(ONLINE)(x), jacobian)
    actual = hessian(lambda y: ONLINE(y).pow(3).sum())
    expected = hessian(lambda y: (y @ w).pow(3).sum())
    assert_close(actual(x), expected(x))


def test_checkpointing_and_changes_in_place_keep_the_gradient(x, w):
    leaf = x.clone().requires_grad_()
    out = torch.utils.checkpoint.checkpoint(ONLINE, leaf, use_reentrant=False)
    out.mul_(2.0).sum().backward()
    assert_close(leaf.grad, torch.full_like(x, 2.0) @ w)


def test_inference_mode_and_copies_give_the_same_values(x, w):
    copied = copy.deepcopy(ONLINE)
    pickled = pickle.dumps(ONLINE)
    loaded = pickle.loads(pickled)
    with torch.inference_mode():
        for module in (ONLINE, copied, loaded):
            assert_close(module(x), x @ w)


def test_a_filter_in_training_is_not_exported_or_vmapped():
    module = SpectralFilter("online", "log1p")
    x = features("1/i", 9, 6)
    with pytest.raises(RuntimeError, match="vmap"):
        vmap(module)(x[None])
    with pytest.raises(RuntimeError):
        torch.export.export(module, (x,))
    exported = torch.export.export(module.eval(), (x,))
    assert torch.equal(exported.module()(x), x)


def test_compiled_networks_run_the_filter_as_it_is():
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 12),
        SpectralFilter("online", "log1p"),
        torch.nn.Linear(12, 3),
    )
    weights = list(net.parameters())
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="aot_eager", dynamic=True)
    for n in (9, 20, 31):
        x = features("1/i", n, 8)
        actual = grad(compiled(x).norm(), weights)
        expected = grad(net(x).norm(), weights)
        torch.testing.assert_close(actual, expected)
