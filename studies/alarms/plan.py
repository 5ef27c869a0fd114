"""The runs of the plan, and the options that each run draws at random."""

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rdm_solo.cli import arguments

PLAN: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("plan.yaml")))
TUNE, TEST, CHOOSE = "tune", "test", "choose"

_composing = threading.Lock()  # Hydra composes one config at a time


@dataclass(frozen=True)
class Planned:
    """A run of the plan. Its name alone determines its random options."""

    part: str
    data: str
    setting: str
    number: int
    options: Sequence[str] = field(compare=False)
    rate: Sequence[float] = field(compare=False)  # range of the factor of the learning rate
    backbones: Sequence[str] = field(compare=False)
    batch_norm: bool = field(default=True, compare=False)
    draws: Mapping[str, Sequence[Any]] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return f"{self.part}/{self.data}/{self.setting}/{self.number}"

    @property
    def method(self) -> str:
        return dict(option.split("=", 1) for option in self.options)["method"]


def planned() -> Iterator[Planned]:
    """Yield all runs, part after part.

    Each part is shuffled, so that a study that stops early has some runs of every kind.
    """
    for part in (TUNE, TEST):
        runs = list(_alarm_runs(part))
        random.Random(part).shuffle(runs)
        yield from runs[: PLAN["tune"]] if part == TUNE else runs
    runs = list(_choosing_runs())
    random.Random(CHOOSE).shuffle(runs)
    yield from runs


def _alarm_runs(part: str) -> Iterator[Planned]:
    for setting, options in _settings().items():
        for data in PLAN["data"]:
            for number in range(options.get("times", 1)):
                yield Planned(
                    part,
                    data,
                    setting,
                    number,
                    [*PLAN["shared"], f"max_epochs={PLAN['epochs']}", *options["options"]],
                    options.get("rate", PLAN["rate"]),
                    options.get("backbones", PLAN["backbones"]),
                    options.get("batch_norm", True),
                    {**PLAN["draws"], **options.get("draw", {})},
                )


def _settings() -> dict[str, Any]:
    """Return all settings by name: those shared by every method, and further ones."""
    settings: dict[str, Any] = {}
    for method, more in PLAN["methods"].items():
        for name, changes in PLAN["every method"].items():
            options = [f"method={method}", *changes.get("options", [])]
            draw = {**changes.get("draw", {}), **more.get("draw", {})}
            settings[f"{name}, {method}"] = {**changes, "options": options, "draw": draw}
    return settings | PLAN["settings"]


def _choosing_runs() -> Iterator[Planned]:
    for setting, options in PLAN["choose"].items():
        for data in PLAN["data"][:2]:
            for number in range(PLAN["seeds"]):
                shared = [*PLAN["shared"], f"max_epochs={PLAN['epochs']}"]
                yield Planned(CHOOSE, data, setting, number, [*shared, *options], (1, 1), ["conv"])


def draw(run: Planned) -> list[str]:
    """Return all options of a planned run, the randomly drawn ones included."""
    dice = random.Random(PLAN["seed"] + run.name)
    seed = dice.randrange(1000, 2**31)
    low, high = run.rate
    factor = float(low * (high / low) ** dice.random())  # its logarithm is uniform
    backbone = dice.choice(run.backbones)
    values = {name: dice.choice(choices) for name, choices in run.draws.items()}
    dataset = "digits" if run.data == "digits" else "textures"
    options = [
        f"dataset={dataset}",
        *([] if run.data == dataset else [f"dataset.variant={run.data}"]),
        *PLAN["backbone options"][backbone][dataset],
        *run.options,
        *(f"{name}={value}" for name, value in values.items()),
        f"seed={seed}",
    ]
    if factor != 1:
        with _composing:
            rate = arguments.compose("config", options).optimizer.lr * factor
        options.append(f"optimizer.lr={rate:.3g}")
    return options
