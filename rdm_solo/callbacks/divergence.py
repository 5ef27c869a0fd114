"""Ends a run whose loss, outputs or weights are NaN or infinite, before anything of it is saved."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rdm_solo.callbacks.diagnostics import Diagnostics
from rdm_solo.filters import SpectralFilter
from rdm_solo.lightning import pl
from rdm_solo.messages import UserError
from rdm_solo.methods.weight_files import not_finite

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
    """Raises `Diverged` where a loss, an output or a weight is not finite.

    The losses stay on the device and are looked at every ``EVERY`` steps and at the end of the
    epoch, so that a step waits for nothing. At the end of the epoch come the weights and buffers
    (with batch norm's running statistics and the momentum branch), and the outputs that
    :class:`~rdm_solo.callbacks.Diagnostics` recorded. That is before validation, and before other
    callbacks write the epoch's row, spectra or checkpoint. All processes decide alike.

    A step that float16's scaler skips, since its gradients are infinite, is no divergence: the loss
    and the weights are finite. ``advise(epoch, step)`` gives the likeliest cause and what to try.
    """

    EVERY = 50

    def __init__(self, advise: Callable[[int, int | None], str]) -> None:
        self.advise = advise
        self._losses: dict[int, Tensor] = {}  # of the steps that were not looked at yet
        self._checked = -1  # optimiser steps after which everything was found finite

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

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """For a checkpoint within an epoch, which a callback of the user's own may write."""
        if self._checked != trainer.global_step:
            for name in not_finite(checkpoint["state_dict"])[:1]:
                self._raise(trainer, None, _words(name))

    def error(self, trainer: Any, error: FloatingPointError) -> Diverged:
        """What to say of an error that a step raised, such as a filter's that got NaN alone."""
        if isinstance(error, Diverged):
            return error
        epoch = trainer.current_epoch + 1
        # A filter's counts may be read some steps later than its NaN has reached the loss.
        step = min(trainer.fit_loop.batch_idx + 1, self._first_bad_step())
        what = str(error).partition(";")[0]
        return Diverged(epoch, step, what, self.advise(epoch, step))

    def _check(self, trainer: Any, pl_module: Any) -> None:
        """Losses, outputs and weights; once, whether a validation follows or not."""
        if self._checked == trainer.global_step:
            return
        for module in pl_module.modules():
            if isinstance(module, SpectralFilter):  # which knows more of a NaN than the loss does
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
        """The first step whose loss is not finite, of those that were not looked at yet."""
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
        """Raise on all processes what any of them has found: the first bad step comes first."""
        found = torch.tensor([step, outputs, weight], device=trainer.strategy.root_device)
        step, outputs, weight = trainer.strategy.reduce(found, reduce_op="min").tolist()
        if step < NEVER:
            self._raise(trainer, step, "the loss is NaN or infinite")
        if outputs < NEVER:
            self._raise(trainer, None, "outputs of the branches are NaN or infinite")
        if weight < NEVER and names:
            self._raise(trainer, None, _words(names[weight]))

    def _raise(self, trainer: Any, step: int | None, what: str) -> None:
        epoch = trainer.current_epoch + 1
        raise Diverged(epoch, step, what, self.advise(epoch, step))


def _words(name: str) -> str:
    return f"the weight {name} holds NaN or infinity"
