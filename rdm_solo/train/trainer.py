"""Build Lightning's Trainer and a run's callbacks from the config."""

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.callbacks.checkpointing import CheckpointFiles, Checkpoints
from rdm_solo.cli.instantiation import instantiate
from rdm_solo.collapse.advice import advice
from rdm_solo.ground.errors import UserError, first_line
from rdm_solo.ground.lightning import pl
from rdm_solo.runs import saved_config
from rdm_solo.train.processes import on_cpu
from rdm_solo.train.training_data import Derived

ERRORS = (TypeError, ValueError, RuntimeError, pl.utilities.exceptions.MisconfigurationException)


def make_callbacks(cfg: DictConfig, folder: Path, derived: Derived) -> list[Any]:
    """Build the config's callbacks in order.

    A constructor with a parameter ``folder``, ``cfg``, ``title`` or ``advise`` receives that value.
    """
    values = {
        "folder": folder,
        "cfg": cfg,
        "title": saved_config.title(cfg),
        "advise": partial(advice, cfg=cfg),
    }
    callbacks = []
    for name, node in (cfg.get("callbacks") or {}).items():
        if node is None:  # removed by callbacks.NAME=null
            continue
        factory = instantiate(node, _partial_=True)
        parameters = inspect.signature(factory.func).parameters
        try:
            callbacks.append(factory(**{k: v for k, v in values.items() if k in parameters}))
        except TypeError as error:
            raise UserError(f"callbacks.{name} cannot be built: {error}") from error
    return callbacks


def make_trainer(cfg: DictConfig, processes: int, folder: Path, callbacks: Sequence[Any]) -> Any:
    """Build Lightning's Trainer with these callbacks and the run's checkpoints."""
    options: Any = OmegaConf.to_container(cfg.trainer, resolve=True)
    if options["accelerator"] == "auto":  # Lightning could choose mps, which lacks float64
        options["accelerator"] = "cpu" if on_cpu(cfg.trainer) else "gpu"
    if options["sync_batchnorm"] is None:
        options["sync_batchnorm"] = processes > 1 and options["accelerator"] != "cpu"
    bars = [c for c in callbacks if isinstance(c, pl.callbacks.ProgressBar)]
    if not options["enable_progress_bar"]:
        callbacks = [c for c in callbacks if c not in bars]
    options["enable_progress_bar"] &= bool(bars)  # otherwise Lightning adds its own bar
    slurm = pl.plugins.environments.SLURMEnvironment
    defaults: dict[str, Any] = {
        "default_root_dir": folder,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    }
    try:
        # Lightning's requeueing saves in mid-epoch, and a run cannot resume exactly from there.
        cluster = [slurm(auto_requeue=False)] if slurm.detect() else []
        defaults["plugins"] = [CheckpointFiles(folder), *cluster]
        return pl.Trainer(
            max_epochs=cfg.max_epochs,
            logger=False,  # loggers are opened once the run owns its folder
            callbacks=[*callbacks, Checkpoints(folder, **cfg.checkpoint)],
            **(defaults | options),
        )
    except ERRORS as error:
        raise UserError(f"Lightning's Trainer refuses trainer=...: {first_line(error)}") from error
