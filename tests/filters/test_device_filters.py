"""Filters on a device that is not the CPU: the same numbers, and one wait in a call."""

import logging
import math

import pytest
import torch
from conftest import features
from support.second_device import DEVICE, without_float64
from support.waits import Waits

from rdm_solo.filters import SpectralFilter, decompose

SHAPES = [(24, 40), (40, 24)]
FILTERS = [("online", "log1p", None), ("online", "pow", 10), ("target", "pow", -0.5)]
OTHERS = [("online", name, None) for name in ("log", "log1p_sq", "directcopy", "shrink")]
BATCHES = {
    "whole": lambda x: x,
    "float64": lambda x: x.double(),
    "bfloat16": lambda x: x.bfloat16(),
    "a row of NaN": lambda x: x.masked_fill(torch.arange(len(x))[:, None] == 5, math.nan),
    "collapsed": lambda x: x[:1].expand(len(x), -1),
    "out of range": lambda x: x * 1e30,
}


def result(module: SpectralFilter, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return output and gradient."""
    leaf = x.detach().requires_grad_()
    out = module(leaf)
    if out.requires_grad:
        (out * torch.linspace(-1, 1, out.shape[1], device=x.device).to(out)).sum().backward()
    return out.detach(), leaf.grad


def results(branch: str, name: str, p: float | None, shape: tuple[int, int]) -> dict[str, object]:
    """Return output, gradient and waits for each kind of batch on the device."""
    values = {}
    for kind, change in BATCHES.items():
        x = change(features("1/i", *shape)).to(DEVICE)
        with Waits() as waits:
            out, grad = result(SpectralFilter(branch, name, p), x)
        values[kind] = out, grad, [wait.operator for wait in waits.found]
    return values


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal but for the dtype's own rounding, which a sum's order decides."""
    eps = torch.finfo(want.dtype).eps
    atol = 8 * eps * float(want.double().abs().max())
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.double(), want.double(), rtol=2 * eps, atol=atol)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("branch", "name", "p"), [*FILTERS, *OTHERS])
def test_a_call_waits_in_its_decomposition_alone(on_second_device, branch, name, p, shape):
    """Forward and backward; on a CPU, where noise is left out and not masked, it is the same."""
    on_device = on_second_device(results, branch, name, p, shape)
    for kind, change in BATCHES.items():
        out, grad = result(SpectralFilter(branch, name, p), change(features("1/i", *shape)))
        close(on_device[kind][0], out)
        assert (grad is None) == (branch == "target")
        if grad is not None:
            close(on_device[kind][1], grad)
        assert on_device[kind][2] == ["_linalg_svd" if kind == "float64" else "_linalg_eigh"], kind


def warnings_of(device: str) -> tuple[list[int], list[str]]:
    """Return which calls of a filter waited more than once, and the log's lines."""
    module, lines, several = SpectralFilter("target", "pow", -0.5), [], []
    x = features("gaussian", 24, 40).to(device)
    broken = torch.arange(24, device=device)[:, None] == 3
    batches = [x, x.masked_fill(broken, math.nan), x.masked_fill(broken, 0), x[:1].expand(24, -1)]
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("rdm_solo").addHandler(handler)
    try:
        for call in range(module.EVERY + 3):
            with Waits() as waits:
                module(batches[call % 4])
            if len(waits.found) > 1:
                several.append(call + 1)
        module.report()
    finally:
        logging.getLogger("rdm_solo").removeHandler(handler)
    return several, lines


def test_counts_for_warnings_are_read_at_every_fiftieth_call(on_second_device):
    several, lines = on_second_device(warnings_of, DEVICE)
    assert several == [50]
    assert len(lines) == 3
    assert lines == warnings_of("cpu")[1]


def steep(sigma: torch.Tensor) -> torch.Tensor:
    """NaN where the batch's values are, and not from 0.1 to 10."""
    return (11 - sigma).sqrt()


def reported(function: object, x: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Return the output, and the name of the error in the epoch's report."""
    module = SpectralFilter("online", function)
    out = module(x.to(DEVICE))
    try:
        module.set_epoch(1)
    except (FloatingPointError, ValueError) as error:
        return out, type(error).__name__
    return out, ""


@pytest.mark.parametrize(
    ("function", "x", "error"),
    [
        ("log1p", torch.full((6, 9), math.nan), "FloatingPointError"),
        ("log1p", torch.full((9, 6), math.inf), "FloatingPointError"),
        (steep, torch.diag(torch.tensor([30.0, 20.0, 12.0])), "UserError"),
        (steep, torch.eye(3), ""),
    ],
)
def test_nan_reaches_the_loss_at_once_and_is_an_error_in_the_report(
    on_second_device, function, x, error
):
    out, raised = on_second_device(reported, function, x)
    assert raised == error
    assert out.isnan().all() if error else out.isfinite().all()


def share(sigma: torch.Tensor) -> torch.Tensor:
    return sigma / sigma.sum()


def waits_of(function: object, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    with Waits() as waits:
        out = SpectralFilter("target", function)(x.to(DEVICE))
    return out, len(waits.found)


def test_a_function_of_all_values_gets_those_above_noise(on_second_device):
    x = (features("gaussian", 12, 4).double() @ features("gaussian", 4, 24).double()).float()
    assert int(decompose(x).directions) == 4
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    want = (u[:, :4] * (sigma[:4] * share(sigma[:4]))) @ vh[:4]
    out, waits = on_second_device(waits_of, share, x)
    for got in (out, SpectralFilter("target", share)(x)):
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * want.abs().max())
    assert waits > 1  # to know how many they are


def without(branch: str, name: str, p: float | None, x: torch.Tensor):
    """Return output, its device and gradient where there is no float64."""
    with without_float64():
        with pytest.raises(TypeError, match="has no"):
            decompose(x.to(DEVICE))
        out, grad = result(SpectralFilter(branch, name, p), x.to(DEVICE))
    return out, str(out.device), grad


@pytest.mark.parametrize(("branch", "name", "p"), FILTERS)
def test_a_device_without_float64_gets_what_the_cpu_computes(on_second_device, branch, name, p):
    x = features("1/i", *SHAPES[0])
    out, home, grad = on_second_device(without, branch, name, p, x)
    want, wanted = result(SpectralFilter(branch, name, p), x)
    assert (torch.equal(out, want), home) == (True, DEVICE)
    assert grad is wanted is None or torch.equal(grad, wanted)
