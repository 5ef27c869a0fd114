"""Weights & Biases: a page for each run, or a copy on disk where the server cannot be reached.

All data are in ``RUN_FOLDER/wandb``, whether they are sent or not. A run that goes on offline keeps
the id, by which ``wandb sync`` joins its parts to one page, in the order of time.

W&B writes by a process of its own. SLURM, which signals all processes of a job, ends it before the
run: then the part lacks its last epochs, and ``wandb sync`` stops at its incomplete end (0.31). The
part that comes next begins with the scalars of its epochs, and takes its place.
"""

import contextlib
import logging
import math
import os
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.lightning import pl
from rdm_solo.loggers import charts, server
from rdm_solo.loggers.run_logger import RunInfo, RunLogger
from rdm_solo.messages import UserError, finite
from rdm_solo.runs import metrics_file, reading
from rdm_solo.runs.files import METRICS, SUMMARY

log = logging.getLogger("rdm_solo")

# Entries of the record that ``wandb.init`` takes.
INIT_OPTIONS = ("id", "project", "entity", "name", "group", "tags")
# Beside the data of an offline part: while it is written, the number of epochs before it; and once
# another part has taken its place.
OPEN, REPLACED = "rdm_solo_open", "rdm_solo_replaced"


class WeightsAndBiases(RunLogger, pl.loggers.WandbLogger):  # type: ignore[misc,name-defined]
    """Lightning's logger over a run that may be offline, and that may break without harm."""

    def __init__(self, folder: Path, record: dict[str, Any]) -> None:
        options = {name: record[name] for name in INIT_OPTIONS}
        run = server.open_run(
            {**options, "dir": str(folder), "resume": "allow"},
            record["offline"],
            record["finish_timeout"],
        )
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        super().__init__(save_dir=folder, project=record["project"], experiment=run)
        self.record = record
        self.folders = [*map(Path, record["earlier"]), folder]
        self.online = not (run.offline or run.disabled)
        self.broken = False

    @classmethod
    def open(cls, run: RunInfo, earlier: Mapping[str, Any], **options: Any) -> "WeightsAndBiases":
        """Open a run whose id we choose and keep, or go on with that of ``earlier``.

        A sweep's runs share a tag, by which they can be filtered and grouped.
        """
        if unknown := options.keys() - {*INIT_OPTIONS, "offline", "finish_timeout"}:
            raise TypeError(f"it got an unexpected argument {min(unknown)!r}")
        resumed = [str(run.goes_on_from)] if earlier and run.goes_on_from != run.folder else []
        broken_off = _broken_off(run.folder, _own_id(earlier))
        sweep = [f"sweep:{run.sweep}"[:64]] if run.sweep else []
        record = {
            **options,
            "id": _own_id(earlier) or secrets.token_hex(4),
            "name": options["name"] or run.name,
            "group": options["group"] or run.group,
            "tags": [*options["tags"], *sweep],
            "earlier": resumed,
        }
        made = cls(run.folder, record)
        made.log_hyperparams({**run.config, "derived": dict(run.hyperparameters)})
        if not made.online and not made.experiment.disabled:
            try:
                made.take_place_of(broken_off, run)
            except Exception as error:  # a full disk, a table that cannot be read: the run goes on
                log.warning(f"warning: Weights & Biases: epochs before may be missing ({error})")
        return made

    @property
    def part(self) -> Path:
        """Where W&B keeps the data of this part of the run."""
        return Path(self.experiment.dir).parent

    def take_place_of(self, broken_off: Mapping[Path, int], run: RunInfo) -> None:
        """Begin this part with the epochs that parts without an end may lack."""
        begins = min([run.epochs, *broken_off.values()])
        (self.part / OPEN).write_text(str(begins))
        self.log_again(run, begins)
        for part in broken_off:
            os.replace(part / OPEN, part / REPLACED)

    def log_again(self, run: RunInfo, begins: int) -> None:
        """The scalars of the epochs after the first ``begins`` that the run has done."""
        if begins == run.epochs or not (run.folder / METRICS).is_file():
            return
        columns = metrics_file.read(run.folder).columns
        for values in zip(*columns.values()):
            row = {k: float(v) for k, v in zip(columns, values) if math.isfinite(v)}
            epoch = int(row.pop("epoch", 0))
            if begins < epoch <= run.epochs:  # Lightning logs an epoch at its last step
                step = run.step * epoch // run.epochs - 1
                self.log_metrics({**row, "epoch": epoch - 1}, step)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if self.broken:
            return
        try:
            super().log_metrics(metrics, step)
        except Exception as error:  # wandb's own process may have died
            self.broken = True
            log.warning(
                f"warning: Weights & Biases takes nothing more ({error}); the run goes on, and "
                "metrics.csv has everything."
            )

    def picture(self, name: str, image: np.ndarray, step: int) -> None:
        import wandb

        self.log_metrics({name: wandb.Image(image)}, step)

    def spectra(self, epochs: Mapping[int, Mapping[str, np.ndarray]], step: int) -> None:
        """Filter curves and eigenvalues over epochs as charts, and histograms."""
        import wandb

        powers = charts.histograms(epochs[max(epochs)])
        shown = {key: wandb.Histogram(values) for key, values in powers.items()}
        if self.online and (reason := server.silence()):
            # wandb 0.31 waits 19 s for the server at each chart's table, of which there are five.
            log.warning(f"warning: Weights & Biases: {reason}. The next charts have this epoch.")
        else:
            shown |= charts.draw(epochs)
        self.log_metrics(shown, step)

    def close(self, failed: bool) -> None:
        """End the run within ``finish_timeout`` seconds.

        What has not reached the server is on disk; a line gives the command that sends it.
        """
        run, sent, part = self.experiment, self.online, self.part
        try:
            run.finish(exit_code=int(failed))
            (part / OPEN).unlink(missing_ok=True)
        except Exception as error:  # no network any more
            log.warning(f"warning: Weights & Biases: {error}")
            sent = False
        unsent = [
            other
            for folder in self.folders
            for other in sorted(folder.glob(f"wandb/offline-run-*-{self.record['id']}*"))
            if other != part and not any((*other.glob("*.wandb.synced"), *other.glob(REPLACED)))
        ]
        if not sent and not run.disabled:
            log.info(f"Weights & Biases, offline; to send it: {_sync_command([*unsent, part])}")
        elif sent and unsent:
            command = _sync_command(unsent)
            log.info(f"to send an earlier part of this run to W&B: {command}")

    @classmethod
    def append(
        cls, folder: Path, record: Mapping[str, Any], scalars: Mapping[str, float], step: int
    ) -> None:
        """Scalars in the history and the summary of a run that has ended.

        Of the record only what names the run at the server is taken, and no other folder.
        """
        named = {name: record.get(name) for name in ("project", "entity", "name", "group")}
        if not _own_id(record) or any(not isinstance(v, (str, type(None))) for v in named.values()):
            raise UserError("loggers.json does not say which run it is")
        reading.inside(folder, "wandb")
        tags = [tag for tag in record.get("tags") or [] if isinstance(tag, str)]
        timeout = finite(record.get("finish_timeout"))
        limits = {"offline": record.get("offline") is not False, "finish_timeout": timeout or 60.0}
        made = cls(folder, {**named, **limits, "id": record["id"], "tags": tags, "earlier": []})
        made.log_metrics(scalars, step)
        # ``wandb sync`` replaces the summary of a run by that of its last part.
        path = folder / SUMMARY
        last = reading.read_object(folder, SUMMARY).get("last") if path.is_file() else {}
        final = {name: value for name, value in (last or {}).items() if value is not None}
        made.experiment.summary.update({**final, **record["appended"]})
        made.close(failed=False)


def _broken_off(folder: Path, name: str | None) -> dict[Path, int]:
    """Offline parts of the run of that id that have no end, with the number of epochs before."""
    found = {}
    for path in folder.glob(f"wandb/offline-run-*-{name}/{OPEN}"):
        if not any(path.parent.glob("*.wandb.synced")):
            with contextlib.suppress(OSError, ValueError):
                text = reading.read_bytes(folder, str(path.relative_to(folder)), 20)
                found[path.parent] = int(text)
    return found


def _own_id(record: Mapping[str, Any]) -> str | None:
    """The id in a record, if it is one."""
    found = record.get("id")
    return found if isinstance(found, str) and re.fullmatch(r"\w[\w-]{0,63}", found) else None


def _sync_command(parts: list[Path]) -> str:
    # ``wandb sync`` skips parts of runs that were online unless told otherwise.
    online = not all(part.name.startswith("offline-") for part in parts)
    return shlex.join(["wandb", "sync", *["--include-online"] * online, *map(str, parts)])
