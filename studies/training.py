"""Train a run of a study in its own process."""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.timing import processor
from rdm_solo import runs
from rdm_solo.runs import RunFolder
from rdm_solo.runs.files import SUMMARY

# Runs start here, so that they can import callbacks of studies/.
ROOT = Path(__file__).resolve().parents[1]
OK = "ok"  # status of a run that did not diverge


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
    summary: dict[str, Any] = {}
    if path.exists():
        summary = json.loads(path.read_text())
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


@contextmanager
def trained(options: Sequence[str]) -> Iterator[tuple[RunFolder, dict[str, str]]]:
    """Train a run in a temporary folder; yield the run and the columns that say how it ran."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        summary = train(options, folder)
        describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True)
        versions = [f"{name}={version}" for name, version in summary["versions"].items()]
        about = {
            "seconds": f"{summary['seconds']:.0f}",
            "code": commit.stdout.strip(),
            "versions": " ".join(versions),
            "processor": processor(),
        }
        yield runs.load(folder), about


def divergence(run: RunFolder) -> str:
    """Return a phrase with the epoch in which a run diverged; empty if it did not."""
    return f"training diverged in epoch {run.diverged}" if run.diverged else ""
