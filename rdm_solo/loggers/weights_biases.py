"""A run's page at Weights & Biases, or its copy on disk: no server's absence ends a run.

All data lie in ``RUN_FOLDER/wandb``, whether they are sent or not. Offline parts keep the run's id
and the wish to resume, by which ``wandb sync`` joins them to one page, in the order of time.
"""

from __future__ import annotations

import json
import logging
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.lightning import pl
from rdm_solo.loggers import charts, server
from rdm_solo.runs.files import SUMMARY

__all__ = ["append", "close", "introduce", "logger", "mine", "picture", "spectra"]

log = logging.getLogger("rdm_solo")


class WandbRun(pl.loggers.WandbLogger):  # type: ignore[misc,name-defined]
    """Lightning's logger over a run that may be offline, and that may break."""

    broken = False
    folders: tuple[Path, ...] = ()  # of this run and of those that it resumes

    def connect(self, folder: Path) -> None:
        """Open the run, online or offline."""
        options = {**self._wandb_init, "dir": str(folder)}
        run = self._experiment = server.open_run(options, online=not self._offline)
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)

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


def logger(
    folder: Path,
    before: Mapping[str, Any],
    title: str,
    family: str,
    sweep: str | None = None,
    resume: Path | None = None,
    project: str = "rdm_solo",
    entity: str | None = None,
    offline: bool = False,
    name: str | None = None,
    group: str | None = None,
    tags: list[str] | None = None,
    finish_timeout: float = 60,
) -> tuple[Any, dict[str, Any]]:
    """A run whose id is ours, so that it can be found again; nothing is opened yet.

    A sweep's runs share a tag, by which they can be filtered and grouped.
    """
    record = {
        "id": before.get("id") or secrets.token_hex(4),
        "project": project,
        "entity": entity,
        "offline": bool(offline),
        "name": name or title,
        "group": group or family,
        "tags": [*(tags or []), *([f"sweep:{sweep}"[:64]] if sweep else [])],
        "finish_timeout": finish_timeout,
        "earlier": [*before.get("earlier", []), *([str(resume)] if before and resume else [])],
    }
    return _logger(folder, record), record


def _logger(folder: Path, record: Mapping[str, Any]) -> WandbRun:
    import wandb

    known = ("id", "project", "entity", "offline", "name", "group", "tags")
    settings = wandb.Settings(
        silent=True,  # we say ourselves where the run is, in one line
        init_timeout=server.INIT_TIMEOUT,
        finish_timeout=record.get("finish_timeout", 60),
        finish_timeout_raises=True,
    )
    options = {name: record[name] for name in known if name in record}
    made = WandbRun(save_dir=folder, resume="allow", settings=settings, **options)
    made.folders = (*map(Path, record.get("earlier", [])), folder)
    return made


def mine(logger: Any) -> bool:
    return isinstance(logger, pl.loggers.WandbLogger)


def introduce(logger: WandbRun, facts: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Open the run and hand it the config."""
    logger.connect(Path(logger.save_dir))
    logger.log_hyperparams({**config, "derived": dict(facts)})


def close(logger: WandbRun, failed: bool) -> None:
    """End the run, in bounded time; W&B's next run in this process would otherwise join this one.

    Its page calls the run failed where it did, and finished otherwise. What has not reached the
    server lies on disk; a line says how to send it.
    """
    run = logger._experiment
    if run is None:
        return
    sent = not (run.offline or run.disabled)
    here = Path(run.dir).parent
    try:
        run.finish(exit_code=int(failed))
    except Exception as error:  # no network any more
        log.warning(f"warning: Weights & Biases: {error}")
        sent = False
    if not sent and not run.disabled:
        log.info(f"Weights & Biases, offline; to send it: {_sync(logger, here)}")
    elif sent and (earlier := _unsent(logger, here)):
        log.info(f"Weights & Biases lacks an earlier part of this run: {_command(earlier)}")
    logger._experiment = None


def _sync(logger: WandbRun, here: Path) -> str:
    return _command([*_unsent(logger, here), here])


def _command(parts: list[Path]) -> str:
    # By itself, ``wandb sync`` passes over runs that were online.
    online = not all(part.name.startswith("offline-") for part in parts)
    return shlex.join(["wandb", "sync", *["--include-online"] * online, *map(str, parts)])


def _unsent(logger: WandbRun, here: Path) -> list[Path]:
    """Offline parts of the same run but that one, the first first, that nobody has sent yet."""
    found = []
    for folder in logger.folders:
        for part in sorted(folder.glob(f"wandb/offline-run-*-{logger.version}*")):
            if part != here and not any(part.glob("*.wandb.synced")):
                found.append(part)
    return found


def picture(logger: Any, name: str, image: np.ndarray, step: int) -> None:
    """A picture of shape ``(height, width, 3)``, bytes."""
    import wandb

    logger.log_metrics({name: wandb.Image(image)}, step)


def spectra(logger: Any, history: Mapping[int, Mapping[str, np.ndarray]], step: int) -> None:
    """Filter curves and eigenvalues of the epochs up to now, as charts."""
    run = logger.experiment
    shown = charts.draw(history)
    if not (run.offline or run.disabled) and (reason := server.unreachable(run.settings)):
        # wandb 0.31 waits for the server's answer on every chart's table: a minute and a half.
        log.warning(f"warning: Weights & Biases: {reason}. The next charts have this epoch.")
        shown = {key: value for key, value in shown.items() if not key.startswith("charts/")}
    logger.log_metrics(shown, step)


def append(
    folder: Path, record: Mapping[str, Any], scalars: Mapping[str, float], step: int
) -> None:
    """Scalars in the history and the summary of a run that has ended."""
    made = _logger(folder, record)
    made.connect(folder)
    made.log_metrics(dict(scalars), step=step)
    # ``wandb sync`` puts the summary of a run's last part in the place of those before.
    made.experiment.summary.update({**_final(folder), **record["appended"]})
    close(made, failed=False)


def _final(folder: Path) -> dict[str, float]:
    """The last values of a run's columns."""
    path = folder / SUMMARY
    last = json.loads(path.read_text())["last"] if path.is_file() else {}
    return {name: value for name, value in last.items() if value is not None}
