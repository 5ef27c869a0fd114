"""Time and peak memory of a whole SimSiam step with each filter, and without."""

import math
import statistics
from collections.abc import Iterator

from rdm_solo.bench.cost import CONTESTANTS, Step
from rdm_solo.bench.memory import peak_bytes
from rdm_solo.bench.timing import interleaved, ratio
from rdm_solo.selftest.results import FAILED, OK, Check, Result, Settings

METHOD = "simsiam"


def checks(settings: Settings) -> Iterator[Check]:
    """A line for each filter; all steps run in turn."""
    yield Check("steps with each filter", lambda: measure(settings))


def measure(settings: Settings) -> list[Result]:
    """Medians beside those of the method's own predictor, which comes first."""
    names = [name for method, name in CONTESTANTS if method == METHOD]
    steps = {
        name: Step(settings.device, f"method={METHOD}", f"filter={name}", *settings.overrides)
        for name in names
    }
    seconds = dict(zip(names, interleaved(list(steps.values()), settings.runs, settings.device)))
    memory, losses = {}, {}
    for name, step in steps.items():
        step.optimizer.zero_grad(set_to_none=True)  # the step's own gradients count, not the last's
        memory[name] = step.resident() + peak_bytes(step, settings.device)
        losses[name] = float(step())
    what = described(steps[names[0]], settings.runs)
    return [_line(name, names[0], seconds, memory, losses[name], what) for name in names]


def described(step: Step, runs: int) -> str:
    """What was measured."""
    cfg = step.cfg
    k = step.model.projector[-1].num_features
    size = cfg.dataset.image_size
    network = f"{cfg.backbone.name}, {size} px, batch {cfg.batch_size}, k = {k}"
    return f"{network}; {runs} round{'s' * (runs > 1)}"


def _line(
    name: str,
    own: str,
    seconds: dict[str, list[float]],
    memory: dict[str, int],
    loss: float,
    what: str,
) -> Result:
    middle, low, high = ratio(seconds[name], seconds[own])
    time = f"{statistics.median(seconds[name]) * 1e3:.1f} ms"
    space = f"{memory[name] / 2**20:.0f} MiB"
    if name == own:
        figure = f"{time}, {space} ({what})"
    else:
        figure = f"{time}, {middle:.2f} of {own}'s ({low:.2f} to {high:.2f}); "
        figure += f"{space}, {memory[name] / memory[own]:.3f} of {own}'s"
    fine = math.isfinite(loss)
    return Result(
        f"filter={name}",
        OK if fine else FAILED,
        figure if fine else f"the loss is {loss}",
        details={"seconds": seconds[name], "peak bytes": memory[name], "loss": loss},
    )
