"""What may differ where a run goes on: nothing that changes the model by more than rounding."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.messages import UserError
from rdm_solo.runs import ownership
from rdm_solo.runs.settings import LOCAL, MODEL, differences
from rdm_solo.train import derived_values

# Sections and options that say how long a run takes, what is measured, and what is kept.
FREE = ("max_epochs", "threads", "knn", "diagnostics", "pictures", "watch", "checkpoint", "logger")
FREE += ("callbacks",)
# Of Lightning's Trainer: the machine, what is shown, and what watches. Its precision, accumulation,
# clipping, synchronisation of batch norms and number of batches stay the run's own.
FREE_TRAINER = ("accelerator", "devices", "num_nodes", "strategy", "plugins", "benchmark")
FREE_TRAINER += ("deterministic", "enable_progress_bar", "log_every_n_steps", "profiler")
FREE_TRAINER += ("check_val_every_n_epoch", "limit_val_batches", "detect_anomaly", "max_time")
# Groups that may be chosen anew.
FREE_GROUPS = ("trainer", "logger")
SAME = (*(part for part in MODEL if part != "batch_size"), "seed")
SAME_TRAINER = ("precision", "accumulate_grad_batches", "gradient_clip_val")


def put(cfg: DictConfig, typed: DictConfig, given: list[str], folder: Path) -> None:
    """Put the options that were typed beside ``resume=`` into the run's own config.

    ``typed`` is a config with them. ValueError names an option that may not differ.
    """
    for name in given:
        key = name.lstrip("+")
        value = OmegaConf.select(typed, key)
        whole = "." not in key and OmegaConf.is_config(value)
        if key.startswith("~"):
            raise UserError(f"resume={folder}: write {key[1:]}=null instead of {key}.")
        if (whole or key == "experiment") and key not in FREE_GROUPS:
            raise UserError(
                f"resume={folder} goes on by the run's own config: leave {key}=... out, or "
                "give another folder as hydra.run.dir=... and all of the run's options."
            )
        if key == "trainer":  # as a group: its options for the machine alone
            for option in set(value) & set(FREE_TRAINER):
                OmegaConf.update(cfg, f"trainer.{option}", value[option], force_add=True)
            continue
        own = OmegaConf.select(cfg, key)
        if key != "batch_size" and value != own and not _free(key):
            raise UserError(
                f"resume={folder}: {key}={value} must stay the run's own {own!r}; leave it out. "
                "max_epochs, devices, dataset.root, workers, loggers and what is measured may "
                "differ."
            )
        OmegaConf.update(cfg, key, value, merge=False, force_add=True)


def _free(key: str) -> bool:
    section, _, leaf = key.partition(".")
    if section == "trainer":
        return leaf in FREE_TRAINER
    return section in FREE or key.rpartition(".")[2] in LOCAL


def check_same(saved: DictConfig, cfg: DictConfig, folder: Path) -> None:
    """Refuse to go on in ``folder`` by a config that trains another model."""
    apart = differences(saved, cfg, SAME)
    trainers: Any = (saved.get("trainer") or {}, cfg.trainer)
    for name in SAME_TRAINER:  # which configs of earlier versions may lack
        if all(name in trainer for trainer in trainers):
            apart += [f"trainer.{name}"] * (trainers[0][name] != trainers[1][name])
    if apart:
        raise UserError(
            f"resume={folder} was run with another {apart[0]!r} than this command: leave that "
            "option out; resume=... alone takes the run's own config."
        )
    now = derived_values.world_size(cfg.trainer)
    filtered = ownership.last_owner(folder).get("filter_batch")
    if not isinstance(filtered, int) or isinstance(filtered, bool) or filtered < 1:
        filtered = saved.batch_size * now  # an earlier version's folder does not say
    if cfg.batch_size * now != filtered:
        fitting = f"batch_size={filtered // now}" if filtered % now == 0 else "another number"
        raise UserError(
            f"the run in {folder} filtered {filtered} rows at once, and "
            f"batch_size={cfg.batch_size} on {now} process(es) makes {cfg.batch_size * now}: give "
            f"{fitting}{' of processes' * (filtered % now > 0)}."
        )
