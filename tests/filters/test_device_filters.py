"""Filters on a device that is not the CPU: the same numbers, and one synchronisation in a call."""

import logging
import math

import pytest
import torch
from conftest import features
from support.second_device import DEVICE, without_float64
from support.waits import Waits

from rdm_solo.filters import SpectralFilter, decompose

SHAPES = [(24, 40), (40, 24)]
FILTERS = [
    ("online", "log1p", None),
    ("online", "pow", 3),
    ("target", "pow", -0.5),
]
OTHER_FUNCTIONS = ["log", "log1p_sq", "directcopy", "shrink"]
BATCHES = ["whole", "float64", "bfloat16", "a row of NaN", "collapsed", "out of range"]


def batch(kind: str, shape: tuple[int, int]) -> torch.Tensor:
    x = features("1/i", *shape)
    if kind == "float64":
        return x.double()
    if kind == "bfloat16":
        return x.bfloat16()
    if kind == "a row of NaN":
        x[5] = math.nan
    if kind == "collapsed":
        return x[:1].expand(len(x), -1)
    if kind == "out of range":
        return x * 1e30
    return x


def output_and_gradient(
    module: SpectralFilter, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    leaf = x.detach().requires_grad_()
    out = module(leaf)
    if out.requires_grad:
        weights = torch.linspace(-1, 1, out.shape[1], device=x.device).to(out)
        (out * weights).sum().backward()
    return out.detach(), leaf.grad


def results(branch: str, name: str, p: float | None, shape: tuple[int, int]) -> dict[str, object]:
    """Return output, gradient and synchronising operators for each kind of batch."""
    values = {}
    for kind in BATCHES:
        x = batch(kind, shape).to(DEVICE)
        with Waits() as waits:
            out, grad = output_and_gradient(SpectralFilter(branch, name, p), x)
        operators = [wait.operator for wait in waits.found]
        values[kind] = out, grad, operators
    return values


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert equality up to the rounding of the dtype, which depends on a sum's order."""
    eps = torch.finfo(expected.dtype).eps
    largest = float(expected.double().abs().max())
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=2 * eps, atol=8 * eps * largest
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("branch", "name", "p"),
    [*FILTERS, *[("online", name, None) for name in OTHER_FUNCTIONS]],
)
def test_a_call_synchronises_only_in_its_decomposition(on_second_device, branch, name, p, shape):
    on_device = on_second_device(results, branch, name, p, shape)
    for kind in BATCHES:
        out, grad = output_and_gradient(SpectralFilter(branch, name, p), batch(kind, shape))
        device_out, device_grad, operators = on_device[kind]
        assert_close(device_out, out)
        assert (grad is None) == (branch == "target")
        if grad is not None:
            assert_close(device_grad, grad)
        decomposition = "_linalg_svd" if kind == "float64" else "_linalg_eigh"
        assert operators == [decomposition], kind


def warnings_of(device: str) -> tuple[list[int], list[str]]:
    """Return which calls of a filter synchronised more than once, and the log's lines."""
    module = SpectralFilter("target", "pow", -0.5)
    x = features("gaussian", 24, 40).to(device)
    row = torch.arange(24, device=device)[:, None] == 3
    collapsed = x[:1].expand(24, -1)
    batches = [x, x.masked_fill(row, math.nan), x.masked_fill(row, 0), collapsed]
    lines, calls = [], []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("rdm_solo")
    logger.addHandler(handler)
    try:
        for call in range(1, module.EVERY + 4):
            with Waits() as waits:
                module(batches[call % 4])
            if len(waits.found) > 1:
                calls.append(call)
        module.report()
    finally:
        logger.removeHandler(handler)
    return calls, lines


def test_counts_for_warnings_are_read_in_every_fiftieth_call(on_second_device):
    calls, lines = on_second_device(warnings_of, DEVICE)
    assert calls == [50]
    assert len(lines) == 3
    _, cpu_lines = warnings_of("cpu")
    assert lines == cpu_lines


def nan_above_11(sigma: torch.Tensor) -> torch.Tensor:
    """Return values that are finite for the singular values with which functions are checked."""
    return (11 - sigma).sqrt()


def output_and_error(function: object, x: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Return the output, and the name of the error in the epoch's report."""
    module = SpectralFilter("online", function)
    out = module(x.to(DEVICE))
    try:
        module.set_epoch(1)
    except (FloatingPointError, ValueError) as error:
        return out, type(error).__name__
    return out, ""


@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        ("log1p", torch.full((6, 9), math.nan), "FloatingPointError"),
        ("log1p", torch.full((9, 6), math.inf), "FloatingPointError"),
        (nan_above_11, torch.diag(torch.tensor([30.0, 20.0, 12.0])), "UserError"),
        (nan_above_11, torch.eye(3), ""),
    ],
)
def test_nan_reaches_the_loss_at_once_and_is_an_error_in_the_report(
    on_second_device, function, x, expected
):
    out, error = on_second_device(output_and_error, function, x)
    assert error == expected
    if expected:
        assert out.isnan().all()
    else:
        assert out.isfinite().all()


def share(sigma: torch.Tensor) -> torch.Tensor:
    return sigma / sigma.sum()


def filtered_by_share(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    with Waits() as waits:
        out = SpectralFilter("target", share)(x.to(DEVICE))
    return out, len(waits.found)


def test_a_function_of_all_values_gets_those_above_noise(on_second_device):
    x = features("gaussian", 12, 4).double() @ features("gaussian", 4, 24).double()
    x = x.float()
    assert int(decompose(x).directions) == 4
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    expected = (u[:, :4] * (sigma[:4] * share(sigma[:4]))) @ vh[:4]
    out, waits = on_second_device(filtered_by_share, x)
    assert waits > 1  # counting the values synchronises
    for actual in (out, SpectralFilter("target", share)(x)):
        torch.testing.assert_close(
            actual.double(), expected, rtol=1e-5, atol=1e-5 * expected.abs().max()
        )


def output_without_float64(branch: str, name: str, p: float | None, x: torch.Tensor):
    with without_float64():
        with pytest.raises(TypeError, match="has no"):
            decompose(x.to(DEVICE))
        out, grad = output_and_gradient(SpectralFilter(branch, name, p), x.to(DEVICE))
    return out, str(out.device), grad


@pytest.mark.parametrize(("branch", "name", "p"), FILTERS)
def test_a_device_without_float64_gets_what_the_cpu_computes(on_second_device, branch, name, p):
    x = features("1/i", *SHAPES[0])
    out, device, grad = on_second_device(output_without_float64, branch, name, p, x)
    expected, expected_grad = output_and_gradient(SpectralFilter(branch, name, p), x)
    assert torch.equal(out, expected)
    assert device == DEVICE
    if branch == "target":
        assert grad is expected_grad is None
    else:
        assert torch.equal(grad, expected_grad)
