"""Answer the trial's questions from its runs, by the rules of ``plan.yaml``."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd  # type: ignore[import-untyped, unused-ignore]

from studies.intervals import difference, holm
from studies.mechanism.plan import CELL, DATA, PLAN
from studies.study import numbers

VARIANTS = ["textures", "angles"]  # a verdict needs both
OPEN = "undecided"
MATCHED = ["truncation", "rotated", "rotated anew", "noise"]
WITHOUT_GAP = [("both", "identity"), ("both, none stopped", "identity, none stopped")]
METHODS, FILTERS = ("SimSiam", "BYOL"), ("learnable", "-0.3", "-0.5", "-1")

Answer = tuple[str, pd.DataFrame]  # a sentence, and the tests that it follows from


def runs_of(table: pd.DataFrame, seeds: Collection[int]) -> pd.DataFrame:
    """Return what the runs with these seeds measured, by setting, data set, length and seed."""
    counted = table[table["seed"].isin(list(map(str, seeds)))]
    in_order = pd.CategoricalDtype(list(DATA), ordered=True)
    index = counted[[*CELL, "seed"]].astype({"data": in_order, "epochs": int, "seed": int})
    measured = numbers(counted.loc[:, "linear":"slope"])
    return measured.set_index(pd.MultiIndex.from_frame(index)).sort_index()


def pairs(runs: pd.DataFrame, column: str, first: str, other: str) -> pd.Series:
    """Return differences of two settings by data set, length and seed."""
    return (runs.loc[first, column] - runs.loc[other, column]).dropna()


def compare(
    runs: pd.DataFrame, settings: Iterable[Sequence[str]], columns: Mapping[str, float]
) -> pd.DataFrame:
    """Test pairs of settings in each column on each data set and length that both have.

    ``columns`` has the value that differences in a column are tested against.
    """
    tests = []
    for column, against in columns.items():
        for first, other in settings:
            samples = pairs(runs, column, first, other).groupby(["data", "epochs"])
            for (data, epochs), sample in samples:
                about = {"first": first, "other": other, "data": data, "epochs": epochs}
                test = difference(sample.to_numpy(), against)
                tests.append({**about, "column": column, **test._asdict()})
    return pd.DataFrame(tests)


def judge(tests: pd.DataFrame) -> pd.DataFrame:
    """Correct p after Holm over all tests, and add what each of them says.

    ``sign`` is 1 or -1 if the mean is significantly above or below the tested value, else 0.
    ``outcome`` is 1 if a setting works against a margin, -1 if it fails, else 0.
    """
    tests = tests.assign(p=holm(tests["p"]))
    tests["sign"] = np.sign(tests["mean"] - tests["zero"]) * (tests["p"] < PLAN["alpha"])
    fails = (tests["high"] < tests["zero"]) & (tests["sign"] <= 0)
    tests["outcome"] = tests["sign"].clip(lower=0) - fails
    return tests


def agreed(tests: pd.DataFrame, result: str) -> pd.Series:
    """Return a result on which both variants agree, else 0, by column and pair of settings."""
    variants = tests[tests["data"].isin(VARIANTS)]
    results = variants.groupby(["column", "first", "other"], sort=False)[result]
    return results.first().where(results.nunique() == 1, 0)


def rows_of(question: str) -> dict[str, list[str]]:
    """Return the two settings of each row in the question's first panel."""
    rows: dict[str, list[str]] = PLAN["questions"][question]["panels"][0]["rows"]
    return rows


def sufficient(runs: pd.DataFrame) -> Answer:
    """Answer whether a gap is sufficient; only arms whose gap is large enough decide."""
    arms = rows_of("sufficient").values()
    tests = judge(compare(runs, arms, {"linear": PLAN["margin"]}))
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
    margins = {"linear": PLAN["margin"], "erank": PLAN["margin_rank"]}
    tests = judge(compare(runs, WITHOUT_GAP, margins))
    answers = {}
    for column in margins:
        outcomes = set(agreed(tests, "outcome")[column])
        answers[column] = OPEN
        if outcomes == {-1}:
            answers[column] = "a gap is necessary"
        elif 1 in outcomes:
            answers[column] = "a gap is not necessary"
    return "{linear} by accuracy, {erank} by rank.".format(**answers), tests


def rate(runs: pd.DataFrame) -> Answer:
    """Answer whether the rates differ between the losses, and whether that changes the rank."""
    tests = judge(compare(runs, rows_of("rate").values(), {"slope": 0.0, "erank": 0.0}))
    signs = agreed(tests, "sign")
    answers = []
    if (signs["slope"] == 1).all():
        answers.append("the loss changes the rates")
    if signs["erank"].value_counts().drop(0, errors="ignore").max() >= 2:
        answers.append("rate matters beyond the gap")
    answer = " and ".join(answers) or "no difference beyond the gap was found"
    return f"by the plan's rule, {answer}.", tests


def spectrum(runs: pd.DataFrame) -> Answer:
    """Answer at which batch sizes a running spectrum is better or worse than the batch's."""
    tests = judge(compare(runs, rows_of("spectrum").values(), {"linear": 0.0}))
    answers = []
    for (name, _), sign in agreed(tests, "sign")["linear"].items():
        if sign:
            word = "better" if sign > 0 else "worse"
            answers.append(f"{name.replace(', ', ': ')} is {word}")
    answer = "; ".join(answers) or "no difference was found"
    return f"{answer}.", tests


def schedule(runs: pd.DataFrame) -> Answer:
    """Answer how target σ^-0.5 compares with the learned predictor of each method."""
    settings = [(f"{method} -0.5", f"{method} learnable") for method in METHODS]
    tests = [compare(runs, settings, {"linear": bound}) for bound in (0.0, -PLAN["margin"])]
    lengths = PLAN["epochs"]["schedule"]["digits"]
    for fixed, learned in settings:
        # The slope of the advantage over log(epochs), for each seed.
        advantages = pairs(runs, "linear", fixed, learned)["digits"].unstack("epochs")
        slopes = np.polyfit(np.log(lengths), advantages[lengths].T, 1)[0]
        about = {"first": fixed, "other": "slope", "data": "digits", "epochs": "all"}
        test = difference(slopes)._asdict()
        tests.append(pd.DataFrame([{**about, "column": "linear", **test}]))
    judged = judge(pd.concat(tests, ignore_index=True))
    sentences = []
    for method in METHODS:
        is_method = judged["first"] == f"{method} -0.5"
        signs = judged[is_method].set_index(["zero", "data", "epochs"])["sign"]
        above, margin = signs[0.0], signs[-PLAN["margin"]]
        places: dict[str, list[str]] = {}
        for (data, epochs), sign in above.items():
            if epochs == "all":
                continue
            word = {1: "superior", 0: OPEN, -1: "inferior"}[sign]
            if sign <= 0 and margin[data, epochs] > 0:
                word = "not inferior"
            places.setdefault(f"{word} on {data}", []).append(str(epochs))
        listed = ", ".join(f"{place} ({', '.join(n)})" for place, n in places.items())
        changes = {1: "its advantage grows", 0: "no change was shown", -1: "its advantage shrinks"}
        change = changes[above["digits", "all"]]
        sentences.append(f"{method}: σ^-0.5 is {listed}. On digits {change} with longer training.")
    return " ".join(sentences), judged


def recommended(runs: pd.DataFrame) -> Answer:
    """Return for each method the filter that beats all others on both variants.

    If there is none, return the filters within the margin of the best mean on both.
    """
    on_variants = runs[runs.index.isin(VARIANTS, level="data")]
    settings = []
    for method in METHODS:
        settings += combinations([f"{method} {name}" for name in FILTERS], 2)
    tests = judge(compare(on_variants, settings, {"linear": 0.0}))
    wins: Counter[str] = Counter()
    for (first, other), sign in agreed(tests, "sign")["linear"].items():
        wins[first] += sign > 0
        wins[other] += sign < 0
    means = on_variants["linear"].groupby(["setting", "data"]).mean().unstack()
    sentences = []
    for method in METHODS:
        names = [f"{method} {name}" for name in FILTERS]
        best = [name for name in names if wins[name] == len(names) - 1]
        if best:
            sentences.append(f"{method}: use {in_symbols(best)}.")
            continue
        of_method = means.loc[names]
        bounds = of_method.max() - PLAN["margin"]
        close = of_method[(of_method >= bounds).all(axis=1)]
        sentences.append(
            f"{method}: none is significantly best; highest mean on both (within a point): "
            f"{in_symbols(close.index) or 'none'}."
        )
    return " ".join(sentences), tests


def in_symbols(settings: Iterable[str]) -> str:
    """Return the filters of settings, such as "σ^-0.5, learnable"."""
    filters = [setting.split()[1] for setting in settings]
    return ", ".join(f"σ^{name}".replace("σ^learnable", "learnable") for name in filters)


# In the order of the page.
RULES: dict[str, Callable[[pd.DataFrame], Answer]] = {
    "sufficient": sufficient,
    "necessary": necessary,
    "rate": rate,
    "schedule": schedule,
    "spectrum": spectrum,
    "recommended": recommended,
}
