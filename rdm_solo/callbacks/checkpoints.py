"""When a run writes checkpoints, how it writes and reads them, and what of itself is in them."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rdm_solo.callbacks.last_epoch import ends
from rdm_solo.distributed import first_says, gather_objects, rank
from rdm_solo.lightning import pl
from rdm_solo.runs import checkpoints, earlier_run
from rdm_solo.runs.files import (
    BEST,
    CHECKPOINT,
    PREVIOUS,
    add_name,
    remove_parts,
    writing,
)

KNN = "val/knn_acc1"
ALL = "all"  # of `keep`


class Checkpoints(pl.callbacks.Checkpoint):
    """Writes ``last.ckpt`` at the end of an epoch, after all other callbacks.

    Args:
        folder: the run's.
        every_n_epochs: epochs between two checkpoints; the last epoch always gets one.
        keep: how many of the newest also stay under their epoch's name, or ``"all"``.
        best: whether that of the highest ``val/knn_acc1`` is ``best.ckpt``.

    A checkpoint also has the state of each process's random numbers, which dropout draws from.
    Lightning's ``ModelCheckpoint`` keeps no previous one, and writes the same checkpoint once more
    for each of its names.
    """

    def __init__(
        self, folder: Path, every_n_epochs: int = 1, keep: int | str = 0, best: bool = False
    ) -> None:
        self.folder, self.every_n_epochs = folder, every_n_epochs
        self.keep, self.watch_best = keep, best
        self.best: dict[str, Any] | None = None  # epoch, from 1, and accuracy
        self._random: list[dict[str, Any]] = []  # of each process, from a checkpoint

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "random": gather_objects(random_state())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self._random = state_dict["best"], state_dict["random"]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero and not trainer.fast_dev_run:
            remove_parts(self.folder)
            checkpoints.begin(self.folder, trainer.current_epoch)
            self._bring_best(trainer.ckpt_path)
        if rank() < len(self._random):
            set_random_state(self._random[rank()])

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.callback_metrics.pop(KNN, None)  # Lightning keeps it until it is measured again
        if trainer.is_global_zero:
            earlier_run.forget(self.folder)

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
            add_name(last, self.folder / BEST)
        if due and self.keep:
            add_name(last, checkpoints.of_epoch(self.folder, epoch))
            kept = list(checkpoints.kept(self.folder).values())
            for path in [] if self.keep == ALL else kept[: -int(self.keep)]:
                path.unlink()

    def _is_better(self, trainer: Any) -> bool:
        accuracy = float(trainer.callback_metrics.get(KNN, math.nan))
        if not accuracy > (self.best["accuracy"] if self.best else -math.inf):
            return False
        self.best = {"epoch": trainer.current_epoch + 1, "accuracy": accuracy}
        return True

    def _bring_best(self, resumed: str | Path | None) -> None:
        """Take over the best checkpoint of the run that goes on here in another folder."""
        if self.best is None or (self.folder / BEST).exists():
            return
        earlier = Path(resumed or "").parent / Path(BEST).name
        if earlier.is_file():
            with writing(self.folder / BEST):
                (self.folder / BEST).parent.mkdir(exist_ok=True)
            add_name(earlier, self.folder / BEST)
        else:
            self.best = None


class CheckpointFiles(pl.plugins.CheckpointIO):
    """How Lightning writes and reads a run's checkpoints.

    Its own goes through the system's folder for temporary files, compares no checksums, and keeps
    no earlier file.
    """

    def __init__(self, folder: Path) -> None:
        self.last, self.previous = folder / CHECKPOINT, folder / PREVIOUS
        self._whole: Path | None = None  # what was read or written last, and so can be read

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        path = Path(path)
        with writing(path):
            # Its folder is made, but not the run's if somebody removed that.
            path.parent.mkdir(parents=path != self.last, exist_ok=True)
        known = path == self.last and _same(self._whole, path)
        checkpoints.write(path, checkpoint, self.previous if known else None)
        self._whole = path

    def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> dict[str, Any]:
        path = first_says(Path(path))  # a process could have found another one readable
        content = checkpoints.read(path)
        self._whole = path
        return content

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _same(one: Path | None, other: Path) -> bool:
    return one is not None and one.resolve() == other.resolve()


def random_state() -> dict[str, Any]:
    """The states of this process's generators, as a checkpoint can hold them."""
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
    """Go on with the random numbers behind :func:`random_state`."""
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
