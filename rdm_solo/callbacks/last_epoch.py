"""Whether the epoch that just ended is the last one."""

from typing import Any


def ends(trainer: Any) -> bool:
    """Whether no epoch follows: all that were asked for are done, or the run is being stopped."""
    steps = 0 < trainer.max_steps <= trainer.global_step
    done = 0 < trainer.max_epochs <= trainer.current_epoch + 1
    return bool(trainer.should_stop or steps or done)
