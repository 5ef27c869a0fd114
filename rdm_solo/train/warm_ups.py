"""Warm-ups that shrink with ``max_epochs``."""

import logging
from collections.abc import Collection

from omegaconf import DictConfig, OmegaConf

log = logging.getLogger("rdm_solo")

# Epochs at a run's start that have to fit into max_epochs.
WARM_UPS = ("scheduler.warmup_epochs", "method.kwargs.warmup_teacher_temperature_epochs")


def fit(cfg: DictConfig) -> None:
    """Where max_epochs was typed to Hydra, shorten the recipe's warm-ups."""
    from hydra import compose
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return
    hydra = HydraConfig.get()
    typed = {option.partition("=")[0].lstrip("+~"): option for option in hydra.overrides.task}
    if "max_epochs" not in typed:
        return
    others = [option for name, option in typed.items() if name != "max_epochs"]
    recipe = compose(hydra.job.config_name, overrides=others)
    for sentence in shorten_warm_ups(cfg, recipe.max_epochs, typed):
        log.info(sentence)


def shorten_warm_ups(cfg: DictConfig, recipe_epochs: int, typed: Collection[str]) -> list[str]:
    """Shorten warm-ups that were not typed in proportion to ``max_epochs``; a sentence for each.

    >>> cfg = OmegaConf.create({"max_epochs": 2, "scheduler": {"warmup_epochs": 6}})
    >>> shorten_warm_ups(cfg, 30, ["max_epochs"]), cfg.scheduler.warmup_epochs
    (["max_epochs=2 in place of the recipe's 30: scheduler.warmup_epochs becomes 0.4 (was 6)"], 0.4)
    """
    said: list[str] = []
    if not isinstance(cfg.max_epochs, int) or not 0 < cfg.max_epochs < recipe_epochs:
        return said
    for name in WARM_UPS:
        epochs = OmegaConf.select(cfg, name)
        if name in typed or not isinstance(epochs, (int, float)) or not epochs:
            continue
        shorter = round(epochs * cfg.max_epochs / recipe_epochs, 3)
        if name != WARM_UPS[0] or shorter == int(shorter):  # solo-learn counts whole epochs
            shorter = int(shorter)
        OmegaConf.update(cfg, name, shorter)
        said.append(
            f"max_epochs={cfg.max_epochs} in place of the recipe's {recipe_epochs}: {name} becomes "
            f"{shorter:g} (was {epochs:g})"
        )
    return said
