"""Going on with a run: in its own folder, or from another one's checkpoint."""

import logging
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import cli
from rdm_solo.runs import checkpoints
from rdm_solo.runs.files import CHECKPOINT, CONFIG
from rdm_solo.runs.saved_config import asks_resolver, read_config
from rdm_solo.runs.settings import MODEL, differences
from rdm_solo.train import checks

# Where the parts of a saved config may come from.
OWN = ("rdm_solo.data.", "rdm_solo.callbacks.", "rdm_solo.loggers.")

# Groups that may be chosen anew where a run goes on.
FREE_GROUPS = ("trainer", "logger")


def own_config(argv: list[str]) -> tuple[DictConfig, Path]:
    """Config and folder of the run that ``resume=FOLDER`` goes on with, checked, with
    the options that were typed beside it.
    """
    cli.say_anything()
    console = logging.StreamHandler(sys.stdout)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[console])
    with cli.sentences():
        cfg, folder = _changed_config(argv)
        print(f"going on in {folder}", flush=True)
        checks.check(cfg)
        check_resume(cfg, folder, quiet=True)  # the run itself says what it takes
    cfg.resume = str(folder)
    return cfg, folder


def _changed_config(argv: list[str]) -> tuple[DictConfig, Path]:
    """The config of the run to go on with, with the options typed beside ``resume=``."""
    given = dict(argument.partition("=")[::2] for argument in argv)
    folder = Path(given.pop("resume").strip("'\""))
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"resume={folder} holds no {CONFIG}; give a run's folder.")
    cfg = read_config(path)
    _check_harmless(OmegaConf.to_container(cfg, resolve=False), folder)
    typed = cli.compose("config", [f"{key}={value}" for key, value in given.items()])
    _add_callbacks(cfg, typed.callbacks)
    for name in given:
        key = name.lstrip("+")
        whole = "." not in key and OmegaConf.is_config(OmegaConf.select(typed, key))
        if (whole or key == "experiment") and key not in FREE_GROUPS:
            raise ValueError(
                f"resume={folder} goes on by the run's own config: leave {key}=... out, or "
                "give another folder as hydra.run.dir=... and all of the run's options."
            )
        OmegaConf.update(cfg, key, OmegaConf.select(typed, key), force_add=True)
    OmegaConf.set_struct(cfg, True)
    cfg.resume = None
    return cfg, folder.resolve()


def _add_callbacks(cfg: DictConfig, shipped: DictConfig) -> None:
    """Configs of runs before callbacks became a group list a user's own alone."""
    own = cfg.get("callbacks") or {}
    targets = [str(node.get("_target_")) for node in own.values() if node is not None]
    if not any(target.startswith("rdm_solo.callbacks.") for target in targets):
        cfg.callbacks = OmegaConf.merge(shipped, own)


def _check_harmless(node: Any, folder: Path, key: str = "") -> None:
    """Refuse a saved config that would run somebody else's code or read the environment."""
    if isinstance(node, (dict, list)):
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            _check_harmless(value, folder, str(name))
    elif isinstance(node, str):
        foreign = key == "_target_" and not node.startswith(OWN)
        foreign |= key == "function" and "." in node and not node.startswith("torch.")
        if foreign or asks_resolver(node):
            raise ValueError(
                f"the config in resume={folder} names {node!r}, which is not in this package and "
                "is not run. If you trust it, give hydra.run.dir=NEW and all of the run's options "
                "beside resume=..."
            )


def check_resume(cfg: DictConfig, folder: Path, quiet: bool = False) -> Path:
    """The checkpoint to go on from; refuses one of another experiment or of a finished run.

    The log says where it is not the last one, unless ``quiet``.
    """
    config = folder / CONFIG
    if not checkpoints.present(folder):
        raise ValueError(f"resume={folder} holds no {CHECKPOINT}; give a run's folder.")
    # max_epochs may grow, and the trainer may be another machine's
    apart = differences(read_config(config), cfg, (*MODEL, "seed")) if config.is_file() else []
    if apart:
        raise ValueError(
            f"resume={folder} was run with another {apart[0]!r} than this command: leave that "
            "option out; resume=... alone takes the run's own config."
        )
    checkpoint, saved = checkpoints.latest(folder, quiet)
    done = saved["epoch"] + 1
    if done >= cfg.max_epochs:
        raise ValueError(
            f"resume={folder} has finished {done} epochs and max_epochs={cfg.max_epochs}; raise "
            "max_epochs to go on."
        )
    return checkpoint
