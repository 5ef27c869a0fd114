"""Train a run of a study in its own process."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.timing import processor
from rdm_solo import runs
from rdm_solo.runs import RunFolder
from rdm_solo.runs.files import SUMMARY

ROOT = Path(__file__).resolve().parents[1]
OK = "ok"  # status of a run that did not diverge


def read_plan(name: str) -> Any:
    """Return the content of a YAML file in ``studies/``."""
    return OmegaConf.to_container(OmegaConf.load(ROOT / "studies" / name), resolve=True)


def train(options: Sequence[str], folder: Path) -> dict[str, Any]:
    """Train a run into the folder and return its summary; a diverged run also has a summary."""
    command = [sys.executable, "-m", "rdm_solo.train", *options, f"hydra.run.dir={folder}"]
    # A run can import callbacks of studies/, because it starts in the project's root.
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    path = folder / SUMMARY
    if path.exists():
        summary = json.loads(path.read_text())
        if summary["diverged"] or not run.returncode:
            return summary
    raise RuntimeError(f"{' '.join(options)}: exit status {run.returncode}\n{run.stderr}")


@contextmanager
def trained(options: Sequence[str]) -> Iterator[tuple[RunFolder, dict[str, str]]]:
    """Train a run in a temporary folder; yield the run and the columns that say how it ran."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        summary = train(options, folder)
        yield runs.load(folder), about(summary)


def about(summary: dict[str, Any]) -> dict[str, str]:
    """Return the columns that say how a run with this summary ran."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True)
    versions = map("=".join, summary["versions"].items())
    return {
        "seconds": f"{summary['seconds']:.0f}",
        "code": commit.stdout.strip(),
        "versions": " ".join(versions),
        "processor": processor(),
    }


def divergence(run: RunFolder) -> str:
    """Return a phrase with the epoch in which a run diverged; empty if it did not."""
    return f"training diverged in epoch {run.diverged}" if run.diverged else ""
