"""Stop a run whose loss, outputs or weights are NaN or infinite, before any of it is saved."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rdm_solo.devices import nonfinite_names
from rdm_solo.distributed import gather_objects
from rdm_solo.filters import SpectralFilter
from rdm_solo.lightning import pl
from rdm_solo.messages import UserError


class Fault(NamedTuple):
    """What is not finite, and in which step of the epoch; infinity if no step is known."""

    step: float
    what: str


class Diverged(UserError, FloatingPointError):
    """Training has diverged: where, the likeliest cause, and what to try."""

    def __init__(self, epoch: int, fault: Fault, advise: Callable[[int, int | None], str]) -> None:
        self.epoch, self.what = epoch, fault.what
        self.step = None if math.isinf(fault.step) else int(fault.step)
        where = f"epoch {epoch}" if self.step is None else f"epoch {epoch}, step {self.step}"
        advice = advise(epoch, self.step)
        super().__init__(f"training diverged in {where}: {self.what}. {advice}")

    def as_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step, "what": self.what}


class DivergenceGuard(pl.Callback):  # type: ignore[misc,name-defined]
    """Raise :class:`Diverged` if a loss or a weight is not finite.

    Losses are checked every ``EVERY`` steps, so that no step waits for the device, and weights and
    buffers at the end of the epoch, before other callbacks write any of it. All processes raise
    together. A step that float16's scaler skips has a finite loss and finite weights.
    ``advise(epoch, step)`` returns the likeliest cause and what to try.
    """

    EVERY = 50

    def __init__(self, advise: Callable[[int, int | None], str]) -> None:
        self.advise = advise
        self._losses: dict[int, Tensor] = {}  # by step, those not checked yet

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if isinstance(outputs.get("loss"), Tensor):
            self._losses[batch_idx + 1] = outputs["loss"]
        if (batch_idx + 1) % self.EVERY == 0:
            self._raise_together(trainer, self._in_losses())

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        for module in pl_module.modules():
            if isinstance(module, SpectralFilter):  # its error says more than the loss does
                module.report()
        fault = self._in_losses() or _in_weights(pl_module)
        self._raise_together(trainer, fault)

    @contextlib.contextmanager
    def explained(self, trainer: Any) -> Iterator[None]:
        """Turn an error that a filter raises on NaN into :class:`Diverged`."""
        try:
            yield
        except Diverged:
            raise
        except FloatingPointError as error:
            # A filter checks its counts some steps after its NaN has reached the loss.
            fault = self._in_losses() or Fault(trainer.fit_loop.batch_idx + 1, "")
            fault = fault._replace(what=str(error).partition(";")[0])
            raise Diverged(trainer.current_epoch + 1, fault, self.advise) from error

    def _in_losses(self) -> Fault | None:
        """Return the first loss that is not finite, of those not checked yet."""
        steps, losses = list(self._losses), list(self._losses.values())
        self._losses.clear()
        finite = torch.stack([loss.isfinite().all() for loss in losses]).tolist() if losses else []
        broken = [step for step, fine in zip(steps, finite) if not fine]
        return Fault(broken[0], "the loss is NaN or infinite") if broken else None

    def _raise_together(self, trainer: Any, fault: Fault | None) -> None:
        """Raise the earliest fault of any process on all of them."""
        if faults := [fault for fault in gather_objects(fault) if fault is not None]:
            earliest = min(faults, key=lambda fault: fault.step)
            raise Diverged(trainer.current_epoch + 1, earliest, self.advise)


def _in_weights(pl_module: Any) -> Fault | None:
    broken = nonfinite_names(pl_module.state_dict())
    return Fault(math.inf, f"the weight {broken[0]} holds NaN or infinity") if broken else None
