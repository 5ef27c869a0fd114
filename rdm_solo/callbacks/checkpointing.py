"""Save and load a run's checkpoints, with the random state of each process."""

import math
import random
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch

from rdm_solo.callbacks import is_last_epoch
from rdm_solo.callbacks.knn import ACCURACY
from rdm_solo.callbacks.measurement import epoch_row
from rdm_solo.ground.distributed import broadcast_object, gather_objects, rank
from rdm_solo.ground.lightning import pl
from rdm_solo.runs import checkpoints
from rdm_solo.runs.files import BEST, CHECKPOINT, PREVIOUS


class Checkpoints(pl.callbacks.Checkpoint):
    """Write ``last.ckpt`` at the end of an epoch, after all other callbacks.

    Lightning's ``ModelCheckpoint`` skips the last epoch unless it is a multiple of n, raises if the
    monitored accuracy is missing, and loses the best score if the folder is moved.

    Args:
        folder: the run's folder.
        every_n_epochs: epochs between two checkpoints; the last epoch always gets one.
        min_seconds: least time between two checkpoints, except before that of the last epoch.
        keep: number of newest checkpoints to keep as ``epoch_0010.ckpt`` and so on, or ``"all"``.
        best: whether to keep the checkpoint of highest ``val/knn_acc1`` as ``best.ckpt``.
    """

    def __init__(
        self,
        folder: Path,
        every_n_epochs: int = 1,
        min_seconds: float = 0,
        keep: int | str = 0,
        best: bool = False,
    ) -> None:
        self.folder = folder
        self.every_n_epochs = every_n_epochs
        self.min_seconds = min_seconds
        self.saved_at = -math.inf  # the first epoch of each start gets a checkpoint
        self.keep = keep
        self.keep_best = best
        self.best: dict[str, Any] | None = None  # epoch, from 1, and accuracy
        self._random_states: list[dict[str, Any]] = []  # one per process, from a checkpoint

    def state_dict(self) -> dict[str, Any]:
        states = gather_objects(random_state())
        return {"best": self.best, "random": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]
        self._random_states = state_dict["random"]

    def on_train_start(self, *args: Any) -> None:
        states = self._random_states
        if rank() < len(states):
            set_random_state(states[rank()])

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.fast_dev_run:  # a single batch must not count as an epoch when a run is resumed
            return
        epoch = trainer.current_epoch + 1
        paths = []
        scalars = epoch_row(trainer, epoch).scalars
        accuracy = scalars.get(ACCURACY, math.nan)
        best_so_far = -math.inf
        if self.best:
            best_so_far = self.best["accuracy"]
        if self.keep_best and accuracy > best_so_far:  # False for NaN
            self.best = {"epoch": epoch, "accuracy": accuracy}
            paths.append(self.folder / BEST)
        is_saved = self._is_due(epoch) or is_last_epoch(trainer)
        if is_saved:
            paths.append(self.folder / CHECKPOINT)
            if self.keep:
                paths.append(self.folder / "checkpoints" / f"epoch_{epoch:04d}.ckpt")
        for path in paths:
            trainer.save_checkpoint(path)
        if is_saved:
            self.saved_at = monotonic()
        if trainer.is_global_zero and self.keep and self.keep != "all":
            kept = list(checkpoints.by_epoch(self.folder).values())
            for path in kept[: -int(self.keep)]:
                path.unlink()

    def _is_due(self, epoch: int) -> bool:
        """Return the same on every process, since each takes part in saving."""
        if epoch % self.every_n_epochs:
            return False
        if not self.min_seconds:
            return True
        return broadcast_object(monotonic() - self.saved_at >= self.min_seconds)


class CheckpointFiles(pl.plugins.CheckpointIO):
    """Write checkpoints atomically, keep the previous one, and detect damaged files."""

    def __init__(self, folder: Path) -> None:
        self.last = folder / CHECKPOINT
        self.previous = folder / PREVIOUS

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        previous = self.previous if path == self.last else None
        checkpoints.write(path, checkpoint, previous)

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        path = broadcast_object(Path(path))
        content = checkpoints.read(path)
        if path == self.previous:  # otherwise the next save replaces it with the damaged one
            self.last.unlink(missing_ok=True)
        return content

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def random_state() -> dict[str, Any]:
    """Return the states of this process's generators as plain values and tensors."""
    numpy_state: Any = np.random.get_state()
    name, keys, *rest = numpy_state
    cuda = None
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        cuda = torch.cuda.get_rng_state()
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Set this process's generators to the states from :func:`random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
