"""The page that :mod:`rdm_solo.evidence` writes: a table of means and spreads, and the verdicts."""

from collections.abc import Mapping, Sequence
from typing import Any

from rdm_solo.evidence.claims import Runs, judge
from rdm_solo.runs.groups import spread

# Heading, columns, digits and what stands between two columns.
HEADS = [
    ("kNN, 1/3 → end", ["knn third", "knn end"], 1, " → "),
    ("linear, 1/3 → end", ["linear third", "linear end"], 1, " → "),
    ("variance", ["variance"], 2, ""),
    ("erank online, first → last", ["erank online first", "erank online last"], 1, " → "),
    ("erank target, first → last", ["erank target first", "erank target last"], 1, " → "),
    ("gap > 0, share of epochs", ["gap share"], 2, ""),
    ("alignment, plain / weighted", ["alignment", "alignment weighted"], 2, " / "),
    ("monotonicity, sorted / directional", ["monotonicity", "monotonicity directional"], 2, " / "),
]
TEXT = """\
Digits show the mechanism, not that pretraining beats pixels: the table also has raw pixels and a \
network that was never trained. kNN is weighted, k = 20, on standardised pixels or on features; \
linear is the paper's probe (SGD, lr 30, 100 epochs) on frozen features without augmentation; both \
in per cent. Spectra are uncentred, as in the paper, and of the outputs of an epoch's training \
steps. In identity, vanilla and SymSimSiam both branches have the same output, so their gap is \
always zero; BYOL's target lags behind its online branch, which makes a gap even without a \
predictor. Variances of SwAV's and DINO's softmaxes are on another scale than those of unit \
vectors. The sorted curve pairs sorted eigenvalues and rises wherever the target's spectrum is \
flatter; the directional one follows the target's own eigenvectors."""


def page(
    runs: Runs, untrained: Runs, claims: Sequence[Mapping[str, Any]], facts: Mapping[str, str]
) -> str:
    """The whole page; ``facts`` are the lines on how the numbers came about."""
    parts = [
        "# The paper's claims on the embedded digits",
        "Written by one command from runs; do not edit.",
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        TEXT,
        "## Table",
        f"Mean ± standard deviation over seeds {facts['seeds']}.",
        "\n".join(_table({**untrained, **runs})),
        "## Verdicts",
        "\n".join(_verdicts(runs, claims)),
    ]
    return "\n\n".join(parts) + "\n"


def _table(runs: Runs) -> list[str]:
    lines = [_line(["", *(head[0] for head in HEADS)]), "|" + "---|" * (1 + len(HEADS))]
    for name, columns in runs.items():
        cells = [name]
        for _, wanted, digits, between in HEADS:
            known = [spread(columns[column], digits) for column in wanted if column in columns]
            cells.append(between.join(known) or "–")
        lines.append(_line(cells))
    return lines


def _verdicts(runs: Runs, claims: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [_line(["claim", "rule", "verdict", "numbers"]), "|" + "---|" * 4]
    for claim in claims:
        verdict, numbers = judge(claim, runs)
        lines.append(_line([claim["says"], claim["rule"], f"**{verdict}**", numbers]))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
