"""Train a study's runs without the seconds that a process takes to start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdm_solo.runs.files import SUMMARY
from support import small_runs


def train(options: Sequence[str], folder: Path) -> dict[str, Any]:
    """As ``studies.training.train``, but in this process and for two batches an epoch."""
    small_runs.run(folder, *options, "++trainer.limit_train_batches=2")
    return json.loads((folder / SUMMARY).read_text())
