"""Answer the trial's questions from its runs, by the rules of ``plan.yaml``."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations, compress
from typing import Any

import numpy as np
import pandas as pd

from studies.intervals import difference, holm
from studies.mechanism.plan import CELL, DATA, PLAN
from studies.mechanism.runs import with_seeds
from studies.study import numbers

VARIANTS = ["textures", "angles"]  # a verdict needs both
OPEN = "undecided"
MATCHED = ["truncation", "rotated", "rotated anew", "noise"]
WITHOUT_GAP = [("both", "identity"), ("both, none stopped", "identity, none stopped")]
METHODS = ("SimSiam", "BYOL")
FILTERS = {"learnable": "learnable", "-0.3": "σ^-0.3", "-0.5": "σ^-0.5", "-1": "σ^-1"}
MARGIN = PLAN["margin"]
TOLERANCE = 0.1  # gaps that differ by less count as equal

Tests = list[dict[str, Any]]
Answer = tuple[str, pd.DataFrame]  # a sentence, and the tests that it follows from


def runs_of(table: pd.DataFrame, seeds: Sequence[int]) -> pd.DataFrame:
    """Return what the runs with these seeds measured, by setting, data set, length and seed."""
    counted = with_seeds(table, seeds)
    in_order = pd.CategoricalDtype(list(DATA), ordered=True)
    index = counted[[*CELL, "seed"]].astype({"data": in_order, "epochs": int, "seed": int})
    measured = numbers(counted.loc[:, "linear":"slope"])
    return measured.set_index(pd.MultiIndex.from_frame(index)).sort_index()


def pairs(runs: pd.DataFrame, column: str, first: str, other: str) -> pd.Series:
    """Return differences of two settings by data set, length and seed."""
    return (runs.loc[first, column] - runs.loc[other, column]).dropna()


def compare(
    runs: pd.DataFrame, settings: Iterable[Sequence[str]], column: str, zero: float = 0.0
) -> Tests:
    """Test whether pairs of settings differ by ``zero``, on each data set and length of both."""
    tests = []
    for first, other in settings:
        differences = pairs(runs, column, first, other)
        for (data, epochs), sample in differences.groupby(["data", "epochs"]):
            about = {"first": first, "other": other, "data": data, "epochs": epochs}
            tests.append({**about, "column": column, **difference(sample, zero)})
    return tests


def pooled(runs: pd.DataFrame, settings: Iterable[Sequence[str]], column: str) -> dict[str, float]:
    """Test whether pairs of settings differ on average over both variants.

    A seed has one value, because its differences are not independent. No verdict uses this test.
    """
    differences = pd.concat([pairs(runs, column, *names) for names in settings])
    on_variants = differences[differences.index.isin(VARIANTS, level="data")]
    return difference(on_variants.groupby("seed").mean())


def judge(tests: Tests) -> pd.DataFrame:
    """Correct p after Holm over all tests, and add what each of them says.

    ``sign`` is 1 or -1 if the mean is significantly above or below the tested value, else 0.
    ``outcome`` is 1 if a setting works against a margin, -1 if it fails, else 0.
    """
    judged = pd.DataFrame(tests)
    judged["p"] = holm(judged["p"])
    judged["sign"] = np.sign(judged["mean"] - judged["zero"]) * (judged["p"] < PLAN["alpha"])
    fails = (judged["high"] < judged["zero"]) & (judged["sign"] <= 0)
    judged["outcome"] = judged["sign"].clip(lower=0) - fails
    return judged


def agreed(tests: pd.DataFrame, result: str) -> pd.Series:
    """Return a result on which both variants agree, else 0, by column and pair of settings."""
    variants = tests[tests["data"].isin(VARIANTS)]
    results = variants.groupby(["column", "first", "other"], sort=False)[result]
    return results.first().where(results.nunique() == 1, 0)


def rows_of(question: str) -> list[list[str]]:
    """Return the two settings of each row in the question's first panel."""
    panel = PLAN["questions"][question]["panels"][0]
    return list(panel["rows"].values())


def sufficient(runs: pd.DataFrame) -> Answer:
    """Answer whether a gap is sufficient; only arms whose gap is large enough decide."""
    tests = judge(compare(runs, rows_of("sufficient"), "linear", MARGIN))
    gaps = runs["gap"].groupby(["setting", "data"]).mean().unstack()[VARIANTS]
    is_matched = (gaps >= gaps.loc["power"] / 2).all(axis=1)
    matched = [arm for arm in MATCHED if is_matched[arm]]
    outcomes = set(agreed(tests, "outcome")["linear"][matched])
    if -1 in outcomes:
        return "a gap does not suffice.", tests
    if outcomes == {1}:
        return "a gap suffices.", tests
    return f"{OPEN}.", tests


def necessary(runs: pd.DataFrame) -> Answer:
    """Answer whether a gap is necessary, by the accuracy and by the rank.

    The settings without a gap are those whose branches have equal outputs.
    """
    by_accuracy = compare(runs, WITHOUT_GAP, "linear", MARGIN)
    by_rank = compare(runs, WITHOUT_GAP, "erank", PLAN["margin_rank"])
    tests = judge(by_accuracy + by_rank)
    answers = []
    for column in ("linear", "erank"):
        outcomes = set(agreed(tests, "outcome")[column])
        if outcomes == {-1}:
            answers.append("a gap is necessary")
        elif 1 in outcomes:
            answers.append("a gap is not necessary")
        else:
            answers.append(OPEN)
    return "by accuracy {}; by the projections' rank {}.".format(*answers), tests


def rate(runs: pd.DataFrame) -> Answer:
    """Answer whether the rates differ between the losses, and whether that changes the rank.

    The plan's rule cannot tell the rate from the gap if the gaps of the losses differ as well.
    """
    losses = rows_of("rate")
    tests = judge(compare(runs, losses, "slope") + compare(runs, losses, "erank"))
    signs = agreed(tests, "sign")
    answers = []
    if (signs["slope"] == 1).all():
        answers.append("the loss changes the rates")
    # The ranks differ in the same direction for at least two of the three exponents.
    if max((signs["erank"] == 1).sum(), (signs["erank"] == -1).sum()) >= 2:
        answers.append("rate matters beyond the gap")
    answer = " and ".join(answers) or "no difference beyond the gap was found"
    gaps = runs["gap"].groupby(["setting", "data"]).mean().unstack()[VARIANTS]
    ratios = [(gaps.loc[iso] / gaps.loc[mse]).max() for mse, iso in losses]
    if max(ratios) > 1 + TOLERANCE:
        answer += f"; but the gaps differ as well, up to {max(ratios):.1f} times, so this is open"
    return f"by the plan's rule, {answer}.", tests


def spectrum(runs: pd.DataFrame) -> Answer:
    """Answer at which batch sizes a running spectrum is better or worse than the batch's."""
    tests = judge(compare(runs, rows_of("spectrum"), "linear"))
    answers = []
    for (name, _), sign in agreed(tests, "sign")["linear"].items():
        if sign:
            word = "better" if sign > 0 else "worse"
            answers.append(f"{name.replace(', ', ': ')} is {word}")
    answer = "; ".join(answers) or "no difference was found"
    return f"by the plan's rule, {answer}.", tests


def schedule(runs: pd.DataFrame) -> Answer:
    """Answer how target σ^-0.5 compares with the learned predictor of each method."""
    settings = [(f"{method} -0.5", f"{method} learnable") for method in METHODS]
    tests = compare(runs, settings, "linear") + compare(runs, settings, "linear", -MARGIN)
    for fixed, learned in settings:
        # The slope of the advantage over log(epochs), for each seed.
        advantages = pairs(runs, "linear", fixed, learned)["digits"].unstack("epochs")
        slopes = np.polyfit(np.log(advantages.columns), advantages.T, 1)[0]
        about = {"first": fixed, "other": "slope", "data": "digits", "epochs": "all"}
        tests.append({**about, "column": "linear", **difference(slopes)})
    judged = judge(tests)
    by_zero = judged.set_index(["first", "zero", "data", "epochs"])["sign"]
    changes = {1: "its advantage grows", 0: "no change was shown", -1: "its advantage shrinks"}
    sentences = []
    for method, (fixed, _) in zip(METHODS, settings):
        signs = by_zero[fixed]
        change = changes[signs.pop((0.0, "digits", "all"))]
        places = defaultdict(list)
        for (data, epochs), sign in signs[0.0].items():
            word = OPEN
            if sign > 0:
                word = "better"
            elif signs[-MARGIN, data, epochs] > 0:
                word = "not worse"
            elif sign < 0:
                word = "worse"
            places[f"{word} on {data}"].append(str(epochs))
        listed = ", ".join(f"{place} ({', '.join(n)} epochs)" for place, n in places.items())
        sentences.append(f"{method}: σ^-0.5 is {listed}. On digits {change} with longer training.")
    return " ".join(sentences), judged


def recommended(runs: pd.DataFrame) -> Answer:
    """Return for each method the filter that beats all others on both variants.

    If there is none, return the filters within the margin of the best mean on both.
    """
    on_variants = runs[runs.index.isin(VARIANTS, level="data")]
    means = on_variants["linear"].groupby(["setting", "data"]).mean().unstack()
    settings = {method: [f"{method} {name}" for name in FILTERS] for method in METHODS}
    tests = []
    for of_method in settings.values():
        tests += compare(on_variants, combinations(of_method, 2), "linear")
    judged = judge(tests)
    signs = agreed(judged, "sign")["linear"]
    wins = (pd.concat([signs, -signs.swaplevel()]) > 0).groupby(level=0).sum()
    sentences = []
    for method, of_method in settings.items():
        best = wins[of_method] == len(of_method) - 1
        close = (means.loc[of_method] >= means.loc[of_method].max() - MARGIN).all(axis=1)
        if best.any():
            sentence = f"use {in_symbols(best)}."
        else:
            sentence = (
                "none is significantly best; within a point of the best mean on both sets: "
                f"{in_symbols(close)}."
            )
        sentences.append(f"{method}: {sentence}")
    return " ".join(sentences), judged


def in_symbols(chosen: pd.Series) -> str:
    """Return the symbols of the chosen filters."""
    return ", ".join(compress(FILTERS.values(), chosen)) or "none"


# In the order of the page.
RULES = {
    "sufficient": sufficient,
    "necessary": necessary,
    "rate": rate,
    "schedule": schedule,
    "spectrum": spectrum,
    "recommended": recommended,
}
