"""Filters on a device that is not the CPU: one synchronisation in a call, and its exceptions."""

import logging.handlers
import math

import pytest
import torch
from conftest import features
from support.hostile import FEW, check
from support.second_device import DEVICE, without_float64
from support.waits import Waits

from rdm_solo.filters import SpectralFilter
from rdm_solo.ground.errors import UserError


def batches():
    x = features("1/i", 24, 40)
    with_nan = x.clone()
    with_nan[5] = math.nan
    return {
        "float32": x,
        "float64": x.double(),
        "bfloat16": x.bfloat16(),
        "more rows": x.mT,
        "a row of NaN": with_nan,
        "collapsed": x[:1].repeat(24, 1),
        "out of range": x * 1e30,
        "a stack": torch.stack([x, x]),
    }


def synchronising_operators(branch, name, p):
    """Return the first operator of a step for which the host waits, and the number of others."""
    operators = {}
    for kind, x in batches().items():
        leaf = x.to(DEVICE).requires_grad_()
        with Waits() as waits:
            out = SpectralFilter(branch, name, p)(leaf)
            if out.requires_grad:
                out.sum().backward()
        decomposition, *others = [wait.operator for wait in waits.found]
        operators[kind] = decomposition, len(others)
    return operators


@pytest.mark.parametrize(
    ("branch", "name", "p", "more"),
    [
        ("online", "log1p", None, 0),
        ("online", "directcopy", None, 0),
        ("target", "pow", -0.5, 0),
        ("target", "iternorm", None, 1),  # needs the number of directions
    ],
)
def test_a_call_synchronises_only_in_its_decomposition(on_second_device, branch, name, p, more):
    for kind, operators in on_second_device(synchronising_operators, branch, name, p).items():
        decomposition = "_linalg_svd" if kind == "float64" else "_linalg_eigh"
        assert operators == (decomposition, more), kind


def check_with_failing_solvers():
    """Check filters where the device's solvers fail, and return which ones failed."""
    failed = set()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("eigh", "svd"):
            solver = getattr(torch.linalg, name)

            def fail(x, *args, name=name, solver=solver, **kwargs):
                if x.device.type != "cpu":
                    failed.add(name)
                    raise RuntimeError("cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED")
                return solver(x, *args, **kwargs)

            patch.setattr(torch.linalg, name, fail)
        for x in (features("gaussian", 24, 40), features("gaussian", 40, 24).double()):
            check(x, FEW, DEVICE)
    return failed


def test_a_matrix_is_decomposed_on_the_cpu_if_the_device_fails(on_second_device):
    assert on_second_device(check_with_failing_solvers) == {"eigh", "svd"}


def check_without_float64():
    with without_float64():
        check(features("1/i", 24, 40), FEW, DEVICE)


def test_a_device_without_float64_gets_what_the_cpu_computes(on_second_device):
    on_second_device(check_without_float64)


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
    return calls, len(handler.buffer)


def test_counts_for_warnings_are_read_in_every_fiftieth_call(on_second_device):
    assert on_second_device(calls_and_warnings) == ([50], 3)


def nan_above_11(sigma):
    """Return values that are finite for the singular values with which functions are checked."""
    return (11 - sigma).sqrt()


def outputs_and_errors():
    """Return outputs, and the errors in the epoch's report."""
    inputs = {"log1p": torch.full((6, 9), math.nan), nan_above_11: 12 * torch.eye(3)}
    outputs = []
    errors = []
    for function, x in inputs.items():
        module = SpectralFilter("online", function)
        outputs.append(module(x.to(DEVICE)))
        with pytest.raises((FloatingPointError, UserError)) as caught:
            module.set_epoch(1)
        errors.append(caught.typename)
    return outputs, errors


def test_nan_reaches_the_loss_at_once_and_is_an_error_in_the_report(on_second_device):
    outputs, errors = on_second_device(outputs_and_errors)
    assert errors == ["FloatingPointError", "UserError"]
    assert all(out.isnan().all() for out in outputs)
