"""Write a run's checkpoints and read them back, with the random state of each process."""

import math
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.distributed import broadcast_object, gather_objects, rank
from rdm_solo.lightning import pl
from rdm_solo.runs import checkpoints
from rdm_solo.runs.files import BEST, CHECKPOINT, PREVIOUS, write_whole, writing

ACCURACY = "val/knn_acc1"
ALL = "all"  # of `keep`


class Checkpoints(pl.callbacks.Checkpoint):
    """Write ``last.ckpt`` at the end of an epoch, after all other callbacks.

    Lightning's ``ModelCheckpoint`` keeps no predecessor of the last checkpoint, and saves the
    model again for each of its names.

    Args:
        folder: the run's folder.
        every_n_epochs: epochs between two checkpoints; the last epoch always gets one.
        keep: how many of the newest also stay under their epoch's name, or ``"all"``.
        best: whether to keep the one with the highest ``val/knn_acc1`` as ``best.ckpt``.
    """

    def __init__(
        self, folder: Path, every_n_epochs: int = 1, keep: int | str = 0, best: bool = False
    ) -> None:
        self.folder, self.every_n_epochs = folder, every_n_epochs
        self.keep, self.watch_best = keep, best
        self.best: dict[str, Any] | None = None  # epoch, from 1, and accuracy
        self._random_states: list[dict[str, Any]] = []  # one per process, from a checkpoint

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "random": gather_objects(random_state())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self._random_states = state_dict["best"], state_dict["random"]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            for epoch, path in checkpoints.kept(self.folder).items():
                if epoch > trainer.current_epoch:
                    path.unlink()
        if rank() < len(self._random_states):
            set_random_state(self._random_states[rank()])

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.callback_metrics.pop(ACCURACY, None)  # Lightning keeps it until the next one

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.fast_dev_run:
            return
        epoch = trainer.current_epoch + 1
        due = epoch % self.every_n_epochs == 0 or ends(trainer)
        better = self.watch_best and self._is_better(trainer)
        if not (due or better):
            return
        last = self.folder / CHECKPOINT
        trainer.save_checkpoint(last)
        if not trainer.is_global_zero:
            return
        if better:
            _copy(last, self.folder / BEST)
        if due and self.keep:
            _copy(last, checkpoints.of_epoch(self.folder, epoch))
            kept = list(checkpoints.kept(self.folder).values())
            for path in [] if self.keep == ALL else kept[: -int(self.keep)]:
                path.unlink()

    def _is_better(self, trainer: Any) -> bool:
        accuracy = float(trainer.callback_metrics.get(ACCURACY, math.nan))
        if not accuracy > (self.best["accuracy"] if self.best else -math.inf):
            return False
        self.best = {"epoch": trainer.current_epoch + 1, "accuracy": accuracy}
        return True


class CheckpointFiles(pl.plugins.CheckpointIO):
    """Write checkpoints whole, keep the predecessor of the last one, and notice damage.

    Lightning's own plugin compares no checksums and keeps no earlier file.
    """

    def __init__(self, folder: Path) -> None:
        self.last, self.previous = folder / CHECKPOINT, folder / PREVIOUS
        self._read: Path | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        path = Path(path)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        # A last checkpoint that could not be read does not replace its predecessor.
        whole = path == self.last and self._read != self.previous
        checkpoints.write(path, checkpoint, self.previous if whole else None)
        self._read = path

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        self._read = broadcast_object(Path(path))
        return checkpoints.read(self._read)

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _copy(path: Path, target: Path) -> None:
    with open(path, "rb") as file:
        write_whole(target, lambda copy: shutil.copyfileobj(file, copy))


def random_state() -> dict[str, Any]:
    """Return the states of this process's generators as plain values and tensors."""
    _, keys, *rest = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": [torch.from_numpy(keys.astype(np.int64)), *rest],
        "python": random.getstate(),
    }
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Set this process's generators to the states from :func:`random_state`."""
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
