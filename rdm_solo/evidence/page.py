"""The page that :mod:`rdm_solo.evidence` writes: a table of means and spreads, and the verdicts."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from rdm_solo.evidence.claims import CLAIMS, Runs
from rdm_solo.report.measured import spread
from rdm_solo.runs.files import METRICS

__all__ = ["page", "read"]

Columns = Mapping[str, Sequence[float]]

HEADS = [
    ("", []),
    ("kNN, 1/3 → end", ["knn third", "knn end"]),
    ("linear, 1/3 → end", ["linear third", "linear end"]),
    ("variance", ["variance"]),
    ("erank online, first → last", ["erank online first", "erank online last"]),
    ("erank target, first → last", ["erank target first", "erank target last"]),
    ("gap > 0, share of epochs", ["gap share"]),
    ("alignment, plain / weighted", ["alignment", "alignment weighted"]),
    ("monotonicity, sorted / directional", ["monotonicity", "monotonicity directional"]),
]


def read(folder: Path, warmup: int) -> dict[str, float]:
    """The columns of one run, from its metrics.csv and probe.json."""
    with open(folder / METRICS, newline="") as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    probes = list(json.loads((folder / "probe.json").read_text()).values())
    first, last = rows[0], rows[-1]
    columns = {
        "knn third": probes[0]["knn"],
        "knn end": probes[-1]["knn"],
        "linear third": probes[0]["linear"],
        "linear end": probes[-1]["linear"],
        "variance": last["feature/variance"],
        "erank online first": first["erank/online"],
        "erank online last": last["erank/online"],
        "erank target first": first["erank/target"],
        "erank target last": last["erank/target"],
        "erank online rise": math.log(last["erank/online"] / rows[warmup]["erank/online"]),
        "erank target rise": math.log(last["erank/target"] / rows[warmup]["erank/target"]),
        "erank projection last": last["erank/projection"],
        # Equal branches differ by rounding, which is no gap.
        "gap share": statistics.fmean(row["erank/gap"] > 1e-6 for row in rows),
        "alignment": last["alignment/online_target"],
        "alignment weighted": last["alignment/online_target_weighted"],
        "alignment positive": last["alignment/target_positive"],
        "monotonicity": last["filter/monotonicity"],
        "monotonicity directional": last["filter/monotonicity_directional"],
    }
    for name, value in columns.items():
        if not math.isfinite(value):
            raise ValueError(f"{folder}: {name} is {value}, but a mean needs finite numbers.")
    return columns


def page(runs: Runs, untrained: Mapping[str, Columns], facts: Mapping[str, str]) -> str:
    """The whole page; ``facts`` are the lines on how the numbers came about."""
    seeds = facts["seeds"]
    parts = [
        "# The paper's claims on the embedded digits",
        "Written by one command from runs; do not edit.",
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        "Digits show the mechanism, not that pretraining beats pixels: the table also has raw "
        "pixels and a network that was never trained. kNN is weighted, k = 20; linear is the "
        "paper's probe (SGD, lr 30, 100 epochs) on frozen features without augmentation; both in "
        "per cent. Spectra are uncentred, as in the paper, and of the outputs of an epoch's "
        "training steps. In identity, vanilla and SymSimSiam both branches have the same output, "
        "so their gap is always zero; BYOL's target lags behind its online branch, which makes a "
        "gap even without a predictor. Variances of SwAV's and DINO's softmaxes are on another "
        "scale than those of unit vectors. The sorted curve pairs sorted eigenvalues and rises "
        "wherever the target's spectrum is flatter; the directional one follows the target's own "
        "eigenvectors.",
        f"## Table\n\nMean ± standard deviation over seeds {seeds}.",
        _table(runs, untrained),
        "## Verdicts",
        _verdicts(runs),
    ]
    return "\n\n".join(parts) + "\n"


def _table(runs: Runs, untrained: Mapping[str, Columns]) -> str:
    lines = ["| " + " | ".join(title for title, _ in HEADS) + " |", "|" + "---|" * len(HEADS)]
    for name, columns in [*untrained.items(), *runs.items()]:
        cells = [name]
        for title, wanted in HEADS[1:]:
            digits = 1 if title.startswith(("kNN", "linear", "erank")) else 2
            known = [spread(columns[c], digits) for c in wanted if c in columns]
            cells.append((" / " if "/ " in title else " → ").join(known) or "–")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _verdicts(runs: Runs) -> str:
    lines = ["| claim | rule | verdict | numbers |", "|---|---|---|---|"]
    for claim in CLAIMS:
        found = claim.judge(runs)
        lines.append(f"| {claim.says} | {claim.rule} | **{found.verdict}** | {found.numbers} |")
    return "\n".join(lines)
