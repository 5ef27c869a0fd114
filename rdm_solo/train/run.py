"""Train one run from its config."""

import inspect
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import loggers
from rdm_solo.callbacks.checkpointing import CheckpointFiles, Checkpoints
from rdm_solo.callbacks.divergence import DivergenceGuard
from rdm_solo.cli import terminal
from rdm_solo.cli.instantiation import instantiate
from rdm_solo.collapse.advice import advice, divergence_advice
from rdm_solo.ground.errors import UserError, first_line, suggest
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import backbones, building
from rdm_solo.runs import ownership, saved_config
from rdm_solo.train import checks, claims, device_defaults, processes, reporting, stopping
from rdm_solo.train.training_data import DataModule, derive, limit_batch, make_data

log = logging.getLogger("rdm_solo")

ERRORS = (TypeError, ValueError, RuntimeError, pl.utilities.exceptions.MisconfigurationException)


def run(
    cfg: DictConfig, folder: Path, callbacks: Sequence[Any] = (), overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Train one run in its folder and return its summary.

    An unfinished run of the same config in the folder resumes, and a finished run is left alone.
    ``callbacks`` run after the config's callbacks. ``overrides`` are the config's command-line
    options, recorded for ``resume=FOLDER``. Raises UserError for errors that the user can fix.
    """
    checks.check(cfg)
    cfg = device_defaults.choose(cfg, folder)
    dataset, views = make_data(cfg)
    cfg = limit_batch(cfg, dataset)
    model_cfg, derived = derive(cfg, dataset, views)

    terminal.silence_third_party()
    processes.limit_threads(cfg.threads)
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    model = building.build(model_cfg, dataset.labelled)
    building.prepare(model, cfg.backbone.channels_last, cfg.backbone.compile)
    channels = backbones.input_channels(cfg.backbone.name, cfg.backbone.kwargs)
    data = DataModule(dataset, views, cfg.batch_size, cfg.seed, channels)

    advised = reporting.advice_settings(cfg)
    guard = DivergenceGuard(partial(divergence_advice, run=advised, lr=derived.lr))
    callbacks = [guard, *make_callbacks(cfg, folder), *callbacks]
    trainer = make_trainer(cfg, folder, callbacks)

    processes.start_process_group(trainer)
    with claims.claim(cfg, folder, derived.filter_batch, overrides) as start:
        if start.finished_summary:
            return start.finished_summary
        if trainer.is_global_zero:
            reporting.announce(cfg, folder, derived, views, start)
            info = reporting.run_info(cfg, folder, derived, start)
            trainer.loggers = loggers.open_all(cfg.get("logger") or {}, info)
        config = OmegaConf.to_container(cfg, resolve=True)
        settings = {"derived": asdict(derived), "seed": cfg.seed, "config": config}
        with (
            ownership.recording_failure(folder),
            reporting.summarise(trainer, folder, settings) as summary,
            stopping.stoppable(trainer),
            guard.as_diverged(trainer),
        ):
            trainer.fit(model, datamodule=data, ckpt_path=start.checkpoint, weights_only=True)
    return summary


def make_callbacks(cfg: DictConfig, folder: Path) -> list[Any]:
    """Build the config's callbacks in order.

    A constructor with a parameter ``folder``, ``cfg``, ``title`` or ``advise`` receives that value.
    """
    values = {
        "folder": folder,
        "cfg": cfg,
        "title": saved_config.title(cfg),
        "advise": partial(advice, run=reporting.advice_settings(cfg)),
    }
    callbacks = []
    for name, node in (cfg.get("callbacks") or {}).items():
        if node is None:  # removed by callbacks.NAME=null
            continue
        factory = instantiate(node, _partial_=True)
        parameters = inspect.signature(factory.func).parameters
        arguments = {key: values[key] for key in values.keys() & parameters.keys()}
        try:
            callbacks.append(factory(**arguments))
        except TypeError as error:
            raise UserError(f"callbacks.{name} cannot be built: {error}") from error
    return callbacks


def make_trainer(cfg: DictConfig, folder: Path, callbacks: Sequence[Any]) -> Any:
    """Build Lightning's Trainer with these callbacks and the run's checkpoints."""
    options: Any = OmegaConf.to_container(cfg.trainer, resolve=True)
    if options["accelerator"] == "auto":  # Lightning could choose mps, which lacks float64
        options["accelerator"] = "cpu" if processes.on_cpu(cfg.trainer) else "gpu"
    if options["sync_batchnorm"] is None:
        on_gpus = options["accelerator"] != "cpu"
        options["sync_batchnorm"] = on_gpus and processes.world_size(cfg.trainer) > 1
    callbacks = [*callbacks, Checkpoints(folder, **cfg.checkpoint)]
    if not options["enable_progress_bar"]:  # Lightning refuses bars then
        bar = pl.callbacks.ProgressBar
        callbacks = [callback for callback in callbacks if not isinstance(callback, bar)]
    plugins: list[Any] = [CheckpointFiles(folder)]
    defaults = {
        "default_root_dir": folder,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
        "plugins": plugins,
    }
    slurm = pl.plugins.environments.SLURMEnvironment
    try:
        if slurm.detect():
            # Lightning's requeueing saves in mid-epoch, and a run cannot resume exactly from there.
            plugins.append(slurm(auto_requeue=False))
        return pl.Trainer(
            max_epochs=cfg.max_epochs,
            logger=False,  # loggers are opened once the run owns its folder
            callbacks=callbacks,
            **(defaults | options),
        )
    except ERRORS as error:
        if unknown := re.search(r"unexpected keyword argument '(\w+)'", str(error)):
            name = unknown[1]
            hint = suggest(name, inspect.signature(pl.Trainer).parameters) or "."
            text = f"trainer.{name}: Lightning's Trainer has no argument {name!r}{hint}"
            raise UserError(text) from error
        raise UserError(f"Lightning's Trainer refuses trainer=...: {first_line(error)}") from error
