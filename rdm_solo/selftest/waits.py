"""How often the host waits for the device, as torch's own debug mode of CUDA counts it.

It does not see all waits (its documentation says so), but it sees those that this package could
add: numbers that are read off the device, and copies that block.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import torch

from rdm_solo.filters import SpectralFilter
from rdm_solo.selftest.batches import SMALL_SHAPES, features
from rdm_solo.selftest.filters import spectral
from rdm_solo.selftest.results import FAILED, OK, Check, Result, Settings, not_tested
from rdm_solo.spectra import BranchSpectra

WARNING = "called a synchronizing"  # how torch's sentence begins


@contextlib.contextmanager
def cuda_waits() -> Iterator[list[str]]:
    """A list that holds, once the body is over, the line of each wait in it."""
    found: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
            found += [f"{w.filename}:{w.lineno}" for w in said if WARNING in str(w.message)]


# By the device's type.
COUNTERS: dict[str, Callable[[], AbstractContextManager[list[str]]]] = {"cuda": cuda_waits}


def checks(settings: Settings) -> Iterator[Check]:
    """A line for each thing whose waits docs/cost.md promises."""
    if settings.on_cpu:
        name = "waits for the device"
        yield Check(name, lambda: [not_tested(name, "not applicable: a CPU has no queue")])
        return
    for name, most, run in (
        ("a filter's call, forward and backward", 1, _calls),
        ("an update of the spectra", 0, _updates),
        ("a SimSiam step with its predictor", 0, partial(_step, name="learnable")),
        ("a SimSiam step with target_pow", 2, partial(_step, name="target_pow")),
        ("recording a step for the spectra", 0, _recording),
    ):
        yield Check(name, partial(_counted, settings, name, most, run))


def count(settings: Settings, run: Callable[[], object]) -> list[str]:
    """Where the host waits while it runs."""
    kind = torch.device(settings.device).type
    with COUNTERS[kind]() as found:
        run()
    return found


def _counted(
    settings: Settings,
    name: str,
    most: int,
    waits: Callable[[Settings], dict[str, list[str]]],
) -> list[Result]:
    """The most waits of all cases, where the counter can be relied on."""
    number = torch.ones((), device=settings.device)
    if (seen := len(count(settings, number.item))) != 1:
        reason = f"the counter saw {seen} waits where one number was read, so it says nothing"
        return [not_tested(name, reason)]
    found = waits(settings)
    worst = max(found, key=lambda case: len(found[case]))
    waited = len(found[worst])
    figure = f"{waited} wait{'s' * (waited != 1)}" + (f": {worst}" if waited > most else "")
    verdict = OK if waited <= most else FAILED
    return [Result(name, verdict, figure, f"at most {most}", found)]


def _calls(settings: Settings) -> dict[str, list[str]]:
    """Each filter, the second call: the first one makes what later ones use again."""
    found = {}
    for n, k in SMALL_SHAPES:
        x = features("well conditioned", n, k).to(settings.device)
        for chosen in spectral():
            module = SpectralFilter(str(chosen.branch), str(chosen.function), chosen.p)
            call = partial(_call, module, x)
            call()
            found[f"{chosen.name} ({n}, {k})"] = count(settings, call)
    return found


def _call(module: SpectralFilter, x: torch.Tensor) -> None:
    out = module(x.detach().requires_grad_())
    if out.requires_grad:
        out.backward(torch.ones_like(out))


def _updates(settings: Settings) -> dict[str, list[str]]:
    found = {}
    for route, max_dim in (("k x k matrices", 48), ("a sample of rows", 24)):
        metric = BranchSpectra(48, max_dim=max_dim, steps=True).to(settings.device)
        x = features("well conditioned", 96, 48).to(settings.device)
        update = partial(metric.update, x, x.clone(), x.clone())
        update()
        found[route] = count(settings, update)
    return found


def _step(settings: Settings, name: str) -> dict[str, list[str]]:
    from rdm_solo.bench.cost import Step  # imports solo-learn, which other checks do without

    step = Step(settings.device, "method=simsiam", f"filter={name}", *settings.overrides)
    for _ in range(2):
        step()
    return {f"filter={name}": count(settings, step)}


def _recording(settings: Settings) -> dict[str, list[str]]:
    """What the diagnostics add to a step whose outputs they record."""
    from rdm_solo.bench.cost import Step
    from rdm_solo.bench.spectra import Recorded

    step = Step(settings.device, "method=simsiam", "filter=learnable", *settings.overrides)
    recorded = Recorded(step, settings.device)

    def run() -> None:
        recorded.observer.record_next_step()
        step()
        recorded.add()

    for _ in range(2):
        run()
    return {"filter=learnable": count(settings, run)}
