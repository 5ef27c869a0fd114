"""Answer the page's first questions: what was compared, is it alive, and which is the best?"""

import statistics
from collections.abc import Sequence

import numpy as np

from rdm_solo.ground.errors import join_first
from rdm_solo.report.judged import ACCURACIES, Setting
from rdm_solo.report.verdicts import Verdict, before_training, filter_causes_gap
from rdm_solo.runs.columns import COLUMNS, LINEAR, Column
from rdm_solo.runs.groups import latest, mean_std


def title(settings: Sequence[Setting]) -> str:
    """Return what was compared, such as ``SimSiam, target filter σ^p, p = -1 … -0.3, 4 runs``."""
    first = settings[0]
    words = [first.label] if len(settings) == 1 else _compared(settings)
    runs = sum(len(setting.judged_runs) for setting in settings)
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
        name = group.filter
        if len(methods) > 1:
            name = f"{group.method}, {name}".removesuffix(", ")
        if name:
            names[name] = None
        if group.first.p is not None:
            exponents.add(group.first.p)
    filters = join_first(names)
    if len(exponents) > 1:
        filters += f", p = {min(exponents):g} … {max(exponents):g}"
    elif exponents:
        filters = filters.replace("^p", f"^{exponents.pop():g}")
    if len(methods) > 1:
        return [filters]
    return [*methods, filters]


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
        values = setting.last(column.name)
        if not values:
            continue
        text = f"{column.label} {mean_std(values, column.digits)} %"
        epoch, _ = latest(setting.counted, column.name)
        if 0 < epoch < run.last_epoch:  # 0: linear accuracies are not in metrics.csv
            text += f" in epoch {epoch}"
        facts = [text]
        if len(setting.counted) == 1 and column != LINEAR:
            history = run.metrics[column.name]
            best = int(np.nanargmax(history))
            if history[best] > values[0]:
                best_epoch = int(run.metrics["epoch"][best])
                facts.append(f"best {history[best]:.1f} % in epoch {best_epoch}")
        untrained = before_training(setting.counted, column.name)
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
    epochs = set()
    for setting in settings:
        epochs.add(setting.counted[0].epochs)
        if setting.health.good:
            healthy += 1
        if setting.health.level in ("bad", "suspect"):
            unhealthy.append(f"{setting.label}: {setting.health.answer}")
        if not setting.finished and not setting.group.diverged:
            unfinished += 1
    numbers = []
    if unfinished:
        numbers.append(f"{unfinished} of {len(settings)} settings have not finished")
    if len(epochs) > 1:
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


def rankings(settings: Sequence[Setting]) -> list[Verdict]:
    """Return each data set's best healthy setting by accuracy, effective rank and gap."""
    by_dataset: dict[str, list[Setting]] = {}
    for setting in settings:
        healthy = by_dataset.setdefault(setting.group.first.dataset, [])
        if setting.ranked:
            healthy.append(setting)
    verdicts = []
    for dataset, healthy in by_dataset.items():
        for question, column in (
            ("Which is the most accurate", compared_accuracy(healthy)),
            ("Which has the highest rank", COLUMNS["erank/centred"]),
            ("Which has the widest gap", COLUMNS["erank/gap"]),
        ):
            if len(by_dataset) > 1:
                question += f" on {dataset}"
            if any(setting.last(column.name) for setting in healthy):
                verdicts.append(best(f"{question}?", column, healthy))
    return verdicts


def compared_accuracy(settings: Sequence[Setting]) -> Column:
    """Return the accuracy that most settings have; ties prefer linear, then kNN, then online."""

    def count(column: Column) -> int:
        return sum(len(setting.last(column.name)) > 0 for setting in settings)

    return max(ACCURACIES, key=count)


def best(question: str, column: Column, settings: Sequence[Setting]) -> Verdict:
    """Return the setting with the highest mean, and the settings that may be as good.

    They are within one standard deviation: the larger one of the two settings.
    """

    def seeds(setting: Setting) -> Sequence[float]:
        return setting.last(column.name)

    def mean(setting: Setting) -> float:
        return statistics.fmean(seeds(setting))

    winner, *others = sorted(filter(seeds, settings), key=mean, reverse=True)
    tied, unknown = [], []
    for other in others:
        deviations = []
        for values in (seeds(winner), seeds(other)):
            if len(values) > 1:
                deviations.append(statistics.stdev(values))
        if not deviations:
            unknown.append(other.label)
        elif mean(winner) - mean(other) <= max(deviations):
            tied.append(other.label)
    missing = [setting.label for setting in settings if not seeds(setting)]
    sentences = []
    if not others:
        sentences.append("No other setting is ranked.")
    elif not tied and not unknown:
        sentences.append("No other setting is within one standard deviation.")
    if tied:
        sentences.append(f"Within one standard deviation: {join_first(tied)}.")
    if unknown:
        sentences.append(f"Not compared, because one seed each: {join_first(unknown)}.")
    if missing:
        sentences.append(f"Not measured: {join_first(missing)}.")
    if column.name == "erank/gap" and filter_causes_gap(winner.group.first):
        sentences.append("The winner's filter alone causes a gap.")
    numbers = [" ".join(sentences)]
    if column.label not in question:
        numbers.insert(0, f"by {column.label}")
    return Verdict(question, winner.label, None, numbers)
