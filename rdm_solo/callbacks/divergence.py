"""Stop a run whose loss, outputs or weights are NaN or infinite, before any of it is saved."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rdm_solo.callbacks.diagnostics import Diagnostics
from rdm_solo.devices import not_finite
from rdm_solo.filters import SpectralFilter
from rdm_solo.lightning import pl
from rdm_solo.messages import UserError

NEVER = 2**62  # more than any number of a step or of a weight


class Diverged(UserError, FloatingPointError):
    """Training has diverged: where, the likeliest cause, and what to try."""

    def __init__(self, epoch: int, step: int | None, what: str, advice: str) -> None:
        self.epoch, self.step, self.what = epoch, step, what
        where = f"epoch {epoch}" if step is None else f"epoch {epoch}, step {step}"
        super().__init__(f"training diverged in {where}: {what}. {advice}")

    def as_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step, "what": self.what}


class DivergenceGuard(pl.Callback):  # type: ignore[misc,name-defined]
    """Raise :class:`Diverged` if a loss, an output or a weight is not finite.

    Losses stay on the device and are checked every ``EVERY`` steps and at the end of the epoch, so
    no step waits for the device. Weights, buffers and recorded outputs are checked at the end of
    the epoch, before other callbacks write its row, spectra or checkpoint. All processes raise
    together. A step that float16's scaler skips is no divergence: its loss and weights are finite.

    ``advise(epoch, step)`` returns the likeliest cause and what to try.
    """

    EVERY = 50

    def __init__(self, advise: Callable[[int, int | None], str]) -> None:
        self.advise = advise
        self._losses: dict[int, Tensor] = {}  # by step, those not checked yet
        self._checked = -1  # the optimiser step after which everything was finite

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._losses.clear()
        self._checked = -1

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            self._losses[batch_idx + 1] = loss
        if (batch_idx + 1) % self.EVERY == 0:
            self._raise_together(trainer, self._first_bad_step())

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._check(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._check(trainer, pl_module)

    @contextlib.contextmanager
    def explained(self, trainer: Any) -> Iterator[None]:
        """Turn an error that a filter raises on NaN into :class:`Diverged`."""
        try:
            yield
        except Diverged:
            raise
        except FloatingPointError as error:
            epoch = trainer.current_epoch + 1
            # A filter checks its counts some steps after its NaN has reached the loss.
            step = min(trainer.fit_loop.batch_idx + 1, self._first_bad_step())
            what = str(error).partition(";")[0]
            raise Diverged(epoch, step, what, self.advise(epoch, step)) from error

    def _check(self, trainer: Any, pl_module: Any) -> None:
        """Check losses, outputs and weights, once after each optimiser step at most."""
        if self._checked == trainer.global_step:
            return
        for module in pl_module.modules():
            if isinstance(module, SpectralFilter):  # its error says more than the loss does
                module.report()
        state = pl_module.state_dict()
        broken = not_finite(state)
        weight = list(state).index(broken[0]) if broken else NEVER
        diagnostics = Diagnostics.of(trainer)
        metric = diagnostics.metric if diagnostics else None
        outputs = 0 if metric is not None and int(metric.broken) else NEVER
        self._raise_together(trainer, self._first_bad_step(), outputs, weight, list(state))
        self._checked = trainer.global_step

    def _first_bad_step(self) -> int:
        """Return the first step whose loss is not finite, of those not checked yet."""
        steps, losses = list(self._losses), list(self._losses.values())
        self._losses.clear()
        if not losses:
            return NEVER
        finite = torch.stack([loss.isfinite().all() for loss in losses]).tolist()
        return min((step for step, fine in zip(steps, finite) if not fine), default=NEVER)

    def _raise_together(
        self,
        trainer: Any,
        step: int,
        outputs: int = NEVER,
        weight: int = NEVER,
        names: list[str] | None = None,
    ) -> None:
        """Raise on all processes if any of them has something that is not finite."""
        first = torch.tensor([step, outputs, weight], device=trainer.strategy.root_device)
        step, outputs, weight = trainer.strategy.reduce(first, reduce_op="min").tolist()
        epoch = trainer.current_epoch + 1
        if step < NEVER:
            what = "the loss is NaN or infinite"
        elif outputs < NEVER:
            what = "outputs of the branches are NaN or infinite"
        elif weight < NEVER and names:
            what = f"the weight {names[weight]} holds NaN or infinity"
        else:
            return
        at = step if step < NEVER else None
        raise Diverged(epoch, at, what, self.advise(epoch, at))
