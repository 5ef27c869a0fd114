"""The page about the warnings of collapse, and the appendix beside the table of runs."""

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from rdm_solo.collapse.rules import (
    BELOW_UNTRAINED,
    COMPLETE,
    DESTROYED,
    DIMENSIONAL,
    FEW_FEATURES,
    RULES,
    STUCK,
    WRONG_WAY,
)
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.runs.files import write_atomically
from studies import markdown
from studies.alarms import choosing, judging, measures
from studies.alarms.judging import Alarm, Judged, below, gain, package_rules
from studies.alarms.plan import PLAN, TEST, TUNE
from studies.alarms.runs import VERSIONS
from studies.intervals import rate
from studies.table import Row, joined, series

APPENDIX = Path(__file__).with_name("appendix.md")
KINDS = tuple(rule.kind for rule in RULES if rule.kind != WRONG_WAY)


def only(*kinds: str) -> Alarm:
    """Return the package's rules of these kinds alone."""
    return package_rules(without=[kind for kind in KINDS if kind not in kinds])


def smaller(row: Row) -> Row:
    """Return the row with min(spread / 0.1, rank / 2.2) as a column."""
    pairs = zip(series(row["feature/spread"]), series(row["erank/centred"]))
    return {**row, "smaller": joined([min(spread / 0.1, rank / 2.2) for spread, rank in pairs])}


def constant(bound: float) -> Callable[[float], float]:
    return lambda untrained: bound


WARNING = "**destroyed encoder**"
BELOW = "kNN below the untrained network's"
FEATURES = "features: rank around the mean below 2"
STUCK_LOSS = "outputs: stuck loss"
SOFTMAX = "*outputs: rank of the softmax below 1.2*"
LIDAR = "*features: LiDAR below 3*"
OUTPUTS = "outputs: complete or dimensional collapse"
RULE_SETS: dict[str, Alarm] = {
    WARNING: only(DESTROYED),
    BELOW: only(BELOW_UNTRAINED),
    "*kNN below the untrained network's + 2 points*": below("val/knn_acc1", lambda knn: knn + 2),
    FEATURES: only(FEW_FEATURES),
    LIDAR: below("lidar/features", constant(3)),
    "*features: variance share below 0.05*": below("spread/features", constant(0.05)),
    "outputs: complete collapse": only(COMPLETE),
    "outputs: dimensional collapse": only(DIMENSIONAL),
    OUTPUTS: only(COMPLETE, DIMENSIONAL),
    "*outputs: variance below 0.1 or rank below 2.2 for all k*": lambda row: below(
        "smaller", constant(1)
    )(smaller(row)),
    STUCK_LOSS: only(STUCK),
    SOFTMAX: below("erank/projection", constant(1.2)),
    "all of the package's rules": package_rules(),
    "the package's rules that need no labels": package_rules(labels=False),
}
HEAD = ["rule", "failed runs found", "false alarms", "right, if 1 run in 10 fails"]

PAGE = Path(__file__).with_name("page.md").read_text(encoding="utf-8")

CHOOSING = """\
## Choosing a run without labels

{settings} settings with {seeds} seeds on {data}. Regret is how many points of linear accuracy the
chosen run lies below the best run of its pool, averaged over pools of settings and over draws of
one seed per setting. In brackets are 95 % intervals from bootstrapping settings and seeds. A
bootstrapped pool has fewer different settings and thus a smaller regret, so some intervals lie
below their figure. The plan would have offered a measure for choosing if its regret was at most 0.5
points on both data sets and less than that of the three baselines (the first rows). The kNN
accuracy with 50 labels is measured on the same held-out images as the linear accuracy.

{regrets}

Kendall's rank correlation of a measure's last value with linear accuracy, on {data}: over the
seeds of a setting (mean over settings), over the settings of SimSiam, and over the pool "method".

{taus}"""


def _rows_of(name: str, rows: Sequence[Row]) -> Sequence[Row]:
    """Return the runs that a rule applies to: two rules apply only to methods with a softmax."""
    if name not in (STUCK_LOSS, SOFTMAX):
        return rows
    return [row for row in rows if METHODS[row["method"]].softmax]


def rates_row(name: str, runs: Sequence[Judged]) -> list[str]:
    """Return a row of the table of rules."""
    rates, ends = judging.rates(runs), judging.intervals(runs)

    def cell(count: int, total: int, key: str) -> str:
        low, high = ends[key]
        digits = 1 if key == "false" else 0
        share = f"{100 * count / total:.{digits}f} %"
        return f"{count} of {total}: {share} ({low:.{digits}f} to {high:.{digits}f})"

    low, high = ends["precision"]
    return [
        name,
        cell(rates.detected, rates.collapses, "detected"),
        cell(rates.false, rates.healthy, "false"),
        f"{100 * rates.precision:.0f} % ({low:.0f} to {high:.0f})",
    ]


def page(rows: Sequence[Row]) -> str:
    """Return the page, written from the rows of the table."""
    test = [row for row in rows if row["part"] == TEST]
    judged = {name: judging.judge(_rows_of(name, test), rule) for name, rule in RULE_SETS.items()}
    runs = judged[WARNING]
    rates, few = judging.rates(runs), judging.rates(judged[FEATURES])
    lidar = judging.rates(judged[LIDAR])
    dipped = [run for run in judged[BELOW] if not run.collapsed and run.warned is not None]
    flagged = [gain(run.row) for run in runs if run.warned is not None]
    quartiles = statistics.quantiles(flagged, n=4)
    outputs = [gain(run.row) for run in judged[OUTPUTS] if run.warned is not None]
    return PAGE.format(
        runs=len(test),
        margin=PLAN["margin"],
        failed=rates.collapses,
        healthy=rates.healthy,
        diverged=len(test) - len(runs),
        precision=f"{100 * rates.precision:.0f} %",
        false=f"{100 * rates.false / rates.healthy:.1f} %",
        lidar=f"{100 * lidar.detected / lidar.collapses:.0f} %",
        lidar_false=f"{100 * lidar.false / lidar.healthy:.1f} %",
        stayed=sum(_ends_below(run.row) for run in dipped),
        dips=len(dipped),
        share=f"{100 * rates.detected / rates.collapses:.0f} %",
        table=markdown.table(HEAD, [rates_row(name, judged[name]) for name in RULE_SETS]),
        settings=len({run.row["setting"] for run in runs}),
        flagged=f"{quartiles[1]:+.1f}",
        quartiles=f"{quartiles[0]:+.1f} and {quartiles[2]:+.1f}",
        median=round(statistics.median(run.warned for run in runs if run.warned is not None)),
        epochs=PLAN["epochs"],
        large=_found([run for run in runs if run.collapsed and gain(run.row) <= -5]),
        small=_found([run for run in runs if run.collapsed and gain(run.row) > -5]),
        below=_found([run for run in judged[BELOW] if not run.collapsed]),
        outputs=_found([run for run in judged[OUTPUTS] if not run.collapsed]),
        survivors=f"{sum(value >= 5 for value in outputs)} of {len(outputs)}",
        few_found=f"{few.detected} of {few.collapses}",
        few_false=f"{few.false} of {few.healthy}",
        tuned=len([row for row in rows if row["part"] == TUNE]),
        methods=len(PLAN["methods"]),
    )


def _ends_below(row: Row) -> bool:
    """Return whether the last kNN accuracy is below the untrained network's."""
    first, *_, last = (value for value in series(row["val/knn_acc1"]) if not math.isnan(value))
    return last < first


def _found(runs: Sequence[Judged]) -> str:
    """Return how many of these runs met the rule, such as "3 of 5"."""
    return f"{sum(run.warned is not None for run in runs)} of {len(runs)}"


def appendix(rows: Sequence[Row]) -> str:
    """Return the appendix: rates by group, every mistake of the warning, choosing, versions."""
    runs = judging.judge([row for row in rows if row["part"] == TEST], RULE_SETS[WARNING])
    sections = ["# Warnings of a destroyed encoder: rates by group, and every mistake"]
    for title, key in (
        ("data set", lambda run: run.row["data"]),
        ("method", lambda run: run.row["method"]),
        ("kind of setting", lambda run: run.row["setting"].split(",")[0]),
    ):
        groups = sorted({key(run) for run in runs})
        table = []
        for group in groups:
            rates = judging.rates([run for run in runs if key(run) == group])
            found = rate(rates.detected, rates.collapses)
            table.append([group, found, rate(rates.false, rates.healthy)])
        head = [title, "failed runs found", "false alarms"]
        sections.append(f"## By {title}\n\n{markdown.table(head, table)}")
    sections.append(
        'A setting named "healthy" has nothing that should make a run fail. A run can still fail.'
    )
    mistakes = [run for run in runs if run.collapsed == (run.warned is None)]
    lines = [_mistake(run) for run in sorted(mistakes, key=lambda run: gain(run.row))]
    sections.append("## Every mistake\n\n" + "\n".join(lines))
    sections.append(
        "## Kendall's rank correlation with linear accuracy\n\nOf the last value of each measure, "
        f"over the runs of all methods, on {', '.join(PLAN['data'])}.\n\n"
        + measures.table([row for row in rows if row["part"] == TEST])
    )
    sections.append(
        CHOOSING.format(
            seeds=PLAN["seeds"],
            settings=len(PLAN["choose"]),
            data=" and ".join(choosing.DATA),
            regrets=choosing.regret_tables(rows),
            taus=choosing.tau_table(rows),
        )
    )
    lines = VERSIONS.read_text().splitlines()
    versions = sorted({lines[int(row["versions"]) - 1] for row in rows})
    sections.append("## Versions\n\n" + "\n".join(f"- {text}" for text in versions))
    return "\n\n".join(sections) + "\n"


def _mistake(run: Judged) -> str:
    kind = "missed" if run.collapsed else f"false alarm in epoch {run.warned}"
    data, setting = run.row["data"], run.row["setting"]
    return f"- {kind}: {data}, {setting}; linear accuracy {gain(run.row):+.1f} points"


def write(rows: Sequence[Row], out: Path) -> None:
    """Write the page, and the appendix beside the table of runs."""
    write_atomically(out, page(rows))
    write_atomically(APPENDIX, appendix(rows))
