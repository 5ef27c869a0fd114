"""Say what a run is about to do, before its first step."""

import logging

from omegaconf import DictConfig

from rdm_solo.callbacks.advice import warnings_before
from rdm_solo.data.views import Views
from rdm_solo.methods import solo_learn
from rdm_solo.train.derived_values import Derived
from rdm_solo.train.folders import Start

log = logging.getLogger("rdm_solo")


def announce(cfg: DictConfig, derived: Derived, views: Views, start: Start) -> None:
    """Log versions, batch and learning rate, where the run resumes, and what is likely to fail."""
    threads = "" if cfg.threads is None else f", {cfg.threads} CPU thread{'s' * (cfg.threads > 1)}"
    log.info(f"solo-learn {solo_learn.version()}{threads}")
    log.info(
        f"global batch {derived.global_batch} = {cfg.batch_size} x {derived.processes} "
        f"process(es) x {cfg.trainer.accumulate_grad_batches} accumulated; learning rate "
        f"{derived.base_lr:g} x {derived.global_batch}/256 = {derived.lr:g}"
    )
    if start.epochs:
        log.info(f"resuming after epoch {start.epochs}")
    smallest_crop = min(pipeline.crop_scale[0] for pipeline in views.pipelines)
    for sentence in warnings_before(cfg, derived.filter_batch, smallest_crop):
        log.warning(f"warning: {sentence}")
