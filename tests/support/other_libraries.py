"""Run Python that watches a model of another library.

    python -m support.other_libraries PACKAGES CODE.py

PACKAGES holds the libraries as `uv pip install --no-deps --target` leaves them. What
stable-pretraining imports for messages, tables and its data is replaced.
"""

from __future__ import annotations

import runpy
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock


def replace_what_it_imports(packages: str) -> None:
    # These look for packages, and would find those that are replaced.
    import lightning.pytorch  # noqa: F401
    import torch._dynamo  # noqa: F401
    import torchmetrics  # noqa: F401
    import torchvision  # noqa: F401

    # Modules of these packages are imported without all that the packages themselves import.
    for name in ("", ".backbone", ".callbacks", ".utils"):
        package = types.ModuleType(f"stable_pretraining{name}")
        package.__path__ = [str(Path(packages) / f"stable_pretraining{name}".replace(".", "/"))]
        sys.modules[package.__name__] = package
    for name in ("loguru", "tabulate", "prettytable", "transformers", "transformers.utils"):
        sys.modules[name] = MagicMock()
    sys.modules["transformers.utils"].ModelOutput = dict
    # Callbacks that the installed package adds to every Trainer: savers of its own checkpoints.
    factories = types.ModuleType("stable_pretraining.callbacks.factories")
    factories.default = list
    sys.modules[factories.__name__] = factories


if __name__ == "__main__":
    packages, code = sys.argv[1:]
    sys.path.append(packages)
    if "stable_pretraining" in Path(code).read_text():
        replace_what_it_imports(packages)
    runpy.run_path(code, run_name="__main__")
