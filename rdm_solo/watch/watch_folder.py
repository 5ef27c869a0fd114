"""Write the results of a watch to a run folder, which the report can read."""

import contextlib
import itertools
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from rdm_solo.collapse.rules import MeasuredEpoch
from rdm_solo.ground.devices import device_name
from rdm_solo.ground.distributed import broadcast_object, rank, world_size
from rdm_solo.ground.errors import UserError, first_line
from rdm_solo.observe.outputs import Outputs
from rdm_solo.observe.recorder import EpochRow
from rdm_solo.runs import files, metrics_file, ownership, spectra_files
from rdm_solo.runs.files import (
    CONFIG,
    FAILED,
    METRICS,
    OUTPUTS,
    SUMMARY,
    write_atomically,
    writing,
)
from rdm_solo.runs.versions import versions


class WatchFolder:
    """A run's folder, locked until :meth:`close`. Only rank 0 writes.

    ``resume`` is the epoch to resume after, or True to resume after the folder's last epoch. A
    watch that does not resume renames the folder of an earlier run if ``overwrite`` is true.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], resume: bool | int, overwrite: bool = False
    ) -> None:
        self.folder = folder
        self.config = dict(config)
        self.started = time.monotonic()
        self.rows: list[dict[str, Any]] = []
        self.warnings: list[dict[str, Any]] = []
        self.stopped: str | None = None
        self.closed = False
        self._lock = contextlib.ExitStack()
        message: str | None = None
        if rank() == 0:
            try:
                if overwrite and not resume and (folder / CONFIG).is_file():
                    ownership.set_aside(folder)
                self._open(resume)
            except (UserError, OSError) as error:
                self._lock.close()
                # Replace the option of the train command by the argument of Watch.
                message = str(error).replace("hydra.run.dir", "folder")
        message = broadcast_object(message)
        if message is not None:  # raise on all processes, or the others would hang
            raise UserError(message)
        self.rows = broadcast_object(self.rows)
        self.config = broadcast_object(self.config)
        self.warnings = broadcast_object(self.warnings)  # a loop on any process may stop on them

    @property
    def last_epoch(self) -> int:
        if not self.rows:
            return 0
        return int(self.rows[-1]["epoch"])

    def _open(self, resume: bool | int) -> None:
        folder = self.folder
        config_path = folder / CONFIG
        with writing(config_path):
            config_path.parent.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(ownership.owned(folder))
        if config_path.exists():
            self._compare(files.read_yaml(folder, CONFIG))
        if not resume and (folder / METRICS).exists():
            raise UserError(
                f"{folder} holds a run: pass another folder, resume=True to resume it, or "
                "overwrite=True to rename that folder and start over."
            )
        last = sys.maxsize if resume is True else int(resume)
        ownership.write_owner(folder)
        (folder / FAILED).unlink(missing_ok=True)
        self._write_config()
        warnings = []
        if (folder / SUMMARY).exists():
            warnings = files.read_object(folder, SUMMARY)["warnings"]
        self.rows = metrics_file.truncate(folder, last)
        self.warnings = [entry for entry in warnings if entry["epoch"] <= self.last_epoch]
        spectra_files.truncate(folder, self.last_epoch)

    def _write_config(self) -> None:
        text = OmegaConf.to_yaml(OmegaConf.create(self.config))
        write_atomically(self.folder / CONFIG, text)

    def _compare(self, earlier: Mapping[str, Any]) -> None:
        """Raise UserError if the folder holds a run with other settings."""
        config = self.config
        overwrite = "pass another folder, or overwrite=True to rename that folder and start over."
        if "watched" not in earlier:
            raise UserError(f"{self.folder} holds a run of the train command: {overwrite}")
        if not (self.folder / METRICS).exists():  # it ended before its first epoch
            return
        settings = {
            "seed": (earlier["seed"], config["seed"]),
            "config": (earlier["watched"]["config"], config["watched"]["config"]),
        }
        for option, (old, new) in settings.items():
            if old != new:
                raise UserError(
                    f"{self.folder} holds a run with {option}={old!r}, not {new!r}: {overwrite}"
                )

    def measured_epochs(self) -> list[MeasuredEpoch]:
        """Return a resumed run's epochs as input of the collapse rules."""
        epochs = []
        if rank() == 0:
            arrays, _ = spectra_files.read_epochs(self.folder)
            for row in self.rows:
                epoch = row["epoch"]
                spectra = arrays.get(epoch, {})
                dimensions = int(spectra.get("dimensions", 0))
                epochs.append(MeasuredEpoch.read(row, epoch, dimensions))
        return broadcast_object(epochs)

    def write(self, row: EpochRow) -> None:
        """Write an epoch's scalars and spectra."""
        if rank():
            return
        self.rows.append({"epoch": row.epoch, **row.scalars})
        if row.spectra is not None:
            spectra_files.write(self.folder, row.epoch, row.arrays())
        metrics_file.write(self.folder, self.rows)

    def write_outputs(self, epoch: int, outputs: Outputs) -> None:
        """Save a step's outputs as ``outputs/epoch_0001.pt``, a dict of tensors."""
        if rank():
            return
        tensors = {}
        for name, value in outputs._asdict().items():
            if isinstance(value, torch.Tensor):
                tensors[name] = value.cpu()
        path = self.folder / OUTPUTS / f"epoch_{epoch:04d}.pt"
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, lambda file: torch.save(tensors, file))

    def summarize(self, device: torch.device, ended: bool = False) -> None:
        """Write ``summary.json`` for the epochs so far.

        ``ended`` becomes true when the loop closes the watch, so it stays false in a killed run.
        """
        if rank() or self.closed or not (self.rows or self.warnings):
            return
        names = dict.fromkeys(itertools.chain(*self.rows))
        columns = {}
        for name in names:
            columns[name] = [row.get(name, math.nan) for row in self.rows]
        summary = {
            **metrics_file.last_values(columns),
            "seconds": round(time.monotonic() - self.started, 2),
            "warnings": self.warnings,
            "ended": ended,
            "stopped": self.stopped,
            "device": device_name(device),
            "processes": world_size(),
            "versions": versions("torch", "torchmetrics", "numpy"),
        }
        write_atomically(self.folder / SUMMARY, json.dumps(summary, indent=2) + "\n")

    def close(self, error: BaseException | None = None) -> None:
        """Release the folder, and record the error that ended the loop."""
        self.closed = True
        if rank() == 0 and isinstance(error, Exception):
            reason = f"{type(error).__name__}: {first_line(error)}"
            ownership.record_failure(self.folder, reason)
        self._lock.close()


def plain_settings(value: Any, name: str = "config") -> Any:
    """Return a user's settings as YAML holds them; raise UserError if it cannot hold one.

    A text with ``${`` is refused because OmegaConf would read it as a reference.

    >>> plain_settings({"lr": 0.1, "betas": (0.9, 0.95)})
    {'lr': 0.1, 'betas': [0.9, 0.95]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain_settings(x, f"{name}.{key}") for key, x in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain_settings(x, f"{name}[{i}]") for i, x in enumerate(value)]
    is_plain = value is None or type(value) in (bool, int, float, str)
    if not is_plain or (isinstance(value, str) and "${" in value):
        raise UserError(
            f"{name}={value!r} cannot be stored. A setting is a number, a text without ${{, True, "
            "False, None, a list or a mapping: convert it, for example with float() or str()."
        )
    return value
