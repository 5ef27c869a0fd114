"""Run Python that watches a model of another library.

    python -m support.other_libraries PACKAGES CODE.py

PACKAGES is the folder into which `uv pip install --no-deps --target` installed the libraries. Stubs
replace the packages that stable-pretraining imports for messages, tables and data.
"""

import importlib.util
import runpy
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock


def replace_what_it_imports() -> None:
    # These look for optional packages when imported, and would find the stubs.
    import lightning.pytorch  # noqa: F401
    import torch._dynamo  # noqa: F401
    import torchmetrics  # noqa: F401
    import torchvision  # noqa: F401

    # Import modules of these packages without running the packages' own __init__.
    folder = Path(importlib.util.find_spec("stable_pretraining").origin).parent
    for name in ("", ".backbone", ".callbacks", ".methods", ".utils"):
        package = types.ModuleType(f"stable_pretraining{name}")
        package.__path__ = [str(folder / name[1:])]
        sys.modules[package.__name__] = package
    stubs = ("loguru", "tabulate", "prettytable", "kornia", "kornia.augmentation")
    for name in (*stubs, "transformers", "transformers.utils"):
        sys.modules[name] = MagicMock()
    sys.modules["transformers.utils"].ModelOutput = dict
    # The installed package adds callbacks to every Trainer that save its own checkpoints.
    factories = types.ModuleType("stable_pretraining.callbacks.factories")
    factories.default = list
    sys.modules[factories.__name__] = factories


if __name__ == "__main__":
    packages, code = sys.argv[1:]
    sys.path.append(packages)
    if "stable_pretraining" in Path(code).read_text():
        replace_what_it_imports()
    runpy.run_path(code, run_name="__main__")
