"""Train one run from its config."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo import loggers, methods
from rdm_solo.callbacks.divergence import DivergenceGuard
from rdm_solo.cli import terminal
from rdm_solo.collapse.advice import divergence_advice
from rdm_solo.ground.lightning import pl
from rdm_solo.methods import backbones
from rdm_solo.runs import ownership
from rdm_solo.train import checks, claims, processes, reporting, stopping
from rdm_solo.train.trainer import make_callbacks, make_trainer
from rdm_solo.train.training_data import DataModule, derive, fit_batch, make_data

log = logging.getLogger("rdm_solo")


def run(
    cfg: DictConfig, folder: Path, callbacks: Sequence[Any] = (), overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Train one run in its folder and return its summary.

    An unfinished run of the same config in the folder resumes, and a finished run is left alone.
    ``callbacks`` run after the config's callbacks. ``overrides`` are the config's command-line
    options, recorded for ``resume=FOLDER``. Raises UserError for errors that the user can fix.
    """
    checks.check(cfg)
    dataset, views = make_data(cfg)
    cfg = fit_batch(cfg, dataset)
    model_cfg, derived = derive(cfg, dataset, views)

    terminal.silence_third_party()
    processes.limit_threads(cfg.threads)
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    model = methods.build(model_cfg, dataset.labelled)
    methods.prepare(model, cfg.backbone.channels_last, cfg.backbone.compile)
    channels = backbones.input_channels(cfg.backbone.name, cfg.backbone.kwargs)
    data = DataModule(dataset, views, cfg.batch_size, cfg.seed, channels)

    configured = make_callbacks(cfg, folder, derived)
    guard = DivergenceGuard(partial(divergence_advice, cfg=cfg, lr=derived.lr))
    trainer = make_trainer(cfg, derived.processes, folder, [guard, *configured, *callbacks])

    processes.connect(trainer)
    with claims.claim(cfg, folder, derived.filter_batch, overrides) as start:
        if start.finished_summary:
            log.info(f"the run in {folder} has already finished")
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
