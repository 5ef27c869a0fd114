"""Stop a run whose loss or weights are NaN or infinite, before results are saved."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rdm_solo.filters import SpectralFilter
from rdm_solo.ground.devices import nonfinite_names
from rdm_solo.ground.distributed import gather_objects
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl


class Fault(NamedTuple):
    """A value that is not finite and its step in the epoch (infinity if unknown)."""

    step: float
    description: str


class Diverged(UserError, FloatingPointError):
    """Training diverged; the message has the step, the likeliest cause and what to try."""

    def __init__(self, epoch: int, fault: Fault, advise: Callable[[int, int | None], str]) -> None:
        self.epoch, self.description = epoch, fault.description
        self.step = None if math.isinf(fault.step) else int(fault.step)
        where = f"epoch {epoch}" if self.step is None else f"epoch {epoch}, step {self.step}"
        advice = advise(epoch, self.step)
        super().__init__(f"training diverged in {where}: {self.description}. {advice}")

    def as_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step, "what": self.description}


class DivergenceGuard(pl.Callback):
    """Raise :class:`Diverged` if a loss or a weight is not finite.

    Losses are checked every ``EVERY`` steps, so that steps do not synchronise with the device.
    Weights and buffers are checked when an epoch ends, before other callbacks write them. All
    processes raise the same error. Steps that the gradient scaler skips are not divergence.
    ``advise(epoch, step)`` returns the likeliest cause and what to try.
    """

    EVERY = 50

    def __init__(self, advise: Callable[[int, int | None], str]) -> None:
        self.advise = advise
        self._losses: dict[int, Tensor] = {}  # unchecked losses by step

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if isinstance(outputs.get("loss"), Tensor):
            self._losses[batch_idx + 1] = outputs["loss"]
        if (batch_idx + 1) % self.EVERY == 0:
            self._raise_together(trainer, self._loss_fault())

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        for module in pl_module.modules():
            if isinstance(module, SpectralFilter):  # its error is more specific than the loss
                module.report()
        fault = self._loss_fault() or _weight_fault(pl_module)
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
            fault = self._loss_fault() or Fault(trainer.fit_loop.batch_idx + 1, "")
            fault = fault._replace(description=str(error).partition(";")[0])
            raise Diverged(trainer.current_epoch + 1, fault, self.advise) from error

    def _loss_fault(self) -> Fault | None:
        """Return the first unchecked loss that is not finite."""
        steps, losses = list(self._losses), list(self._losses.values())
        self._losses.clear()
        finite = torch.stack([loss.isfinite().all() for loss in losses]).tolist() if losses else []
        step = next((step for step, is_finite in zip(steps, finite) if not is_finite), None)
        return None if step is None else Fault(step, "the loss is NaN or infinite")

    def _raise_together(self, trainer: Any, fault: Fault | None) -> None:
        """Raise the earliest fault of any process, on all processes."""
        if faults := [fault for fault in gather_objects(fault) if fault is not None]:
            earliest = min(faults, key=lambda fault: fault.step)
            raise Diverged(trainer.current_epoch + 1, earliest, self.advise)


def _weight_fault(pl_module: Any) -> Fault | None:
    names = nonfinite_names(pl_module.state_dict())
    return Fault(math.inf, f"the weight {names[0]} holds NaN or infinity") if names else None
