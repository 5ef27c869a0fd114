"""The folder that a watch writes, which every command that reads a run's folder can read."""

import contextlib
import json
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rdm_solo import __version__
from rdm_solo.distributed import first_says, rank, world_size
from rdm_solo.messages import UserError
from rdm_solo.runs import earlier_run, failures, metrics_file, ownership, reading, spectra_files
from rdm_solo.runs.files import (
    CONFIG,
    FAILED,
    METRICS,
    SUMMARY,
    remove_parts,
    write_whole,
    writing,
)
from rdm_solo.spectra.collapse import MeasuredEpoch
from rdm_solo.spectra.epoch_summary import Spectra

PACKAGES = ("torch", "torchmetrics", "numpy")


class WatchFolder:
    """Owns a run's folder until it is closed. The first process alone writes.

    ``resume`` is True to go on after the folder's last epoch, or how many epochs are over.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], resume: bool | int) -> None:
        self.folder, self.began = folder, time.monotonic()
        self.rows: list[dict[str, Any]] = []
        self.warnings: list[dict[str, Any]] = []
        self.stopped: str | None = None
        self.closed = False
        self._owned = contextlib.ExitStack()
        refused = None
        if rank() == 0:
            try:
                self._begin(config, resume)
            except (ValueError, OSError) as error:
                self._owned.close()
                # ownership speaks of the option that names a run's folder on the command line.
                refused = str(error).replace("hydra.run.dir", "folder")
        if refused := first_says(refused):  # on every process, or the others would wait
            raise UserError(refused)
        self.done = first_says(self.rows[-1]["epoch"] if self.rows else 0)
        self.warnings = first_says(self.warnings)  # by which a loop may end, on every process

    def _begin(self, config: Mapping[str, Any], resume: bool | int) -> None:
        folder, done = self.folder, 0
        self._owned.enter_context(ownership.owned(folder))
        if earlier_run.holds_run(folder):
            if resume is False:
                raise UserError(
                    f"{folder} holds a run: give another folder, or resume=True to go on with it."
                )
            if "watched" not in _read(folder, CONFIG):
                raise UserError(
                    f"{folder} holds a run that no watch has written: give another folder."
                )
            epochs = metrics_file.read(folder).columns.get("epoch") if _has(folder) else None
            last = 0 if epochs is None or not len(epochs) else int(epochs[-1])
            done = last if resume is True else min(int(resume), last)
            known = _read(folder, SUMMARY).get("warnings", [])
            self.warnings = [entry for entry in known if entry["epoch"] <= done]
        remove_parts(folder)
        (folder / FAILED).unlink(missing_ok=True)
        with writing(folder / CONFIG):
            (folder / CONFIG).parent.mkdir(exist_ok=True)
        write_whole(folder / CONFIG, OmegaConf.to_yaml(OmegaConf.create(dict(config))))
        spectra_files.begin(folder, done)
        self.rows = metrics_file.begin(folder, done)

    def measured(self) -> list[MeasuredEpoch]:
        """Return what the rules of collapse read of a resumed run's epochs."""
        arrays = spectra_files.read_epochs(self.folder)[0] if self.rows else {}
        epochs = []
        for row in self.rows:
            spectra = arrays.get(row["epoch"], {})
            k, softmax = int(spectra.get("dimensions", 0)), "lam_logits" in spectra
            epochs.append(MeasuredEpoch.read(row, row["epoch"], k, softmax))
        return first_says(epochs)

    def write(self, row: dict[str, Any], spectra: Spectra | None) -> None:
        """Add an epoch."""
        if rank():
            return
        self.rows.append(row)
        if spectra is not None:
            arrays = {name: array.numpy() for name, array in spectra.arrays().items()}
            spectra_files.write(self.folder, row["epoch"], arrays)
        metrics_file.write(self.folder, self.rows)

    def summarize(self, device: torch.device, ended: bool = False) -> None:
        """Write ``summary.json``; it is of the epochs so far, and whole at any moment. ``ended``
        tells a loop that closed its watch from one that goes on, or was killed."""
        if rank() or self.closed or not self.rows:
            return
        there = dict.fromkeys(name for row in self.rows for name in row)
        columns = {name: [row.get(name, float("nan")) for row in self.rows] for name in there}
        summary = {
            "format": metrics_file.NUMBER,
            **metrics_file.last_values(columns),
            "seconds": round(time.monotonic() - self.began, 2),
            "warnings": self.warnings,
            "ended": ended,
            "stopped": self.stopped,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "processes": world_size(),
            "versions": {
                "python": platform.python_version(),
                "rdm_solo": __version__,
                **{name: metadata.version(name) for name in PACKAGES},
            },
        }
        write_whole(self.folder / SUMMARY, json.dumps(summary, indent=2) + "\n")

    def close(self, error: BaseException | None = None) -> None:
        """Give the folder back; an error that ended the loop is left there in a line."""
        self.closed = True
        if rank() == 0 and isinstance(error, Exception):
            failures.note(self.folder, failures.reason(error))
        self._owned.close()


def _has(folder: Path) -> bool:
    return (folder / METRICS).is_file()


def _read(folder: Path, name: str) -> dict[str, Any]:
    """What a file of the folder says; nothing where it is not there."""
    try:
        read = reading.read_yaml if name == CONFIG else reading.read_object
        found = read(folder, name)
    except FileNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}
