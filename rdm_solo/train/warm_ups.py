"""Warm-ups that shrink with ``max_epochs``."""

from collections.abc import Collection

from omegaconf import DictConfig, OmegaConf

# Epochs at a run's start that have to fit into max_epochs.
WARM_UPS = ("scheduler.warmup_epochs", "method.kwargs.warmup_teacher_temperature_epochs")


def fit(cfg: DictConfig) -> list[str]:
    """Where max_epochs was typed to Hydra, shorten the recipe's warm-ups; a sentence for each."""
    from hydra import compose
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    typed = {option.partition("=")[0].lstrip("+~"): option for option in hydra.overrides.task}
    if "max_epochs" not in typed:
        return []
    others = [option for name, option in typed.items() if name != "max_epochs"]
    return shorten_warm_ups(cfg, compose(hydra.job.config_name, overrides=others), typed)


def shorten_warm_ups(cfg: DictConfig, recipe: DictConfig, typed: Collection[str]) -> list[str]:
    """Shorten warm-ups that are the recipe's in proportion to ``max_epochs``; a sentence for each.

    >>> recipe = OmegaConf.create({"max_epochs": 30, "scheduler": {"warmup_epochs": 6}})
    >>> cfg = OmegaConf.create({"max_epochs": 2, "scheduler": {"warmup_epochs": 6}})
    >>> shorten_warm_ups(cfg, recipe, ["max_epochs"]), cfg.scheduler.warmup_epochs
    (["max_epochs=2 in place of the recipe's 30: scheduler.warmup_epochs becomes 0.4 (was 6)"], 0.4)
    >>> shorten_warm_ups(cfg, recipe, ["max_epochs"])
    []
    """
    notes: list[str] = []
    recipe_epochs = recipe.max_epochs
    if not isinstance(cfg.max_epochs, int) or not 0 < cfg.max_epochs < recipe_epochs:
        return notes
    for name in WARM_UPS:
        epochs = OmegaConf.select(cfg, name)
        if name in typed or epochs != OmegaConf.select(recipe, name):
            continue
        if not isinstance(epochs, (int, float)) or not epochs:
            continue
        shorter = round(epochs * cfg.max_epochs / recipe_epochs, 3)
        if name != WARM_UPS[0] or shorter == int(shorter):  # solo-learn counts whole epochs
            shorter = int(shorter)
        OmegaConf.update(cfg, name, shorter)
        notes.append(
            f"max_epochs={cfg.max_epochs} in place of the recipe's {recipe_epochs}: {name} becomes "
            f"{shorter:g} (was {epochs:g})"
        )
    return notes
