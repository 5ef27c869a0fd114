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
# The interval needs more than 3 methods.
FEWEST_METHODS = 4

TEXT = """\
# All methods side by side

`python -m studies.methods` trains every method of the installed solo-learn on the embedded digits,
each with its own recipe, and writes this page. Each run adds a row to [methods.csv](methods.csv)
when it finishes. Repeated, the command trains only what is missing, and another version of
solo-learn adds its own methods.

{runs} runs; seeds {seeds}; {seconds:.0f} minutes in total on a shared machine ({processors}).
Versions: {versions}.
{diverged}
![Effective rank around the mean, and kNN accuracy, over the epochs](methods.png)

*Line: mean over the seeds. Band: minimum to maximum.*

## What each loss compares

The online output is the predictor's output or, without a predictor, the projection; for SwAV, DINO
and DeepCluster v2 it is the softmax over prototypes. The loss compares it with the target:

{targets}

Spectra pool all views, and row i of the online and target outputs comes from the same view. Only
C₊, LiDAR and the positives' distance pair a view with the other one. For methods whose target is
drawn from a queue (NNSiam, NNBYOL, NNCLR, All4One), row i of the target is the stored output
nearest to view i's. The queue stores outputs as in solo-learn. A target filter is applied to the
batch of nearest outputs, which is then scaled to unit length: in a queue of filtered outputs, a
row's filter would depend on an old batch, and neighbours would differ from solo-learn's. In the
first epochs the queue still holds its random initial rows, which raise the target's rank.
solo-learn 1.0.2 projects one view in each branch of ReSSL, so LiDAR, C₊ and the positives' distance
are not measured there.

{absent}

## The numbers

Last epoch, mean ± standard deviation over n seeds; a cell with fewer values states its n. k is the
dimension of the projection. For SwAV, DINO and DeepCluster v2, all ranks but the one around the
mean, the positives' distance and uniformity are computed on a softmax over 64 prototypes. Their
ranks can reach 64; do not compare them with the other methods.

{accuracy}

{ranks}

## What this shows, and what it does not

{shows}

Do methods with a higher rank have a higher kNN accuracy here? Spearman's rank correlation over n
methods (means over seeds), without methods whose target is a softmax, without the symmetric
baselines and without methods that see labels. 1 means the same order, -1 the reverse. The interval
covers 95 % (Bonett and Wright, Psychometrika 2000) and treats methods as independent, although some
share their loss.

{correlations}

There is one data set and one recipe for each method, chosen by hand (W-MSE's k is smaller), so
these numbers describe these runs only.

- The digits are 1,437 small images, on which raw pixels reach a kNN accuracy that few methods pass
  ([the evidence](evidence.md) has both numbers): accuracies here say whether a method works, not
  which one is better. The recipes were tuned by hand on another seed.
- The projection's rank is not the backbone's. It depends on the projector's last layers, on k and
  on the batch. Methods keep solo-learn's projectors, with or without batch norm at the end.
- Within one method a very low rank indicates collapse, which is what the warnings are for
  ([how often they are right](collapse.md)).
- Ranks are computed on outputs of training steps, over augmented views, uncentred unless the table
  says otherwise ([what each measure means](measures.md)).
"""


def write(rows: Sequence[Row], out: Path) -> None:
    """Write the page and, beside it, its figure."""
    draw(rows, out.with_suffix(".png"))
    write_atomically(out, page(rows))


def page(rows: Sequence[Row]) -> str:
    """Return the page. Diverged runs are named and count in nothing else."""
    by_method = _by_method([row for row in rows if not row["diverged"]])
    names = [n for family in FAMILIES for n in by_method if METHODS[n].family == family]
    return TEXT.format(
        runs=len(rows),
        seeds=", ".join(sorted({row["seed"] for row in rows}, key=int)),
        seconds=sum(float(row["seconds"]) for row in rows) / 60,
        processors="; ".join(sorted({row["processor"] for row in rows})),
        versions="; ".join(sorted({row["versions"] for row in rows})),
        targets=markdown.table(
            ["family", "method", "target"],
            [[METHODS[n].family, METHODS[n].label, METHODS[n].target] for n in _by_family()],
        ),
        diverged=_diverged(_by_method(rows)),
        absent=_absent(_by_method(rows)),
        accuracy=_table(
            by_method,
            names,
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
            names,
            {name: (column, 1) for name, column in RANKS.items()} | {"gap": ("erank/gap", 2)},
        ),
        shows=_shows(by_method),
        correlations=_correlations(by_method),
    )


def _by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    by_method = {name: [row for row in rows if row["method"] == name] for name in METHODS}
    return {name: runs for name, runs in by_method.items() if runs}


def _by_family() -> list[str]:
    return [n for family in FAMILIES for n in METHODS if METHODS[n].family == family]


def _table(
    by_method: Mapping[str, Sequence[Row]],
    names: Sequence[str],
    columns: Mapping[str, tuple[str, int]],
) -> str:
    lines = []
    for name in names:
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


def _correlations(by_method: Mapping[str, Sequence[Row]]) -> str:
    """Return a table with a line for each measure of rank."""
    compared = [
        rows
        for name, rows in by_method.items()
        if not (METHODS[name].softmax or METHODS[name].labels or METHODS[name].symmetric)
    ]
    lines = []
    for measure, column in RANKS.items():
        pairs = [
            (statistics.fmean(ranks), statistics.fmean(accuracies))
            for rows in compared
            if (ranks := _last(rows, column)) and (accuracies := _last(rows, ACCURACY))
        ]
        correlation = "–"
        if len(pairs) >= FEWEST_METHODS:
            ranks_and_accuracies = torch.tensor(pairs, dtype=torch.float64)
            rho = float(spearman(*ranks_and_accuracies.T))
            low, high = rank_correlation(rho, len(pairs))
            correlation = f"{rho:.2f} [{low:.2f}, {high:.2f}]"
        lines.append([measure, str(len(pairs)), correlation])
    return markdown.table(["measure", "n", "correlation with kNN accuracy"], lines)


def _shows(by_method: Mapping[str, Sequence[Row]]) -> str:
    """Return what the table shows about ranks, gaps and warnings."""
    lines = []
    for family in FAMILIES:
        ranks = {
            METHODS[name].label: statistics.fmean(values)
            for name, rows in by_method.items()
            if METHODS[name].family == family and (values := _last(rows, "erank/centred"))
        }
        if ranks:
            low, high = min(ranks, key=ranks.__getitem__), max(ranks, key=ranks.__getitem__)
            lines.append(
                f"- {family}: effective rank around the mean from {ranks[low]:.1f} ({low}) to "
                f"{ranks[high]:.1f} ({high})."
            )
    leads: list[str] = []
    lags: list[str] = []
    for name, rows in by_method.items():
        gaps = _last(rows, "erank/gap")
        if gaps and not METHODS[name].symmetric:
            if min(gaps) > 0:
                leads.append(METHODS[name].label)
            elif max(gaps) < 0:
                lags.append(METHODS[name].label)
    lines.append(
        f"- At the end the target's rank is above the online one's in every seed of "
        f"{_listed(leads)}, and below it in every seed of {_listed(lags)}. A "
        "sharper softmax, an assignment, a queue or a momentum network's lag can cause a part of "
        "the gap by itself."
    )
    lines.append(f"- Runs with warnings: {_listed(_counted(by_method, 'warnings'))}.")
    return "\n".join(lines)


def _diverged(by_method: Mapping[str, Sequence[Row]]) -> str:
    named = _counted(by_method, "diverged")
    return f"Runs that diverged, which nothing below counts: {', '.join(named)}.\n" if named else ""


def _counted(by_method: Mapping[str, Sequence[Row]], column: str) -> list[str]:
    """Return the methods with a run that has something in that column, with their number."""
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
