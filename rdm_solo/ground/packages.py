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
    "hydra_plugins.hydra_optuna_sweeper": "optuna",
}


class MissingPackages(UserError, ImportError):
    """An error for packages that are not installed."""


def check_installed(subject: str, *modules: str) -> None:
    """Raise an error that names the missing modules and the commands that install them.

    >>> check_installed("training", "torch")
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        return
    extras = []
    for module in missing:
        extra = EXTRAS.get(module, "train")
        if module != "solo" and extra not in extras:
            extras.append(extra)

    environment = Path(sys.prefix, "pyvenv.cfg")
    by_uv = environment.is_file() and "\nuv = " in environment.read_text()
    clone = Path(__file__).parents[2]
    if by_uv and (clone / "pyproject.toml").is_file():
        options = [f" --extra {extra}" for extra in extras if extra != "train"]
        commands = [f"uv sync --inexact{''.join(options)}"]
    else:
        pip = "uv pip" if by_uv else "pip"
        commands = []
        if extras:
            commands.append(f"{pip} install '.[{','.join(extras)}]'")
        if "solo" in missing:
            commands.append(f"{pip} install --no-deps solo-learn==1.0.2")

    lines = [f"{subject} needs {', '.join(missing)}; in the clone, run", *commands]
    raise MissingPackages("\n    ".join(lines))
