"""Filters on a device that is not the CPU: the same numbers, and one synchronisation in a call."""

import logging.handlers
import math

import pytest
import torch
from conftest import features
from support.second_device import DEVICE, without_float64
from support.waits import Waits

from rdm_solo.filters import SpectralFilter
from rdm_solo.ground.errors import UserError


def batches(n, k):
    x = features("1/i", n, k)
    with_nan = x.clone()
    with_nan[5] = math.nan
    return {
        "whole": x,
        "float64": x.double(),
        "bfloat16": x.bfloat16(),
        "a row of NaN": with_nan,
        "collapsed": x[:1].repeat(n, 1),
        "out of range": x * 1e30,
    }


def output_and_gradient(module, x):
    """Return the output and the gradient of a loss, or None for a target."""
    leaf = x.detach().requires_grad_()
    out = module(leaf)
    if out.requires_grad:
        loss = (out * x).sum()
        loss.backward()
    return out.detach(), leaf.grad


def results(branch, name, p, shape):
    """Return output, gradient and synchronising operators for each kind of batch."""
    values = {}
    for kind, x in batches(*shape).items():
        x = x.to(DEVICE)
        module = SpectralFilter(branch, name, p)
        with Waits() as waits:
            out, grad = output_and_gradient(module, x)
        operators = [wait.operator for wait in waits.found]
        values[kind] = out, grad, operators
    return values


def assert_close(actual, expected) -> None:
    """Compare with the largest value: a CPU drops empty directions, so its sums round otherwise."""
    scale = expected.abs().max()
    torch.testing.assert_close(actual / scale, expected / scale)


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
@pytest.mark.parametrize(
    ("branch", "name", "p"),
    [
        ("online", "log1p", None),
        ("target", "pow", -0.5),
        ("online", "log1p_sq", None),
        ("online", "directcopy", None),
        ("online", "shrink", None),
    ],
)
def test_a_call_synchronises_only_in_its_decomposition(on_second_device, branch, name, p, shape):
    on_device = on_second_device(results, branch, name, p, shape)
    for kind, x in batches(*shape).items():
        out, grad = output_and_gradient(SpectralFilter(branch, name, p), x)
        device_out, device_grad, operators = on_device[kind]
        assert_close(device_out, out)
        if branch == "online":
            assert_close(device_grad, grad)
        else:
            assert device_grad is grad is None
        decomposition = "_linalg_svd" if kind == "float64" else "_linalg_eigh"
        assert operators == [decomposition], kind


def waits_in_a_stack(name, options):
    x = torch.stack([features("1/i", 24, 40, seed=seed) for seed in range(2)]).to(DEVICE)
    module = SpectralFilter("online", name, **options)
    with Waits() as waits:
        module(x.requires_grad_())
    return [wait.operator for wait in waits.found]


@pytest.mark.parametrize(
    ("name", "options", "others"),
    [
        ("log1p", {}, []),
        ("iternorm", {}, ["_local_scalar_dense"]),  # needs the number of directions
    ],
)
def test_a_stack_synchronises_as_often_as_one_batch(on_second_device, name, options, others):
    operators = on_second_device(waits_in_a_stack, name, options)
    assert operators[0] == "_linalg_eigh"
    assert len(operators) == 1 + len(others)


def results_if_the_solver_fails(shape):
    """Return what filters return if the device's solvers fail, and the log's lines."""
    handler = logging.handlers.BufferingHandler(100)
    logging.getLogger("rdm_solo").addHandler(handler)
    solvers = {name: getattr(torch.linalg, name) for name in ("eigh", "svd")}
    outputs = []
    with pytest.MonkeyPatch.context() as patch:
        for name, solver in solvers.items():

            def fail(x, *args, solver=solver, **kwargs):
                if x.device.type != "cpu":
                    raise RuntimeError("cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED")
                return solver(x, *args, **kwargs)

            patch.setattr(torch.linalg, name, fail)
        for x in (features("gaussian", *shape), features("gaussian", *shape).double()):
            for branch in ("online", "target"):
                module = SpectralFilter(branch, "pow", p=-0.5)
                outputs.append(output_and_gradient(module, x.to(DEVICE)))
    logging.getLogger("rdm_solo").removeHandler(handler)
    return outputs, [record.getMessage() for record in handler.buffer]


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_a_matrix_is_decomposed_on_the_cpu_if_the_device_fails(on_second_device, shape):
    outputs, lines = on_second_device(results_if_the_solver_fails, shape)
    x = features("gaussian", *shape)
    batches = [x, x, x.double(), x.double()]
    for (out, grad), batch, branch in zip(outputs, batches, ["online", "target"] * 2):
        module = SpectralFilter(branch, "pow", p=-0.5)
        expected, expected_grad = output_and_gradient(module, batch)
        assert_close(out, expected)
        if branch == "online":
            assert_close(grad, expected_grad)
    assert sum("CUSOLVER" in line for line in lines) <= 1  # once in a process


def calls_and_warnings():
    """Return which calls of a filter synchronised more than once, and the log's lines."""
    module = SpectralFilter("target", "pow", -0.5)
    x = features("gaussian", 24, 40).to(DEVICE)
    row = torch.arange(24, device=DEVICE).unsqueeze(1) == 3
    inputs = [
        x,
        x.masked_fill(row, math.nan),
        x.masked_fill(row, 0),
        x[:1].expand(24, -1),
    ]
    handler = logging.handlers.BufferingHandler(100)
    logging.getLogger("rdm_solo").addHandler(handler)
    calls = []
    for call in range(1, module.EVERY + 4):
        with Waits() as waits:
            module(inputs[call % 4])
        if len(waits.found) > 1:
            calls.append(call)
    module.report()
    logging.getLogger("rdm_solo").removeHandler(handler)
    return calls, [record.getMessage() for record in handler.buffer]


def test_counts_for_warnings_are_read_in_every_fiftieth_call(on_second_device):
    calls, lines = on_second_device(calls_and_warnings)
    assert calls == [50]
    assert len(lines) == 3


def nan_above_11(sigma):
    """Return values that are finite for the singular values with which functions are checked."""
    return (11 - sigma).sqrt()


def output_and_error(function, x):
    """Return the output, and the name of the error in the epoch's report."""
    module = SpectralFilter("online", function)
    out = module(x.to(DEVICE))
    with pytest.raises((FloatingPointError, UserError)) as caught:
        module.set_epoch(1)
    return out, caught.typename


@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        ("log1p", torch.full((6, 9), math.nan), "FloatingPointError"),
        ("log1p", torch.full((9, 6), math.inf), "FloatingPointError"),
        (nan_above_11, 12 * torch.eye(3), "UserError"),
    ],
)
def test_nan_reaches_the_loss_at_once_and_is_an_error_in_the_report(
    on_second_device, function, x, expected
):
    out, error = on_second_device(output_and_error, function, x)
    assert error == expected
    assert out.isnan().all()


def share(sigma):
    return sigma / sigma.sum()


def filtered_by_share(x):
    return SpectralFilter("target", share)(x.to(DEVICE))


def test_a_function_of_all_values_gets_those_above_noise(on_second_device):
    left = features("gaussian", 12, 4)
    x = left @ features("gaussian", 4, 24)  # of rank 4
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    gain = torch.zeros_like(sigma)
    gain[:4] = share(sigma[:4])
    expected = (u * (sigma * gain)) @ vh
    on_device = on_second_device(filtered_by_share, x)
    on_cpu = SpectralFilter("target", share)(x)
    for actual in (on_device, on_cpu):
        torch.testing.assert_close(actual, expected.float(), rtol=1e-5, atol=1e-5)


def output_without_float64(x):
    x = x.to(DEVICE)
    module = SpectralFilter("online", "log1p")
    with without_float64():
        out, grad = output_and_gradient(module, x)
    return out, grad, str(out.device)


def test_a_device_without_float64_gets_what_the_cpu_computes(on_second_device):
    x = features("1/i", 24, 40)
    out, grad, device = on_second_device(output_without_float64, x)
    expected, expected_grad = output_and_gradient(SpectralFilter("online", "log1p"), x)
    assert torch.equal(out, expected)
    assert torch.equal(grad, expected_grad)
    assert device == DEVICE
