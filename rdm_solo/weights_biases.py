"""A run's page at Weights & Biases, or its copy on disk: no server's absence ends a run.

A run goes online if there is a login and the server answers, and is kept offline otherwise; either
way all data lie in ``RUN_FOLDER/wandb``. Offline parts keep the run's id and the wish to resume, by
which ``wandb sync`` joins them to one page, in the order of time.
"""

from __future__ import annotations

import logging
import secrets
import shlex
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdm_solo.host import pl

__all__ = ["append", "close", "introduce", "logger", "mine", "obstacle", "picture", "spectra"]

log = logging.getLogger("rdm_solo")

PATIENCE = 5.0  # seconds for the server's first answer
INIT_TIMEOUT = 20.0  # seconds to open a run at a server that has answered; W&B's own are 90

# Charts with a line for each of some epochs: array, key, title.
CHARTS = [
    ("filter_curve", "charts/filter_curve", "filter g by index, sorted eigenvalues"),
    (
        "filter_curve_directional",
        "charts/filter_curve_directional",
        "filter g by index, along the target's eigenvectors",
    ),
    ("ideal_filter", "charts/ideal_filter", "ideal filter by index"),
    ("lam_online", "charts/eigenvalues_online", "log10 of the online branch's eigenvalues"),
    ("lam_target", "charts/eigenvalues_target", "log10 of the target branch's eigenvalues"),
]
LINES = 8  # epochs in a chart
POINTS = 100  # of a line, evenly spaced on a logarithmic scale; W&B draws 10,000 rows in all


class WandbRun(pl.loggers.WandbLogger):  # type: ignore[misc,name-defined]
    """Lightning's logger over a run that :func:`_open` has opened, and that may break."""

    broken = False

    def connect(self, folder: Path) -> None:
        """Open the run, online or offline."""
        options = {**self._wandb_init, "dir": str(folder)}
        run = self._experiment = _open(options, online=not self._offline)
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
        init_timeout=INIT_TIMEOUT,
        finish_timeout=record.get("finish_timeout", 60),
        finish_timeout_raises=True,
    )
    options = {name: record[name] for name in known if name in record}
    made = WandbRun(save_dir=folder, resume="allow", settings=settings, **options)
    made.folders = [*map(Path, record.get("earlier", [])), folder]
    return made


def mine(logger: Any) -> bool:
    return isinstance(logger, pl.loggers.WandbLogger)


def introduce(logger: WandbRun, facts: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Open the run and hand it the config."""
    logger.connect(Path(logger.save_dir))
    logger.log_hyperparams({**config, "derived": dict(facts)})


def _open(options: dict[str, Any], online: bool) -> Any:
    """``wandb.init``, online where it can be, and offline otherwise, within seconds."""
    import wandb

    wandb.setup(settings=wandb.Settings(silent=True))  # its lines on where it read the login
    mode = wandb.setup().settings.mode  # WANDB_MODE
    if online and mode == "online":
        reason = obstacle()
        if reason is None:
            try:
                run = wandb.init(**options, mode="online")
            except Exception as error:  # whatever the service or its client raises
                reason = f"{error} ({type(error).__name__})"
                wandb.teardown()  # its process keeps the run's id as taken
                wandb.setup(settings=wandb.Settings(silent=True))
            else:
                log.info(f"Weights & Biases: {run.url}")
                return run
        log.warning(f"warning: Weights & Biases: {reason}. The run is kept offline.")
    return wandb.init(**options, mode="disabled" if mode == "disabled" else "offline")


def obstacle() -> str | None:
    """Why nothing can go to the server, in words; None where nothing is known against it."""
    import wandb
    from wandb.sdk.lib import wbauth

    settings = wandb.setup().settings
    try:  # init() would ask at the terminal, and wait
        login = wbauth.authenticate_session(
            host=settings.base_url, source="rdm_solo", prompt=False, update_session=False
        )
    except Exception as error:  # a key that cannot be one
        return str(error)
    if login is None:
        return "no login (run `wandb login` once, or set WANDB_API_KEY)"
    return _unreachable(settings.base_url)


def _unreachable(url: str) -> str | None:
    """Why that server does not answer; a thread, since looking up a name has no timeout."""
    answer = [f"{url} does not answer within {PATIENCE:g} s"]

    def ask() -> None:
        try:
            urllib.request.urlopen(url, timeout=PATIENCE).close()
        except urllib.error.HTTPError:
            answer.clear()  # it answers
        except urllib.error.URLError as error:
            answer[:] = [f"{url} cannot be reached: {error.reason}"]
        except Exception as error:
            answer[:] = [f"{url} cannot be reached: {error}"]
        else:
            answer.clear()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return answer[0] if answer else None


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
    return shlex.join(["wandb", "sync", *map(str, parts)])


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
    """Filter curves and eigenvalues as charts with a line for each of some epochs, and histograms
    of the last epoch's eigenvalues, which W&B shows over all steps."""
    import wandb

    last = history[max(history)]
    shown: dict[str, Any] = {}
    for name, key, title in CHARTS:
        epochs = [epoch for epoch in some(sorted(history)) if name in history[epoch]]
        lines = [_line(history[epoch][name], name.startswith("lam_")) for epoch in epochs]
        if any(len(x) for x, _ in lines):
            shown[key] = wandb.plot.line_series(
                xs=[x for x, _ in lines],
                ys=[y for _, y in lines],
                keys=[f"epoch {epoch + 1}" for epoch in epochs],
                title=title,
                xname="index i",
            )
    for name, values in last.items():
        powers = np.log10(values[values > 0]) if name.startswith("lam_") else []
        if len(powers):
            shown[f"spectra/log10_{name.removeprefix('lam_')}"] = wandb.Histogram(powers)
    logger.log_metrics(shown, step)


def some(epochs: list[int]) -> list[int]:
    """At most :data:`LINES` of them, evenly spaced, the first and the last among them.

    >>> some(list(range(0, 100, 10)))
    [0, 10, 30, 40, 50, 60, 80, 90]
    """
    places = np.linspace(0, len(epochs) - 1, min(LINES, len(epochs))).round().astype(int)
    return [epochs[place] for place in places]


def _line(values: np.ndarray, powers: bool) -> tuple[list[int], list[float]]:
    """Indices from 1 and values, thinned; without what was not measured."""
    places = np.unique(np.geomspace(1, len(values), POINTS).round().astype(int)) - 1
    kept = values[places]
    real = np.isfinite(kept) & ((kept > 0) | (not powers))
    shown = np.log10(kept[real]) if powers else kept[real]
    return (places[real] + 1).tolist(), shown.astype(float).tolist()


def append(folder: Path, record: Mapping[str, Any], scalars: Mapping[str, float], step: int) -> None:
    """Scalars in the history and the summary of a run that has ended."""
    made = _logger(folder, record)
    made.connect(folder)
    made.log_metrics(dict(scalars), step=step)
    made.experiment.summary.update(dict(scalars))
    close(made, failed=False)
