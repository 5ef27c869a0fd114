"""Check that packages are installed, and name the commands that install them."""

import importlib.util
import sys
from pathlib import Path

from rdm_solo.ground.errors import UserError

# The modules that training imports; the extra `train` installs all but solo-learn's.
TRAINING = (
    "solo",
    "hydra",
    "pytorch_lightning",
    "torchvision",
    "sklearn",
    "einops",
    "scipy",
    "timm",
    "tqdm",
    "safetensors",
)
# The extras of modules that the extra `train` does not install.
EXTRAS = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "wandb_workspaces": "wandb",
    "pandas": "pandas",
    "hydra_plugins.hydra_submitit_launcher": "slurm",
    "hydra_plugins.hydra_ray_launcher": "ray",
    "hydra_plugins.hydra_joblib_launcher": "joblib",
}


class MissingPackages(UserError, ImportError):
    """An error for packages that are not installed."""


def check_installed(subject: str, *modules: str) -> None:
    """Raise an error that names the missing modules and the commands that install them."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        return
    extras = dict.fromkeys(EXTRAS.get(module, "train") for module in missing if module != "solo")
    config, package = Path(sys.prefix, "pyvenv.cfg"), Path(__file__).parent.parent
    by_uv = config.is_file() and "\nuv = " in config.read_text()
    if by_uv and (package.parent / "pyproject.toml").is_file():  # a clone, which uv installed
        options = [f" --extra {extra}" for extra in extras if extra != "train"]
        commands = [f"uv sync --inexact{''.join(options)}"]
    else:
        commands = [f"pip install '.[{','.join(extras)}]'"] if extras else []
        commands += ["pip install --no-deps solo-learn==1.0.2"] if "solo" in missing else []
        commands = [f"uv {command}" if by_uv else command for command in commands]
    names = ", ".join(module.rpartition(".")[2].replace("solo", "solo-learn") for module in missing)
    raise MissingPackages("\n    ".join([f"{subject} needs {names}; in the clone, run", *commands]))
