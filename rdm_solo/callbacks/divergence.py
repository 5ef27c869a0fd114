"""Stop a run whose loss or weights are NaN or infinite, before results are saved."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from rdm_solo.filters import SpectralFilter
from rdm_solo.ground.devices import nonfinite_names
from rdm_solo.ground.distributed import gather_objects
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl

# Returns the likeliest cause and what to try, for an epoch and a step.
Advise = Callable[[int, int | None], str]


class Fault(NamedTuple):
    """A value that is not finite and its step in the epoch (infinity if unknown), which sorts."""

    step: float
    description: str


class Diverged(UserError, FloatingPointError):
    """Training diverged; the message has the step, the likeliest cause and what to try."""

    def __init__(self, epoch: int, fault: Fault, advise: Advise) -> None:
        self.epoch = epoch
        self.description = fault.description
        self.step: int | None = None
        where = f"epoch {epoch}"
        if math.isfinite(fault.step):
            self.step = int(fault.step)
            where = f"epoch {epoch}, step {self.step}"
        advice = advise(epoch, self.step)
        super().__init__(f"training diverged in {where}: {self.description}. {advice}")

    def as_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step, "what": self.description}


class DivergenceGuard(pl.Callback):
    """Raise :class:`Diverged` if a loss or a weight is not finite.

    Losses are checked every ``EVERY`` steps, so that steps do not synchronise with the device.
    Weights and buffers are checked when an epoch ends, before other callbacks write them. All
    processes raise the same error. Steps that the gradient scaler skips are not divergence.
    """

    EVERY = 50

    def __init__(self, advise: Advise) -> None:
        self.advise = advise
        self._losses: dict[int, Tensor] = {}  # unchecked losses by step

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = batch_idx + 1
        if isinstance(outputs.get("loss"), Tensor):
            self._losses[step] = outputs["loss"]
        if step % self.EVERY == 0:
            self._raise_together(trainer, self._loss_fault())

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        for module in pl_module.modules():
            if isinstance(module, SpectralFilter):  # its error is more specific than the loss
                module.report()
        fault = self._loss_fault()
        names = nonfinite_names(pl_module.state_dict())
        if fault is None and names:
            fault = Fault(math.inf, f"the weight {names[0]} holds NaN or infinity")
        self._raise_together(trainer, fault)

    @contextlib.contextmanager
    def as_diverged(self, trainer: Any) -> Iterator[None]:
        """Turn an error that a filter raises on NaN into :class:`Diverged`."""
        try:
            yield
        except Diverged:
            raise
        except FloatingPointError as error:
            # A filter checks its counters a few steps later, so the loss may already be NaN.
            step = trainer.fit_loop.batch_idx + 1
            fault = self._loss_fault() or Fault(step, "")
            description, _, _ = str(error).partition(";")
            fault = fault._replace(description=description)
            raise Diverged(trainer.current_epoch + 1, fault, self.advise) from error

    def _loss_fault(self) -> Fault | None:
        """Return the first unchecked loss that is not finite."""
        steps = nonfinite_names(self._losses)
        self._losses = {}
        if steps:
            return Fault(steps[0], "the loss is NaN or infinite")
        return None

    def _raise_together(self, trainer: Any, fault: Fault | None) -> None:
        """Raise the earliest fault of any process, on all processes."""
        faults = [fault for fault in gather_objects(fault) if fault is not None]
        if faults:
            earliest = min(faults)
            raise Diverged(trainer.current_epoch + 1, earliest, self.advise)
