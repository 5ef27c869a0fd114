"""Train the runs of a study, each in its own process."""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

from rdm_solo.runs.files import SUMMARY

ROOT = Path(__file__).resolve().parents[1]  # on sys.path with `-m`, so callbacks in studies/ load


class RunFailed(RuntimeError):
    """A run ended with an error other than divergence."""


# A server that has imported what a run needs; each run is a fork of it, which saves 8 seconds.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["rdm_solo.train.__main__", "rdm_solo.train.run", "torchvision"])


def train(options: Sequence[str], folder: Path) -> dict[str, Any]:
    """Train a run into the folder and return its summary; a diverged run also has a summary."""
    output = folder.with_suffix(".output")
    run = SERVER.Process(target=_command, args=([*options, f"hydra.run.dir={folder}"], output))
    run.start()
    run.join()
    path = folder / SUMMARY
    summary: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if not summary or (run.exitcode and not summary["diverged"]):
        text = output.read_text().strip()[-2000:]
        raise RunFailed(f"{' '.join(options)}: exit status {run.exitcode}\n{text}")
    return summary


def _command(options: Sequence[str], output: Path) -> None:
    """Run ``rdm-solo train`` with these options; its output goes to a file."""
    from rdm_solo.train.__main__ import main

    os.chdir(ROOT)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.argv = ["rdm_solo.train", *options]
    main()


def divergence(summary: dict[str, Any]) -> str:
    """Return a phrase with the epoch in which a run diverged; empty if it did not."""
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

    After a failure no further task starts.
    """
    with ThreadPoolExecutor(jobs) as pool:
        results = [pool.submit(measure, *task) for task in tasks]
        try:
            for result in tqdm(as_completed(results), total=len(results), unit="run"):
                add(result.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
