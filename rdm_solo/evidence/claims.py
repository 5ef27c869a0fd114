"""What the paper says, judged by the numbers of runs: reproduced, not reproduced, or not testable.

A claim sees the runs of each row, seed by seed, so that rows are compared on the same seeds. Its
rule is written here and printed beside its verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["CLAIMS", "Claim", "Verdict", "difference"]

REPRODUCED, FAILED = "reproduced", "not reproduced"
OPEN, GUARANTEED = "not testable at this scale", "guaranteed by the filter"

# Row -> column -> one number for each seed; rows are named "family: name".
Runs = Mapping[str, Mapping[str, Sequence[float]]]

LEARNABLE = ["SimSiam: learnable", "BYOL: learnable"]
OBSERVED = [*LEARNABLE, "clustering: SwAV", "clustering: DINO"]
ONLINE = ["online σ", "online log σ", "online log(1+σ)", "online log(1+σ²)"]
TARGET = ["target σ^-0.3", "target σ^-0.5", "target σ^-0.7", "target σ^-1"]


@dataclass(frozen=True)
class Verdict:
    """What the numbers say, and the numbers."""

    verdict: str
    numbers: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the rule that judges it, and the judge."""

    says: str
    rule: str
    judge: Callable[[Runs], Verdict]


def difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Mean of the paired differences and its standard error.

    >>> difference([3.0, 5.0], [1.0, 2.0])
    (2.5, 0.5)
    """
    pairs = [x - y for x, y in zip(a, b)]
    spread = statistics.stdev(pairs) if len(pairs) > 1 else math.inf
    return statistics.fmean(pairs), spread / math.sqrt(len(pairs))


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f}"


def _each(runs: Runs, rows: Sequence[str], column: str) -> str:
    return "; ".join(f"{row} {_mean(runs[row][column])}" for row in rows)


def _holds(
    rows: Sequence[str], column: str, test: Callable[[float], bool]
) -> Callable[[Runs], Verdict]:
    """Reproduced where every seed of every row passes, else which rows do not."""

    def judge(runs: Runs) -> Verdict:
        bad = [row for row in rows if not all(map(test, runs[row][column]))]
        numbers = _each(runs, rows, column)
        if not bad:
            return Verdict(REPRODUCED, numbers)
        some = f"{FAILED} by {', '.join(bad)}" if len(bad) < len(rows) else FAILED
        return Verdict(some, numbers)

    return judge


def _against(
    other: str, rows: Sequence[str], column: str, one: Callable[[float, float], str]
) -> Callable[[Runs], Verdict]:
    """Each row beside another on the same seeds; ``one`` judges a mean difference and its error."""

    def judge(runs: Runs) -> Verdict:
        found = {row: difference(runs[row][column], runs[other][column]) for row in rows}
        numbers = (f"{row} {mean:+.2f} ± {error:.2f}" for row, (mean, error) in found.items())
        verdicts = {row: one(*difference) for row, difference in found.items()}
        return Verdict(_together(verdicts), "; ".join(numbers))

    return judge


def _above(
    rows: Sequence[str], other: str, column: str, below: bool = False
) -> Callable[[Runs], Verdict]:
    """Each row above (or below) another, by two standard errors."""

    def one(mean: float, error: float) -> str:
        wanted = -mean if below else mean
        return OPEN if abs(mean) <= 2 * error else REPRODUCED if wanted > 0 else FAILED

    return _against(other, rows, column, one)


def _comparable(rows: Sequence[str], other: str, column: str) -> Callable[[Runs], Verdict]:
    """Within a point of another or above it, beyond two standard errors."""

    def one(mean: float, error: float) -> str:
        close, far = mean - 2 * error > -1, mean + 2 * error < -1
        return REPRODUCED if close else FAILED if far else OPEN

    return _against(other, rows, column, one)


def _together(verdicts: Mapping[str, str]) -> str:
    """One verdict where all rows agree, else which rows say what."""
    kinds = dict.fromkeys(verdicts.values())
    if len(kinds) == 1:
        return next(iter(kinds))
    return "; ".join(
        f"{kind}: {', '.join(row for row, found in verdicts.items() if found == kind)}"
        for kind in kinds
    )


def _collapse(runs: Runs) -> Verdict:
    kept = runs["symmetric: SymSimSiam, no last BN"]["variance"]
    lost = runs["symmetric: vanilla, no last BN"]["variance"]
    numbers = f"with centring {min(kept):.3f} at least, without {max(lost):.3f} at most"
    return Verdict(REPRODUCED if min(kept) >= 0.95 and max(lost) <= 0.05 else FAILED, numbers)


def _rising(runs: Runs) -> Verdict:
    failed, numbers = [], []
    for row in OBSERVED:
        online, target = (runs[row][f"erank {branch} rise"] for branch in ("online", "target"))
        numbers.append(f"{row} {_mean(online)}, {_mean(target)}")
        if not all(rise > 0 for rise in [*online, *target]):
            failed.append(row)
    verdict = f"{FAILED} by {', '.join(failed)}" if failed else REPRODUCED
    return Verdict(verdict, "; ".join(numbers))


def _guaranteed(runs: Runs) -> Verdict:
    rows = _simsiam(ONLINE + TARGET) + _byol(ONLINE + TARGET)
    found = _holds(rows, "gap share", lambda share: share == 1)(runs)
    return Verdict(GUARANTEED if found.verdict == REPRODUCED else found.verdict, found.numbers)


def _simsiam(names: Sequence[str]) -> list[str]:
    return [f"SimSiam: {name}" for name in names]


def _byol(names: Sequence[str]) -> list[str]:
    return [f"BYOL: {name}" for name in names]


TWO_ERRORS = "paired difference over seeds, by two standard errors"
WITHIN = (
    "linear accuracy at the end: lower by less than a point, beyond two standard errors; not "
    "reproduced if lower by more, beyond them"
)

CLAIMS = [
    Claim(
        "Centring alone keeps a symmetric network from complete collapse (Theorem 1, Figure 2b).",
        "variance without the projector's last BN, which centres by itself: at least 0.95 with "
        "centring, at most 0.05 without, each seed",
        _collapse,
    ),
    Claim(
        "Symmetric networks collapse dimensionally: SimSiam's final rank is above SymSimSiam's "
        "(Figure 2c).",
        f"effective rank of the projection at the end; {TWO_ERRORS}",
        _above(["SimSiam: learnable"], "symmetric: SymSimSiam", "erank projection last"),
    ),
    Claim(
        "SymSimSiam's accuracy is below SimSiam's (Figure 2a).",
        f"linear accuracy at the end; {TWO_ERRORS}",
        _above(["SimSiam: learnable"], "symmetric: SymSimSiam", "linear end"),
    ),
    Claim(
        "Learned and hand-made asymmetry keeps the target's rank above the online's throughout "
        "training (Figure 1).",
        "share of epochs with a positive gap at least 0.95, each seed",
        _holds(OBSERVED, "gap share", lambda v: v >= 0.95),
    ),
    Claim(
        "Both outputs' ranks rise along training (Figure 1, Theorem 4).",
        "log of the rank at the end over that after warm-up is positive, online and target, each "
        "seed",
        _rising,
    ),
    Claim(
        "The eigenspaces of C_p and C_z align (Figure 3: above 0.7 for all, mostly above 0.9).",
        "the paper's unweighted alignment at the end at least 0.7, each seed",
        _holds(OBSERVED, "alignment", lambda v: v >= 0.7),
    ),
    Claim(
        "The same, weighted by eigenvalues (not in the paper).",
        "weighted alignment at the end at least 0.9, each seed",
        _holds(OBSERVED, "alignment weighted", lambda v: v >= 0.9),
    ),
    Claim(
        "C_z and C_+ align (0.96 to 0.998 on CIFAR).",
        "alignment of the target with its positives at the end at least 0.95, each seed",
        _holds(OBSERVED, "alignment positive", lambda v: v >= 0.95),
    ),
    Claim(
        "Asymmetry acts as a low-pass filter: its sorted curve rises (Figure 4).",
        "Spearman correlation of the sorted curve at the end at least 0.9, each seed; it "
        "rises wherever the target's spectrum is flatter",
        _holds(OBSERVED, "monotonicity", lambda v: v >= 0.9),
    ),
    Claim(
        "The same along the target's own eigenvectors, the stricter test (not in the paper).",
        "Spearman correlation of the directional curve at the end at least 0.5, each seed",
        _holds(OBSERVED, "monotonicity directional", lambda v: v >= 0.5),
    ),
    Claim(
        "Fixed online low-pass filters keep the rank above that of no filter (Figure 6).",
        f"effective rank of the projection at the end against identity; {TWO_ERRORS}",
        _above(_simsiam(ONLINE), "SimSiam: identity", "erank projection last"),
    ),
    Claim(
        "Fixed target high-pass filters do so, too.",
        f"effective rank of the projection at the end against identity; {TWO_ERRORS}",
        _above(_simsiam(TARGET), "SimSiam: identity", "erank projection last"),
    ),
    Claim(
        "The same in BYOL.",
        f"effective rank of the projection at the end against identity; {TWO_ERRORS}",
        _above(_byol(ONLINE + TARGET), "BYOL: identity", "erank projection last"),
    ),
    Claim(
        "A filter the wrong way round fails: the rank falls below that of no filter.",
        f"effective rank of the projection at the end against identity; {TWO_ERRORS}",
        _above(
            _simsiam(["wrong way, target σ^0.5", "wrong way, online σ^-0.5"]),
            "SimSiam: identity",
            "erank projection last",
            below=True,
        ),
    ),
    Claim(
        "Online filters reach the learnable predictor's accuracy (Table 1).",
        WITHIN,
        _comparable(_simsiam(ONLINE), "SimSiam: learnable", "linear end"),
    ),
    Claim(
        "Target filters beat it when training is short (Table 2).",
        f"linear accuracy at a third of training; {TWO_ERRORS}",
        _above(_simsiam(TARGET), "SimSiam: learnable", "linear third"),
    ),
    Claim(
        "Target filters beat BYOL's linear predictor when training is short (Table 4).",
        f"linear accuracy at a third of training; {TWO_ERRORS}",
        _above(_byol(TARGET), "BYOL: linear", "linear third"),
    ),
    Claim(
        "A linear predictor comes close to the nonlinear one (Table 1).",
        WITHIN,
        _comparable(["SimSiam: linear"], "SimSiam: learnable", "linear end"),
    ),
    Claim(
        "A fixed low-pass online or high-pass target filter has a positive gap.",
        "follows from the filter's definition (Theorem 3), and was measured in every epoch "
        "of each seed",
        _guaranteed,
    ),
    Claim(
        "Accuracies on CIFAR-10, CIFAR-100 and ImageNet.",
        "needs the data and a GPU; docs/experiments.md has the commands",
        lambda runs: Verdict(OPEN, "no run"),
    ),
]
