"""Eigenvalues, effective ranks and uniformity on the device, against float64 on the CPU."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdm_solo.selftest.batches import features
from rdm_solo.selftest.precisions import EXACT, PRECISIONS, autocast, half_types, products, word
from rdm_solo.selftest.results import Check, Result, Settings, judged
from rdm_solo.spectra import BranchSpectra, Spectra

N, K = 192, 128
KINDS = ["well conditioned", "1/i after batch norm", "a row of zeros", "a row of NaN"]
# k x k matrices; and the rows themselves, as with more than diagnostics.max_dim dimensions.
ROUTES: dict[str, Any] = {
    "k x k matrices": {},
    "a sample of rows": {"max_dim": K // 2, "sample": N},
}


def checks(settings: Settings) -> Iterator[Check]:
    """A line for each route and for what autocast may do to it."""

    def one(name: str, run: partial[Result]) -> Check:
        return Check(name, lambda: [run()])

    for route in ROUTES:
        name = f"eigenvalues, {route}"
        yield one(name, partial(_exact, settings, name, route))
    for dtype in half_types(settings):
        name = f"eigenvalues, {word(dtype)} outputs"
        yield one(name, partial(_half_outputs, settings, name, dtype))
    yield one("uniformity", partial(_uniformity, settings, "uniformity"))


def _exact(settings: Settings, name: str, route: str) -> Result:
    errors: dict[str, float] = {}
    for precision, words in PRECISIONS.items():
        with products(precision):
            for kind in KINDS:
                found = _errors(settings, kind, route, torch.float32)
                errors |= {f"{what}, {kind}, {words}": error for what, error in found.items()}
    return judged(name, errors, EXACT)


def _half_outputs(settings: Settings, name: str, dtype: torch.dtype) -> Result:
    errors: dict[str, float] = {}
    for route in ROUTES:
        for kind in KINDS:
            with autocast(settings, dtype):
                found = _errors(settings, kind, route, dtype)
            errors |= {f"{what}, {kind}, {route}": error for what, error in found.items()}
    return judged(name, errors, EXACT)


def _uniformity(settings: Settings, name: str) -> Result:
    told: dict[str, Any] = {words: products(each) for each, words in PRECISIONS.items()}
    told |= {f"autocast in {word(x)}": autocast(settings, x) for x in half_types(settings)}
    errors: dict[str, float] = {}
    for words, setting in told.items():
        with setting:
            for kind in KINDS:
                parts = outputs(kind, torch.float32)
                found = measured(settings, parts, "k x k matrices").scalars["uniformity/target"]
                errors[f"{kind}, {words}"] = abs(found - uniformity(parts))
    return judged(name, errors, EXACT)


def outputs(kind: str, dtype: torch.dtype) -> list[Tensor]:
    """Online, target and positive outputs, related as those of two views are."""
    noise = torch.randn(N, K, generator=torch.Generator().manual_seed(2))
    target = features(kind, N, K)
    return [x.to(dtype) for x in (target + 0.1 * noise, target, target - 0.1 * noise)]


def measured(settings: Settings, parts: list[Tensor], route: str) -> Spectra:
    """The spectra of three steps' outputs on the device."""
    metric = BranchSpectra(K, steps=True, **ROUTES[route]).to(settings.device)
    for rows in torch.arange(N).chunk(3):
        metric.update(*(x[rows].to(settings.device) for x in parts))
    return metric.compute()


def _errors(settings: Settings, kind: str, route: str, dtype: torch.dtype) -> dict[str, float]:
    parts = outputs(kind, dtype)
    spectra = measured(settings, parts, route)
    off_cpu = torch.autocast("cpu", enabled=False)  # the oracle is that of the outputs as they are
    with off_cpu if settings.on_cpu else contextlib.nullcontext():
        wanted = oracle(parts)
    errors = {}
    for name, lam in wanted.items():
        found = getattr(spectra, f"lam_{name}").double()
        if len(found) < min(len(lam), spectra.rows):
            raise AssertionError(f"{len(found)} eigenvalues ({name}) of {len(lam)}")
        lam = lam[: len(found)]
        errors[f"eigenvalues ({name})"] = float((found - lam).abs().amax() / lam.amax())
    for name in ("online", "target"):
        want = _effective_rank(wanted[name])
        errors[f"effective rank ({name})"] = abs(spectra.scalars[f"erank/{name}"] / want - 1)
    return errors


def oracle(parts: list[Tensor]) -> dict[str, Tensor]:
    """Eigenvalues by singular values of unit rows, descending; float64 on the CPU."""
    unit = unit_rows(parts)
    found = {
        name: torch.linalg.svdvals(x).square() / len(x)
        for name, x in zip(("online", "target"), unit)
    }
    product = unit[1].mT @ unit[2] / len(unit[1])
    lam = torch.linalg.eigvalsh((product + product.mT) / 2).flip(0)
    return found | {"positive": lam.clamp_min(0)}


def uniformity(parts: list[Tensor]) -> float:
    """Of the target's pairs, by their distances one by one; float64 on the CPU."""
    _, target, _ = unit_rows(parts)
    squares = torch.pdist(target[target.any(1)]).square()
    return float((-2 * squares).exp().mean().log())


def unit_rows(parts: list[Tensor]) -> list[Tensor]:
    """The rows that are finite in all parts, of length 1, in float64."""
    whole = torch.stack([x.isfinite().all(1) for x in parts]).all(0)
    return [torch.nn.functional.normalize(x[whole].double(), dim=1, eps=1e-150) for x in parts]


def _effective_rank(lam: Tensor) -> float:
    """exp of the entropy of the eigenvalues' shares."""
    share = lam / lam.sum()
    return float(torch.special.entr(share).sum().exp())
