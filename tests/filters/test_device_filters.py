"""Filters on a device that is not the CPU: the same numbers, and one wait in a call."""

from __future__ import annotations

import logging
import math
import types

import pytest
import torch
from conftest import features
from support.second_device import DEVICE, without_float64
from support.waits import Waits

from rdm_solo.filters import SpectralFilter, decompose
from rdm_solo.filters.batch import has_float64

SHAPES = [(24, 40), (40, 24)]
FILTERS = [("online", "log1p", None), ("online", "pow", 10), ("target", "pow", -0.5)]
BATCHES = {
    "whole": lambda x: x,
    "float64": lambda x: x.double(),
    "bfloat16": lambda x: x.bfloat16(),
    "a row of NaN": lambda x: x.masked_fill(torch.arange(len(x))[:, None] == 5, math.nan),
    "a row of zeros": lambda x: x.masked_fill(torch.arange(len(x))[:, None] == 5, 0.0),
    "collapsed": lambda x: x[:1].expand(len(x), -1),
    "zero": torch.zeros_like,
    "out of range": lambda x: x * 1e30,
}


def result(module: SpectralFilter, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Output and gradient."""
    leaf = x.detach().requires_grad_()
    out = module(leaf)
    if out.requires_grad:
        (out * torch.linspace(-1, 1, out.shape[1], device=x.device).to(out)).sum().backward()
    return out.detach(), leaf.grad


def measured(branch: str, name: str, p: float | None, shape: tuple[int, int]) -> dict[str, object]:
    """For each kind of batch, what a filter makes of it there, and what it waited in."""
    found = {}
    for kind, change in BATCHES.items():
        module = SpectralFilter(branch, name, p)
        x = change(features("1/i", *shape)).to(DEVICE)
        with Waits() as waits:
            out, grad = result(module, x)
        found[kind] = out, grad, [wait.operator for wait in waits.found]
    return found


def close(found: torch.Tensor, want: torch.Tensor) -> None:
    """Equal but for the dtype's own rounding, which a sum's order decides."""
    eps = torch.finfo(want.dtype).eps
    largest = float(want.double().abs().max())
    torch.testing.assert_close(
        found.double(), want.double(), rtol=2 * eps, atol=8 * eps * largest, check_dtype=True
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("branch", "name", "p"), FILTERS)
def test_a_call_waits_in_its_decomposition_alone(on_second_device, branch, name, p, shape):
    """Forward and backward; on a CPU, where noise is left out and not masked, it is the same."""
    found = on_second_device(measured, branch, name, p, shape)
    for kind, change in BATCHES.items():
        out, grad = result(SpectralFilter(branch, name, p), change(features("1/i", *shape)))
        assert (grad is None) == (branch == "target")
        close(found[kind][0], out)
        if grad is not None:
            close(found[kind][1], grad)
        assert found[kind][2] == ["_linalg_svd" if kind == "float64" else "_linalg_eigh"], kind


class Lines(logging.Handler):
    """The log's lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def said(device: str) -> tuple[list[int], list[str], int]:
    """The calls of a filter that waited more than once, the log's lines, and rows dropped last."""
    module, lines = SpectralFilter("target", "pow", -0.5), Lines()
    x = features("gaussian", 24, 40).to(device)
    broken = torch.arange(24, device=device)[:, None] == 3
    batches = [x, x.masked_fill(broken, math.nan), x.masked_fill(broken, 0), x[:1].expand(24, -1)]
    logging.getLogger("rdm_solo").addHandler(lines)
    try:
        several = []
        for call in range(2 * module.EVERY + 3):
            with Waits() as waits:
                module(batches[call % 4])
            if len(waits.found) > 1:
                several.append(call + 1)
        dropped = module.dropped_rows
        module.report()
    finally:
        logging.getLogger("rdm_solo").removeHandler(lines)
    return several, lines.lines, dropped


def test_what_the_log_says_is_read_at_every_fiftieth_call(on_second_device):
    several, lines, dropped = on_second_device(said, DEVICE)
    assert several == [50, 100]
    assert len(lines) == 3
    assert dropped == 1
    assert (lines, dropped) == said("cpu")[1:]


def lost(function: object, x: torch.Tensor) -> tuple[torch.Tensor, str]:
    """A filter's output, and how its report ends."""
    module = SpectralFilter("online", function)
    out = module(x.to(DEVICE))
    try:
        module.set_epoch(1)
    except (FloatingPointError, ValueError) as error:
        return out, f"{type(error).__name__}: {error}"
    return out, ""


def steep(sigma: torch.Tensor) -> torch.Tensor:
    """NaN where the batch's values are, and not from 0.1 to 10."""
    return (11 - sigma).sqrt()


def test_a_batch_or_a_function_that_is_nan_is_nan_and_then_an_error(on_second_device):
    """NaN reaches the loss at once, the error comes with the report."""
    for x in (torch.full((6, 9), math.nan), torch.full((9, 6), math.inf)):
        out, error = on_second_device(lost, "log1p", x)
        assert out.isnan().all()
        assert error.startswith(f"FloatingPointError: all {len(x)} rows of the batch")
    out, error = on_second_device(lost, steep, torch.diag(torch.tensor([30.0, 20.0, 12.0])))
    assert out.isnan().all()
    assert error.startswith("UserError: the filter function 'steep' returned NaN or infinity")
    out, error = on_second_device(lost, steep, torch.eye(3))
    assert (out.isfinite().all(), error) == (True, "")


def share(sigma: torch.Tensor) -> torch.Tensor:
    return sigma / sigma.sum()


def waits_of(function: object, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    with Waits() as waits:
        out = SpectralFilter("target", function)(x.to(DEVICE))
    return out, len(waits.found)


@pytest.mark.parametrize("function", [share, torch.cumsum, torch.softmax])
def test_a_function_of_all_values_gets_those_above_noise(function):
    given = function if function is share else lambda sigma: function(sigma, 0)
    signal = features("gaussian", 4, 24).double()
    x = (features("gaussian", 12, 4).double() @ signal).float()
    spectrum = decompose(x)
    assert int(spectrum.directions) == 4
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    gain = given(sigma[:4].flip(0)).flip(0)
    want = (u[:, :4] * (sigma[:4] * gain)) @ vh[:4]
    torch.testing.assert_close(
        SpectralFilter("target", given)(x).double(), want, rtol=1e-5, atol=1e-5 * want.abs().max()
    )


def test_a_function_of_all_values_waits_to_know_how_many_they_are(on_second_device):
    x = features("gaussian", 12, 24)
    out, waits = on_second_device(waits_of, share, x)
    assert torch.equal(out, SpectralFilter("target", share)(x))
    assert waits > 1


def without(branch: str, name: str, p: float | None, x: torch.Tensor):
    """Output, its device, and gradient, where there is no float64."""
    with without_float64():
        out, grad = result(SpectralFilter(branch, name, p), x.to(DEVICE))
    return out, str(out.device), grad


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("branch", "name", "p"), FILTERS)
def test_a_device_without_float64_gets_what_the_cpu_computes(
    on_second_device, branch, name, p, shape
):
    x = features("1/i", *shape)
    out, home, grad = on_second_device(without, branch, name, p, x)
    want, wanted = result(SpectralFilter(branch, name, p), x)
    assert (torch.equal(out, want), home) == (True, DEVICE)
    assert grad is wanted is None or torch.equal(grad, wanted)


def refused() -> str:
    with without_float64():
        try:
            decompose(torch.ones(2, 3, device=DEVICE))
        except TypeError as error:
            return str(error)
    return ""


def test_the_device_without_float64_does_refuse_it(on_second_device):
    assert "has no torch.float64" in on_second_device(refused)


@pytest.mark.parametrize("has", [True, False])
def test_intels_devices_are_asked(monkeypatch, has):
    answer = types.SimpleNamespace(has_fp64=has)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: answer)
    assert has_float64(torch.device("xpu", 0)) == has
