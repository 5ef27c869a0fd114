"""Answer the page's first questions: what was compared, is it alive, and which is the best?"""

import statistics
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from rdm_solo.ground.errors import join_first
from rdm_solo.report.judged import ACCURACIES, Setting
from rdm_solo.report.verdicts import Verdict, before_training
from rdm_solo.runs.columns import COLUMNS, LINEAR, Column
from rdm_solo.runs.groups import curve_of, latest, mean_std

PIXELS = "val/knn_pixels"  # kNN of raw pixels, in the row of the untrained network
NAMED = 3  # settings that a card names


def title(settings: Sequence[Setting]) -> str:
    """Return what was compared, such as ``SimSiam, target filter σ^p, p = -1 … -0.3, 4 runs``."""
    first = settings[0]
    words = [first.label] if len(settings) == 1 else _compared(settings)
    runs = sum(len(setting.judged_runs) for setting in settings)
    if runs > 1:
        words.append(f"{runs} runs")
    elif not first.group.first.watched:  # a loop need not pass its seed
        words.append(f"seed {first.group.first.seed}")
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
    if len(settings) > 1:
        return [overview(settings), *rankings(settings)]
    setting = settings[0]
    if not setting.group.first.watched:
        return [setting.health, accuracy(setting), setting.lead, setting.low_pass]
    # Whoever watches their own loop asks about the features, not about the paper's mechanism.
    answers = [setting.health, change(setting), loss(setting)]
    if any(setting.last(column.name) for column in ACCURACIES):
        answers.append(accuracy(setting))
    return answers


def change(setting: Setting) -> Verdict:
    """Return how the rank of the features changed, or of the outputs if they were not measured."""
    runs = setting.counted
    question = "How did the features change?"
    names = ["erank/features_centred", "spread/features"]
    dimensions = runs[0].features_dimensions
    facts = []
    if not setting.last(names[0]):
        question = "How did the outputs change?"
        names = ["erank/centred", "feature/spread"]
        dimensions = runs[0].dimensions
        facts = ["The features were not measured: Watch(..., backbone=NAME) measures them."]
    lines = []
    for name in names:
        curve = curve_of(runs, name)
        if len(curve.x):
            column = COLUMNS[name]
            first, last = (f"{mean:.{column.digits}f}" for mean in curve.mean[[0, -1]])
            lines.append((column.label, f"{first} → {last}", curve.x))
    if not lines:
        return Verdict(question, "not measured", None, facts)
    (label, values, epochs), *others = lines
    answer = f"rank {values}"
    if dimensions:
        answer += f" of {dimensions}"
    numbers = [f"{label}, epoch {epochs[0]} to {epochs[-1]}"]
    for label, values, _ in others:
        numbers.append(f"{label}: {values}")
    return Verdict(question, answer, None, [*numbers, *facts])


def loss(setting: Setting) -> Verdict:
    """Return whether the training loss is lower at the end than in the first epoch."""
    question = "Is the loss falling?"
    curve = curve_of(setting.counted, "train/loss")
    if not len(curve.x):
        return Verdict(question, "not measured", None, ["step() was called without a loss"])
    first, last = curve.mean[0], curve.mean[-1]
    answer = "yes" if last < first else "no"
    numbers = ["The loss alone does not reveal a collapse."]
    lowest = int(curve.mean.argmin())
    if curve.mean[lowest] < last:
        text = f"lowest {curve.mean[lowest]:.3f} in epoch {curve.x[lowest]}"
        numbers.insert(0, text)
    return Verdict(question, f"{answer}: {first:.3f} → {last:.3f}", None, numbers)


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
        pixels = before_training(setting.counted, PIXELS)
        if pixels and column.name == "val/knn_acc1":
            facts.append(f"raw pixels {mean_std(pixels, column.digits)} %")
        lines.append(facts)
    if not lines:
        lines.append(["not measured", "no labels, or switched off"])
    answer, *numbers = lines[0]
    for facts in lines[1:]:
        numbers.append("; ".join(facts))
    return Verdict("How good is it?", answer, None, numbers)


def overview(settings: Sequence[Setting]) -> Verdict:
    """Return in how many of several settings no rule was met, and what is wrong with the others."""
    healthy, unfinished = 0, 0
    failing, undecided = [], []
    remedies: dict[str, list[str]] = defaultdict(list)  # the settings of each remedy
    epochs = set()
    for setting in settings:
        epochs.add(setting.counted[0].epochs)
        health = setting.health
        if health.good:
            healthy += 1
        elif health.level in ("bad", "suspect"):
            words = health.failing or [health.answer]
            failing.append(f"{setting.label}: {'; '.join(words)}")
            remedies[health.remedy].append(setting.label)
        else:
            undecided.append(f"{setting.label}: {health.answer}")
        if not setting.finished and not setting.group.diverged:
            unfinished += 1
    numbers = []
    if len(failing) > NAMED:
        numbers.append(f"{len(failing) - NAMED} more settings are below a bound or diverged")
    if undecided:
        numbers.append(join_first(undecided))
    if unfinished:
        numbers.append(f"{unfinished} of {len(settings)} settings have not finished")
    if len(epochs) > 1:
        numbers.append(
            "The settings have unequal numbers of epochs, which favours the longer runs."
        )
    good = None
    if healthy == len(settings) and not unfinished:
        good = True
    elif all(setting.health.level == "bad" for setting in settings):
        good = False
    above = len(settings) - len(failing)
    answer = f"no rule of collapse met in {above} of {len(settings)} settings"
    if undecided:
        answer += f", {len(undecided)} of them undecided"
    remedies.pop("", None)
    advice = [f"{join_first(labels)}: {text}" for text, labels in remedies.items()]
    return Verdict(
        "Are they alive?",
        answer,
        good,
        numbers,
        suspect=bool(failing),
        failing=failing[:NAMED],
        remedy=" ".join(advice[:NAMED]),
    )


def rankings(settings: Sequence[Setting]) -> list[Verdict]:
    """Return each data set's most accurate healthy setting."""
    by_dataset: dict[str, list[Setting]] = {}
    for setting in settings:
        healthy = by_dataset.setdefault(setting.group.first.dataset, [])
        if setting.ranked:
            healthy.append(setting)
    verdicts = []
    for dataset, healthy in by_dataset.items():
        question = "Which is the most accurate"
        if len(by_dataset) > 1:
            question += f" on {dataset}"
        column = compared_accuracy(healthy)
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

    They are within one standard deviation: the larger one of the two settings. No setting is named
    if the best one has a single seed and another one has as well.
    """

    def seeds(setting: Setting) -> Sequence[float]:
        return setting.last(column.name)

    def mean(setting: Setting) -> float:
        return statistics.fmean(seeds(setting))

    winner, *others = sorted(filter(seeds, settings), key=mean, reverse=True)
    tied, single = [], []
    for other in others:
        deviations = []
        for values in (seeds(winner), seeds(other)):
            if len(values) > 1:
                deviations.append(statistics.stdev(values))
        if not deviations:
            single.append(other)
        elif mean(winner) - mean(other) <= max(deviations):
            tied.append(other.label)
    answer = winner.label
    sentences = []
    if single:
        means = [f"{mean(each):.{column.digits}f}" for each in (single[-1], winner)]
        answer = f"undecided (one seed each): {' to '.join(dict.fromkeys(means))} %"
        names = [each.label for each in (winner, *single)]
        sentences.append(f"Several seeds would tell them apart: {join_first(names)}.")
    elif not others:
        sentences.append("No other healthy setting was measured.")
    elif not tied:
        sentences.append("No other setting is within one standard deviation.")
    if tied:
        sentences.append(f"Within one standard deviation: {join_first(tied)}.")
    missing = [setting.label for setting in settings if not seeds(setting)]
    if missing:
        sentences.append(f"Not measured: {join_first(missing)}.")
    metric = f"by {column.label}"
    if not single:
        metric += f": {mean_std(seeds(winner), column.digits)} %"
    return Verdict(question, answer, None, [metric, " ".join(sentences)])
