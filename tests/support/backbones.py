"""Load the backbone in a file."""

from pathlib import Path

import torch

from rdm_solo.methods import weight_files
from rdm_solo.methods.weight_files import Spec


def load(path: Path, spec: Spec | None = None) -> torch.nn.Module:
    """Return the backbone in a file; by default ``spec`` is read from the file."""
    weights = weight_files.read(path)
    return weight_files.load(weights, spec or weight_files.spec_of(weights))
