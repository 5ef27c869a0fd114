"""The page that compares all methods."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from rdm_solo.methods.descriptions import FAMILIES, METHODS
from rdm_solo.runs.files import write_atomically
from rdm_solo.runs.groups import mean_std
from rdm_solo.spectra import spearman
from studies import markdown
from studies.intervals import rank_correlation
from studies.methods.figure import draw
from studies.table import Row, series

ACCURACY = "val/knn_acc1"
# Measures of rank that are compared with accuracy, by their names on the page.
RANKS = {
    "erank around the mean": "erank/centred",
    "erank online": "erank/online",
    "erank target": "erank/target",
    "RankMe": "rankme/target",
    "LiDAR": "lidar/target",
    "stable rank": "stable_rank/target",
    "participation ratio": "participation_ratio/target",
}
FEWEST_METHODS = 4  # the interval needs more than 3
PAGE = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
APPENDIX = Path(__file__).with_name("page_appendix.md").read_text(encoding="utf-8")
BESIDE = Path(__file__).with_name("appendix.md")


def write(rows: Sequence[Row], out: Path) -> None:
    """Write the page and its figure, and the appendix beside the table of runs."""
    draw(rows, out.with_suffix(".png"))
    write_atomically(out, page(rows))
    write_atomically(BESIDE, appendix(rows))


def page(rows: Sequence[Row]) -> str:
    """Return the page. Diverged runs are listed but not counted elsewhere."""
    by_method = _by_method([row for row in rows if not row["diverged"]])
    n, correlation = _correlation(by_method, "erank/centred")
    leads, warnings = _shows(by_method)
    text = PAGE.format(
        seeds=len({row["seed"] for row in rows}),
        targets=markdown.table(
            ["family", "method", "target"],
            [[METHODS[n].family, METHODS[n].label, METHODS[n].target] for n in _by_family()],
        ),
        diverged=_diverged(_by_method(rows)),
        absent=_absent(_by_method(rows)),
        numbers=_table(
            by_method,
            {
                "kNN (%)": (ACCURACY, 1),
                "erank around the mean": ("erank/centred", 1),
                "gap": ("erank/gap", 2),
            },
        ),
        leads=leads,
        warnings=warnings,
        correlation=correlation,
        n=n,
    )
    return text.rstrip() + "\n"


def appendix(rows: Sequence[Row]) -> str:
    """Return the appendix: versions, all measures, correlations."""
    by_method = _by_method([row for row in rows if not row["diverged"]])
    return APPENDIX.format(
        runs=len(rows),
        seeds=", ".join(sorted({row["seed"] for row in rows}, key=int)),
        minutes=sum(float(row["seconds"]) for row in rows) / 60,
        processors="; ".join(sorted({row["processor"] for row in rows})),
        versions="; ".join(sorted({row["versions"] for row in rows})),
        accuracy=_table(
            by_method,
            {
                "kNN (%)": (ACCURACY, 1),
                "online classifier (%)": ("val/acc1", 1),
                "variance / second moment": ("feature/spread", 2),
                "positives' distance": ("positive_distance/target", 2),
                "uniformity": ("uniformity/target", 2),
            },
        ),
        ranks=_table(
            by_method,
            {name: (column, 1) for name, column in RANKS.items()} | {"gap": ("erank/gap", 2)},
        ),
        correlations=markdown.table(
            ["measure", "n", "correlation with kNN accuracy"],
            [[name, *_correlation(by_method, column)] for name, column in RANKS.items()],
        ),
    )


def _by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    by_method = {name: [row for row in rows if row["method"] == name] for name in METHODS}
    return {name: runs for name, runs in by_method.items() if runs}


def _by_family() -> list[str]:
    return [n for family in FAMILIES for n in METHODS if METHODS[n].family == family]


def _table(by_method: Mapping[str, Sequence[Row]], columns: Mapping[str, tuple[str, int]]) -> str:
    lines = []
    for name in filter(by_method.__contains__, _by_family()):
        rows = by_method[name]
        cells = [_cell(rows, column, digits) for column, digits in columns.values()]
        about = (METHODS[name].family, METHODS[name].label, rows[0]["dimensions"])
        lines.append([*about, str(len(rows)), *cells])
    return markdown.table(["family", "method", "k", "n", *columns], lines)


def _cell(rows: Sequence[Row], column: str, digits: int) -> str:
    """Return mean ± standard deviation, and n if fewer runs than all have the value."""
    values = _last(rows, column)
    fewer = 0 < len(values) < len(rows)
    return mean_std(values, digits) + (f" (n = {len(values)})" if fewer else "")


def _last(rows: Sequence[Row], column: str) -> list[float]:
    values = [series(row[column])[-1] for row in rows if row[column]]
    return [value for value in values if math.isfinite(value)]


def _correlation(by_method: Mapping[str, Sequence[Row]], column: str) -> tuple[str, str]:
    """Return the number of methods compared and the correlation of a rank with accuracy."""
    pairs = [
        (statistics.fmean(ranks), statistics.fmean(accuracies))
        for name, rows in by_method.items()
        if not (METHODS[name].softmax or METHODS[name].labels or METHODS[name].symmetric)
        and (ranks := _last(rows, column))
        and (accuracies := _last(rows, ACCURACY))
    ]
    if len(pairs) < FEWEST_METHODS:
        return str(len(pairs)), "–"
    rho = float(spearman(*torch.tensor(pairs, dtype=torch.float64).T))
    low, high = rank_correlation(rho, len(pairs))
    return str(len(pairs)), f"{rho:.2f} [{low:.2f}, {high:.2f}]"


def _shows(by_method: Mapping[str, Sequence[Row]]) -> tuple[str, str]:
    """Return one sentence about gaps and one about runs with warnings or notes."""
    leads: list[str] = []
    lags: list[str] = []
    for name, rows in by_method.items():
        gaps = _last(rows, "erank/gap")
        if gaps and not METHODS[name].symmetric:
            if min(gaps) > 0:
                leads.append(METHODS[name].label)
            elif max(gaps) < 0:
                lags.append(METHODS[name].label)
    return (
        f"- At the end the target's rank is above the online rank in every seed of "
        f"{_listed(leads)}, and below it in every seed of {_listed(lags)}. A "
        "sharper softmax, an assignment, a queue or the lag of a momentum network can cause a part "
        "of the gap by itself.",
        f"- Runs with a warning or a note: {_listed(_counted(by_method, 'warnings'))}.",
    )


def _diverged(by_method: Mapping[str, Sequence[Row]]) -> str:
    named = _counted(by_method, "diverged")
    text = f"Diverged runs, which are not counted below: {', '.join(named)}.\n\n"
    return text if named else ""


def _counted(by_method: Mapping[str, Sequence[Row]], column: str) -> list[str]:
    """Return each method with a non-empty cell in that column, with the number of such runs."""
    return [
        f"{METHODS[name].label} ({sum(bool(row[column]) for row in rows)} of {len(rows)})"
        for name, rows in by_method.items()
        if any(row[column] for row in rows)
    ]


def _absent(by_method: Mapping[str, Sequence[Row]]) -> str:
    absent = [method.label for name, method in METHODS.items() if name not in by_method]
    return f"Not in the table yet: {_listed(absent)}." if absent else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "no method"
