"""Answer the page's first questions: what was compared, is it alive, and how good is it?"""

from collections.abc import Sequence

import numpy as np

from rdm_solo.ground.errors import join_first
from rdm_solo.report.judged import ACCURACIES, Setting
from rdm_solo.report.ranking import rankings
from rdm_solo.report.verdicts import Verdict
from rdm_solo.runs.columns import LINEAR
from rdm_solo.runs.groups import latest, mean_std

LIMIT = 6  # filters or methods in the title


def title(settings: Sequence[Setting]) -> str:
    """Return what was compared, such as ``SimSiam, target filter σ^p, p = -1 … -0.3, 4 runs``."""
    first = settings[0]
    words = [first.label] if len(settings) == 1 else _compared(settings)
    runs = sum(len(setting.runs) for setting in settings)
    words.append(f"{runs} runs" if runs > 1 else f"seed {first.group.first.seed}")
    epochs = {setting.counted[0].epochs for setting in settings}
    if len(settings) == 1 and not first.finished:
        words.append(first.counted[0].progress)
    elif len(epochs) > 1:
        words.append(f"{min(epochs)} to {max(epochs)} epochs")
    else:
        words.append("1 epoch" if epochs == {1} else f"{epochs.pop()} epochs")
    return ", ".join(filter(None, words))


def _compared(settings: Sequence[Setting]) -> list[str]:
    """Return the methods and filters of several settings, and the range of their exponents."""
    methods = {setting.group.method for setting in settings}
    names: dict[str, None] = {}  # in their order, each once
    exponents = set()
    for setting in settings:
        group = setting.group
        name = group.family.removesuffix(group.suffix.strip()).strip()
        if len(methods) > 1:
            name = f"{group.method}, {name}".removesuffix(", ")
        names[name] = None
        if group.first.p is not None:
            exponents.add(group.first.p)
    words = list(methods) if len(methods) == 1 else []
    names.pop("", None)
    words.append("; ".join(names) if len(names) < LIMIT else join_first(names))
    if len(exponents) > 1:
        words.append(f"p = {min(exponents):g} … {max(exponents):g}")
    elif exponents:
        words[-1] = words[-1].replace("^p", f"^{exponents.pop():g}")
    return words


def first_answers(settings: Sequence[Setting]) -> list[Verdict]:
    """Return the answers at the top of the page, for one setting or several."""
    if len(settings) == 1:
        setting = settings[0]
        return [setting.health, accuracy(setting), setting.lead, setting.low_pass]
    return [overview(settings), *rankings(settings)]


def accuracy(setting: Setting) -> Verdict:
    """Return a setting's accuracies, with the best epoch of a single run."""
    run = setting.counted[0]
    lines = []
    for column in ACCURACIES:
        values = setting.last[column.name]
        if not values:
            continue
        text = f"{column.label} {mean_std(values, column.digits)} %"
        epoch, _ = latest(setting.counted, column.name)
        if 0 < epoch < run.last_epoch:
            text += f" in epoch {epoch}"
        facts = [text]
        if len(setting.counted) == 1 and column != LINEAR:
            history = run.metrics[column.name]
            best = int(np.nanargmax(history))
            if history[best] > values[0]:
                best_epoch = int(run.metrics["epoch"][best])
                facts.append(f"best {history[best]:.1f} % in epoch {best_epoch}")
        untrained = [
            r.untrained[column.name] for r in setting.counted if column.name in r.untrained
        ]
        if untrained:
            facts.append(f"{mean_std(untrained, column.digits)} % before training")
        lines.append(facts)
    if not lines:
        lines.append(["not measured", "no labels, or switched off"])
    answer, *numbers = lines[0]
    for facts in lines[1:]:
        numbers.append("; ".join(facts))
    return Verdict("How good is it?", answer, None, numbers)


def overview(settings: Sequence[Setting]) -> Verdict:
    """Return how many of several settings are healthy, and what is wrong with the others."""
    healthy, unfinished = 0, 0
    unhealthy = []
    for setting in settings:
        if setting.health.good:
            healthy += 1
        if setting.health.level in ("bad", "suspect"):
            unhealthy.append(f"{setting.label}: {setting.health.answer}")
        if not setting.finished and setting.counted[0].diverged is None:
            unfinished += 1
    numbers = []
    if unfinished:
        numbers.append(f"{unfinished} of {len(settings)} settings have not finished")
    if len({setting.counted[0].epochs for setting in settings}) > 1:
        numbers.append(
            "The settings have unequal numbers of epochs, which favours the longer runs."
        )
    if unhealthy:
        numbers.append(join_first(unhealthy))
    good = None
    if healthy == len(settings) and not unfinished:
        good = True
    elif all(setting.health.level == "bad" for setting in settings):
        good = False
    answer = f"{healthy} of {len(settings)} settings healthy"
    return Verdict("Are they alive?", answer, good, numbers, suspect=bool(unhealthy))
