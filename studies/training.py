"""Trains the runs of a study, each with the command that a person would type."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

from rdm_solo.runs.files import SUMMARY

ROOT = Path(__file__).resolve().parents[1]  # `-m` puts it on the path: callbacks of studies/ load


class RunFailed(RuntimeError):
    """A run ended with an error other than divergence."""


def train(options: Sequence[str], folder: Path) -> dict[str, Any]:
    """Train a run into the folder and return its summary. A diverged run has one, too."""
    command = [sys.executable, "-m", "rdm_solo.train", *options, f"hydra.run.dir={folder}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    path = folder / SUMMARY
    summary: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if not summary or (run.returncode and not summary["diverged"]):
        output = f"{run.stdout}\n{run.stderr}".strip()
        raise RunFailed(f"{' '.join(options)}: exit status {run.returncode}\n{output[-2000:]}")
    return summary


def divergence(summary: dict[str, Any]) -> str:
    """Return in which epoch a run diverged, in words; empty if it did not."""
    diverged = summary["diverged"]
    return f"training diverged in epoch {diverged['epoch']}" if diverged else ""


def versions(summary: dict[str, Any]) -> str:
    """Return the versions that a run's numbers depend on."""
    return " ".join(f"{name}={version}" for name, version in summary["versions"].items())


def run_all(
    measure: Callable[..., Any],
    tasks: Sequence[Sequence[Any]],
    jobs: int,
    add: Callable[[Any], None],
) -> None:
    """Call ``measure(*task)`` for each task, ``jobs`` at a time, and pass each result to ``add``.

    No further task begins after one has failed.
    """
    with ThreadPoolExecutor(jobs) as pool:
        results = [pool.submit(measure, *task) for task in tasks]
        try:
            for result in tqdm(
                as_completed(results), total=len(results), unit="run", disable=not tasks
            ):
                add(result.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
