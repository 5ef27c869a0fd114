"""Each shipped filter on the device, forward and backward, against an SVD in float64 on the CPU."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from rdm_solo.filters import SpectralFilter, get
from rdm_solo.filters.iterations import ROOTS
from rdm_solo.methods.chosen_filter import ChosenFilter, shipped_filters
from rdm_solo.selftest.batches import HOSTILE, KINDS, SHAPES, SMALL_SHAPES, Batch, batch, off
from rdm_solo.selftest.precisions import EXACT, PRECISIONS, autocast, half_types, products, word
from rdm_solo.selftest.results import Check, Result, Settings, judged

Case = tuple[str, int, int]
WHOLE = [(kind, *shape) for shape in SHAPES for kind in KINDS]
BROKEN = [(kind, *shape) for shape in SMALL_SHAPES for kind in HOSTILE]


def checks(settings: Settings) -> Iterator[Check]:
    """A line for each filter, and one for each setting that may cost digits, of all filters."""

    def one(name: str, run: partial[Result]) -> Check:
        return Check(name, lambda: [run()])

    for chosen in spectral():
        name = f"{chosen.name}, {PRECISIONS['highest']}"
        yield one(name, partial(_exact, settings, name, [chosen], WHOLE, "highest"))
    for chosen in spectral():
        if chosen.on_target and chosen.function == "pow":  # for which alone there is a solver
            name = f"{chosen.name}, solver=iterative"
            yield one(name, partial(_by_products, settings, name, chosen))
    for precision in ("high", "medium"):
        name = f"all filters, {PRECISIONS[precision]}"
        yield one(name, partial(_exact, settings, name, spectral(), WHOLE, precision))
    for dtype in half_types(settings):
        name = f"all filters, autocast in {word(dtype)}"
        yield one(name, partial(_under_autocast, settings, name, dtype))
        name = f"all filters, {word(dtype)} features"
        yield one(name, partial(_half_features, settings, name, dtype))
    for kind in HOSTILE:
        name = f"all filters, {kind}"
        cases = [case for case in BROKEN if case[0] == kind]
        yield one(name, partial(_exact, settings, name, spectral(), cases, *PRECISIONS))


def spectral() -> list[ChosenFilter]:
    """The shipped filters that are functions of singular values."""
    return [chosen for chosen in shipped_filters().values() if chosen.spectral]


def _exact(
    settings: Settings,
    name: str,
    filters: Iterable[ChosenFilter],
    cases: Iterable[Case],
    *precisions: str,
) -> Result:
    errors: dict[str, float] = {}
    for precision in precisions:
        with products(precision):
            for kind, n, k in cases:
                for chosen in filters:
                    label = f"{chosen.name}, {kind} ({n}, {k}), {PRECISIONS[precision]}"
                    found = filtered(settings, chosen, batch(kind, n, k))
                    errors |= _errors(label, chosen, batch(kind, n, k), *found)
    return judged(name, errors, EXACT)


def _by_products(settings: Settings, name: str, shipped: ChosenFilter) -> Result:
    """Its exponents. Square batches are too steep for it; wide ones are to need no ``eigh``."""
    errors: dict[str, float] = {}
    for p in sorted(ROOTS):
        chosen = dataclasses.replace(shipped, p=p)
        for kind, n, k in WHOLE:
            label = f"p={p:g}, {kind} ({n}, {k})"
            module = SpectralFilter("target", "pow", p, solver="iterative")
            found = filtered(settings, chosen, batch(kind, n, k), module=module)
            if module.fell_back and n < k:
                raise AssertionError(f"{label}: the products did not meet their bound")
            errors |= _errors(label, chosen, batch(kind, n, k), *found)
    return judged(name, errors, EXACT)


def _under_autocast(settings: Settings, name: str, dtype: torch.dtype) -> Result:
    """float32 features, as the last batch norm of a projector may hand on."""
    errors: dict[str, float] = {}
    for kind, n, k in WHOLE:
        for chosen in spectral():
            found = filtered(settings, chosen, batch(kind, n, k), autocast(settings, dtype))
            errors |= _errors(
                f"{chosen.name}, {kind} ({n}, {k})", chosen, batch(kind, n, k), *found
            )
    return judged(name, errors, EXACT)


def _half_features(settings: Settings, name: str, dtype: torch.dtype) -> Result:
    """Features of that type: what is handed back is rounded to it, by half its eps."""
    errors: dict[str, float] = {}
    for kind, n, k in WHOLE:
        given = batch(kind, n, k, dtype)
        for chosen in spectral():
            found = filtered(settings, chosen, given, autocast(settings, dtype))
            errors |= _errors(f"{chosen.name}, {kind} ({n}, {k})", chosen, given, *found)
    return judged(name, errors, EXACT + torch.finfo(dtype).eps / 2)


def filtered(
    settings: Settings,
    chosen: ChosenFilter,
    given: Batch,
    context: contextlib.AbstractContextManager[object] | None = None,
    module: SpectralFilter | None = None,
) -> tuple[Tensor, Tensor | None]:
    """A filter's output on the device and, on the online branch, the features' gradient."""
    module = module or SpectralFilter(str(chosen.branch), str(chosen.function), chosen.p)
    leaf = given.x.to(settings.device, copy=True).requires_grad_()
    with context or contextlib.nullcontext():
        out = module(leaf)
    if out.requires_grad:
        out.backward(given.grad.to(settings.device))
    module.report()
    return out.detach(), leaf.grad


def _errors(
    label: str, chosen: ChosenFilter, given: Batch, out: Tensor, grad: Tensor | None
) -> dict[str, float]:
    values, gradient = given.wanted(get(str(chosen.function), chosen.p))
    errors = {f"values of {label}": off(out, values)}
    if chosen.on_target:
        if grad is not None:
            raise AssertionError(f"{chosen.name} let a gradient pass to the target.")
        return errors
    if grad is None:
        raise AssertionError(f"{chosen.name} let no gradient pass to the online branch.")
    return errors | {f"gradient of {label}": off(grad, gradient)}
