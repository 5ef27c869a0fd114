"""The runs of the plan, and the options that each run draws at random."""

import random
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from rdm_solo.cli import arguments

PLAN: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("plan.yaml")))
TUNE, TEST, CHOOSE = "tune", "test", "choose"
DATA_TO_CHOOSE = PLAN["data"][:2]

_composing = threading.Lock()  # Hydra composes one config at a time


class Planned(NamedTuple):
    """A run of the plan. Its name alone determines its random options."""

    name: str
    part: str
    data: str
    setting: str
    method: str
    options: Sequence[str]
    about: Mapping[str, Any]  # the setting's entry in the plan


def all_runs() -> list[Planned]:
    """Return all runs, part after part.

    Each part is shuffled, so that a study that stops early has some runs of every kind.
    """
    planned = []
    for part in (TUNE, TEST, CHOOSE):
        settings, sets = _settings(), PLAN["data"]
        if part == CHOOSE:
            settings, sets = _settings_to_choose(), DATA_TO_CHOOSE
        runs = []
        for setting, about in settings.items():
            options = [*PLAN["shared"], f"max_epochs={PLAN['epochs']}", *about["options"]]
            (method,) = [option[7:] for option in options if option.startswith("method=")]
            for data in sets:
                for number in range(about.get("times", 1)):
                    name = f"{part}/{data}/{setting}/{number}"
                    runs.append(Planned(name, part, data, setting, method, options, about))
        random.Random(part).shuffle(runs)
        planned += runs[: PLAN["tune"]] if part == TUNE else runs
    return planned


def _settings() -> dict[str, Any]:
    """Return the settings of `tune` and `test`: those shared by every method, and further ones."""
    settings: dict[str, Any] = {}
    for method, more in PLAN["methods"].items():
        for name, changes in PLAN["every method"].items():
            options = [f"method={method}", *changes.get("options", [])]
            draw = changes.get("draw", {}) | more.get("draw", {})
            settings[f"{name}, {method}"] = {**changes, "options": options, "draw": draw}
    settings |= PLAN["settings"]
    shared = {"rate": PLAN["rate"], "backbones": PLAN["backbones"]}
    for name, about in settings.items():
        draw = PLAN["draws"] | about.get("draw", {})
        settings[name] = {**shared, **about, "draw": draw}
    return settings


def _settings_to_choose() -> dict[str, Any]:
    settings = {}
    shared = {"times": PLAN["seeds"], "rate": [1, 1], "backbones": ["conv"], "draw": {}}
    for name, options in PLAN["choose"].items():
        settings[name] = {**shared, "options": options}
    return settings


def draw(run: Planned) -> list[str]:
    """Return all options of a planned run, the randomly drawn ones included."""
    dice = random.Random(PLAN["seed"] + run.name)
    seed = dice.randrange(1000, 2**31)
    low, high = run.about["rate"]
    factor = float(low * (high / low) ** dice.random())  # its logarithm is uniform
    backbone = dice.choice(run.about["backbones"])
    dataset = "digits" if run.data == "digits" else "textures"
    options = [f"dataset={dataset}"]
    if run.data != dataset:
        options.append(f"dataset.variant={run.data}")
    options += [*PLAN["backbone options"][backbone][dataset], *run.options]
    for name, choices in run.about["draw"].items():
        options.append(f"{name}={dice.choice(choices)}")
    options.append(f"seed={seed}")
    if factor != 1:
        with _composing:
            rate = arguments.compose("config", options).optimizer.lr * factor
        options.append(f"optimizer.lr={rate:.3g}")
    return options
