"""The runs of the plan, and the options that each run draws at random."""

import random
import threading
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from rdm_solo.cli import arguments
from studies.training import read_plan

PLAN = read_plan("alarms/plan.yaml")
VIT_PLAN = read_plan("alarms/vit.yaml")
TUNE, TEST, CHOOSE, VIT = "tune", "test", "choose", "vit"
DATA_TO_CHOOSE = PLAN["data"][:2]

composing = threading.Lock()  # Hydra composes one config at a time


class Planned(NamedTuple):
    """A run of the plan. Its name alone determines its random options."""

    name: str
    part: str
    data: str
    setting: str
    about: dict[str, Any]  # the setting's entry in the plan

    @property
    def method(self) -> str:
        return self.about["options"][0].removeprefix("method=")


def all_runs() -> dict[str, Planned]:
    """Return all runs by name, part after part.

    Each part is shuffled, so that a study that stops early has some runs of every kind.
    """
    planned = []
    for part in (TUNE, TEST, CHOOSE, VIT):
        runs = []
        for setting, about in settings_of(part).items():
            for data in about["data"]:
                for number in range(about["times"]):
                    name = f"{part}/{data}/{setting}/{number}"
                    runs.append(Planned(name, part, data, setting, about))
        random.Random(part).shuffle(runs)
        planned += runs[: PLAN["tune"]] if part == TUNE else runs
    return {run.name: run for run in planned}


def settings_of(part: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a part's settings, complete with defaults."""
    settings = {}
    if part == CHOOSE:
        for name, options in PLAN["choose"].items():
            settings[name] = PLAN["defaults of choose"] | {"options": options}
        return settings
    plan = VIT_PLAN if part == VIT else PLAN
    for method, of_method in plan["methods"].items():
        for name, changes in plan["every method"].items():
            about = merged(plan["defaults"], changes, of_method)
            about["options"].insert(0, f"method={method}")
            settings[f"{name}, {method}"] = about
    for name, changes in plan["settings"].items():
        settings[name] = merged(plan["defaults"], changes)
    return settings


def merged(*entries: dict[str, Any]) -> Any:
    """Return the first entry, changed by each of the others in turn."""
    return OmegaConf.to_container(OmegaConf.merge(*entries))


def draw(run: Planned) -> list[str]:
    """Return all options of a planned run, the randomly drawn ones included."""
    dice = random.Random(PLAN["seed"] + run.name)
    seed = dice.randrange(1000, 2**31)
    low, high = run.about["rate"]
    factor = float(low * (high / low) ** dice.random())  # its logarithm is uniform
    backbone = PLAN["backbone options"][dice.choice(run.about["backbones"])]
    if run.data == "digits":
        options = ["dataset=digits", *backbone["digits"]]
    else:
        options = ["dataset=textures", f"dataset.variant={run.data}", *backbone["textures"]]
    options += PLAN["shared"] + [f"max_epochs={PLAN['epochs']}"] + run.about["options"]
    for name, choices in run.about["draw"].items():
        options.append(f"{name}={dice.choice(choices)}")
    options.append(f"seed={seed}")
    if factor != 1:
        with composing:
            rate = arguments.compose("config", options).optimizer.lr * factor
        options.append(f"optimizer.lr={rate:.3g}")
    return options
