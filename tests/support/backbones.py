"""The backbone in a file."""

from __future__ import annotations

from pathlib import Path

import torch

from rdm_solo.methods import weight_files
from rdm_solo.methods.weight_files import Spec


def load(path: Path, spec: Spec | None = None) -> torch.nn.Module:
    """The backbone that a file holds; what it is shows in the file where it is not given."""
    found = weight_files.read(path)
    return weight_files.load(found, spec or weight_files.known(found))
