"""The runs that the study planned, and the settings that each of them draws."""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rdm_solo.cli import arguments
from studies.collapse import sets

PLAN: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("study.yaml")))
PARTS = ("choose", "judge", "test", "last")
OTHERS = "others"  # the part of other methods
# Columns with a number per epoch: what the warnings read (with the column of metrics.csv), and
# what the labels are made from.
READ = {
    "variance": "feature/spread",
    "erank": "erank/projection",
    "centred": "erank/centred",
    "logits": "erank/logits",
}
LABELS = ("knn", "held_out_rank", "held_out_variance")
ABOUT = ("name", "part", "data", "setting", "method", "options", "distinct", "batch_norm")
HEAD = (*ABOUT, "dimensions", "diverged", *LABELS, *READ, "gap", "versions")

_composing = threading.Lock()  # Hydra composes one config at a time


@dataclass(frozen=True)
class Planned:
    """A run of the plan: the part it belongs to, and what its draws depend on."""

    part: str
    data: str
    setting: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.part}/{self.data}/{self.setting}/{self.number}"

    @property
    def settings(self) -> Any:
        return settings(self.part)[self.setting]

    @property
    def method(self) -> str:
        options = dict(option.split("=", 1) for option in self.settings["options"])
        return options["method"]


def settings(part: str) -> Any:
    """Return the settings of a part of the plan."""
    return PLAN[OTHERS if part == OTHERS else "settings"]


def planned() -> Iterator[Planned]:
    """Yield all runs of the plan, part after part, each shuffled, so that a study that stops early
    has some of everything."""
    for part in (*PARTS, OTHERS):
        runs = [
            Planned(part, data, setting, number)
            for setting, options in settings(part).items()
            for data in PLAN["sets"]
            for number in range(options.get("times", 1))
        ]
        random.Random("order").shuffle(runs)
        yield from runs


@dataclass(frozen=True)
class Drawn:
    """The settings that a planned run drew."""

    options: list[str]
    seed: int
    distinct: int  # training samples, repeated to the set's size
    batch_norm: bool


def draw(run: Planned) -> Drawn:
    """Draw the settings of a planned run; they depend on its name alone."""
    setting, dice, defaults = run.settings, random.Random(PLAN["draws"] + run.name), PLAN["drawn"]
    seed = dice.randrange(1000, 2**31)
    low, high = setting.get("rate", defaults["rate"])
    factor = float(low * (high / low) ** dice.random())  # its logarithm is uniform
    values = {
        "batch_size": dice.choice(defaults["batch_size"]),
        "method.kwargs.proj_output_dim": dice.choice(defaults["proj_output_dim"]),
    }
    values |= {name: dice.choice(choices) for name, choices in setting.get("draw", {}).items()}
    distinct = dice.choice(setting.get("distinct", [sets.TRAIN]))
    options = [*PLAN["shared"], *PLAN["sets"][run.data]["options"], *setting["options"]]
    options += [f"{name}={value}" for name, value in values.items()] + [f"seed={seed}"]
    with _composing:
        rate = arguments.compose("config", options).optimizer.lr * factor
    options.append(f"optimizer.lr={rate:.3g}")
    return Drawn(options, seed, distinct, setting.get("batch_norm", True))
