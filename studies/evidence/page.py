"""The page of the study (verdicts and a table), and the appendix beside the table of runs."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from rdm_solo.runs.files import write_atomically
from rdm_solo.runs.groups import mean_std
from studies import markdown
from studies.evidence.claims import FAILED, REPRODUCED, Judge, runs_of
from studies.evidence.plan import OK, PIXELS, ROWS, SEEDS, STUDY, UNTRAINED
from studies.evidence.runs import PROBED
from studies.table import Row

TEST_IMAGES = 360
APPENDIX = Path(__file__).with_name("appendix.md")

Head = tuple[str, list[str], int, str]
# Heading, columns, number of digits, and the separator between two columns.
HEADS: list[Head] = [
    ("kNN %, 1/3 → end", ["knn third", "knn end"], 1, " → "),
    ("linear %, 1/3 → end", ["linear third", "linear end"], 1, " → "),
    ("projection's variance, first → last", ["variance first", "variance"], 2, " → "),
    ("projection's erank, last", ["erank projection last"], 1, ""),
    ("erank online, first → last", ["erank online first", "erank online last"], 1, " → "),
    ("erank target, first → last", ["erank target first", "erank target last"], 1, " → "),
    ("gap > 0, share of epochs", ["gap share"], 2, ""),
    ("alignment, plain / weighted", ["alignment", "alignment weighted"], 2, " / "),
    ("monotonicity, sorted / directional", ["monotonicity", "monotonicity directional"], 2, " / "),
]
PAGE = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
TEXT = """\
The digits test the mechanism. They do not show that pretraining beats pixels: the table also has \
raw pixels and an untrained network. kNN is weighted by similarity (cosine, k = 20, \
temperature 0.07), of features or of pixels as a network gets them, standardised by one mean and \
one deviation; linear is the paper's probe (SGD, lr 30, 100 epochs) on frozen features without \
augmentation. "1/3" is after epoch {third} of {epochs}: a run cut off within its schedule, not a \
complete schedule of {third} epochs, whose learning rate would have decayed. The claims about \
short training are judged there.

Every accuracy is measured on the same {images} test images, for {seeds}. An interval over seeds \
therefore says nothing about other images: on {images} images, the 95 % confidence interval of an \
accuracy of 90 % is ±{at90:.1f} points, that of 97.5 % ±{at97:.1f} points.

The variance is measured on the projection (the input of the filter or predictor), not on the \
backbone's features. Spectra are uncentred, as in the paper, and pool the outputs of an epoch's \
training steps. In SimSiam's identity, vanilla and SymSimSiam both branches have the same output, \
so their gap is always zero. BYOL's target lags behind its online branch, which causes a gap even \
without a predictor. The variance of a softmax (SwAV, DINO) is on another scale than the variance \
of unit vectors. The sorted curve pairs sorted eigenvalues and rises wherever the target's \
spectrum is flatter. The directional curve follows the target's own eigenvectors."""
PLAN = """\
Rows, claims, rules and seeds were written down before the first of these runs \
(`studies/evidence/study.yaml`). The bounds were chosen on other seeds, which are not counted \
here. No claim is judged before every row has all of its seeds.

- **Comparisons** are paired differences on the same seeds, with Student's 95 % interval. A \
verdict needs p below {alpha:g} after Holm's correction over all {family} comparisons of this \
page, including the controls; otherwise the claim is undecided. The intervals are not corrected. \
Student's test assumes that the differences are normally distributed, which {n} seeds cannot \
check. A sign-flip test does not assume this, but with {n} seeds its p is at least \
{flips:.3f}, so no comparison could pass the correction. "Reach" and "come close" mean less \
than one point below: the difference is tested against −1, and the interval's lower end must be \
above −1.
- **Bounds** must be passed by every seed; the table has the worst seed's value. If {n} of {n} \
seeds pass, then with 95 % confidence at least {share:.0f} % of all seeds pass.
- **Controls** are judged by the same rule. If a control passes as well (for bounds one passing \
seed is enough), the claim counts as undecided: the rule then cannot tell whether the claim holds. \
Some controls were added after the runs: each row whose outputs collapsed in most of its seeds \
became a control of the claims about the same method that such a collapse contradicts. This \
changed two claims on BYOL from reproduced to undecided; no verdict got stronger.
- **Outputs collapsed**, on this page: the projection ends with a variance below {variance:g} or \
an effective rank below {rank:g} of 32. The notes and warnings in training have other rules. A \
control or baseline whose outputs collapsed in most seeds is marked. A row whose own outputs \
collapsed does not reproduce a claim that a filter keeps the rank up. SwAV's and DINO's softmaxes \
are on another scale and are not judged."""


def write(rows: Sequence[Row], out: Path) -> None:
    """Write the page, and the appendix beside the table of runs."""
    write_atomically(out, page(rows))
    write_atomically(APPENDIX, appendix(rows))


def _judged(table: Sequence[Row]) -> tuple[Judge, list[str], str]:
    """Return the judge, the names of the rows, and a sentence that counts the seeds."""
    runs = runs_of(table)
    judge = Judge(STUDY, runs, SEEDS, {row["row"] for row in table if row["status"] != OK})
    rows = [name for name in (PIXELS, UNTRAINED, *ROWS) if name in runs]
    counts = [len(runs.get(name, {})) for name in ROWS]
    has = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    so_far = f"Every trained setting has {has} of {len(SEEDS)} seeds."
    if judge.missing:
        so_far += (
            f" **{judge.missing} of {len(SEEDS) * len(counts)} runs are missing, so there is no "
            "verdict yet.**"
        )
    return judge, rows, so_far


def page(table: Sequence[Row]) -> str:
    """Return the page of a table: short verdicts on the claims that no other study replaces."""
    judge, _, so_far = _judged(table)
    claims = [claim for claim in STUDY["claims"] if not claim.get("replaced")]
    verdicts = [judge.verdict(claim) for claim in claims]
    answers = [verdict.short or verdict.verdict for verdict in verdicts]
    return PAGE.format(
        trained=sum(row["row"] in ROWS for row in table),
        rows=len(ROWS),
        seeds=len(SEEDS),
        epochs=PROBED[1],
        claims=len(answers),
        reproduced=answers.count(REPRODUCED),
        failed=answers.count(FAILED),
        so_far=so_far,
        alpha=STUDY["wrong_calls"],
        family=len(judge.comparisons),
        variance=STUDY["collapsed"]["variance"],
        rank=STUDY["collapsed"]["erank projection last"],
        verdicts=markdown.table(
            ["claim", "verdict"], [[c["says"], answer] for c, answer in zip(claims, answers)]
        ),
    )


def appendix(table: Sequence[Row]) -> str:
    """Return the appendix of a table: rules, numbers and controls."""
    judge, rows, so_far = _judged(table)
    failures = [row for row in table if row["status"] != OK]
    failed = [f"{row['row']}, seed {row['seed']}: {row['status']}" for row in failures]
    parts = [
        "# The paper's claims on scikit-learn's digits: all numbers",
        "Written by one command from the table `runs.csv`; do not edit.",
        _facts(table),
        _text(),
        "## Plan",
        _plan(judge),
        "## Table",
        f"{so_far} Mean ± standard deviation over seeds; n is their number.",
        _table(judge, rows, HEADS),
        *(["Runs that failed: " + "; ".join(failed) + "."] if failed else []),
        "## Verdicts",
        _verdicts(judge),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(table: Sequence[Row]) -> str:
    """Return a list of command, options, seeds, hardware and versions."""
    trained = [row for row in table if row["row"] in ROWS]
    seconds = [float(row["seconds"]) for row in trained if row["seconds"]]
    pace = f", {statistics.median(seconds):.0f} s each at the median" if seconds else ""

    def distinct(column: str, separator: str) -> str:
        return separator.join(sorted({row[column] for row in trained} - {""}))

    facts = {
        "command": "`python -m studies.evidence` trains what is missing and writes this appendix "
        "and its page, `docs/evidence.md`; `--most 0` only writes them",
        "every run": f"`{' '.join(STUDY['shared'])}` and the row's own options; the rest is the "
        "digits' recipe",
        "seeds": ", ".join(map(str, SEEDS)),
        "runs": f"{len(trained)} of {len(SEEDS) * len(ROWS)}{pace}",
        "hardware": f"{distinct('processor', '; ')}, one thread a run",
        "versions": distinct("versions", "; "),
        "code": distinct("code", ", ") or "commit unknown",
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _text() -> str:
    at90, at97 = (196 * math.sqrt(p * (1 - p) / TEST_IMAGES) for p in (0.9, 0.975))
    share = f"all {len(SEEDS)} seeds"
    third, epochs = PROBED
    return TEXT.format(
        images=TEST_IMAGES, seeds=share, at90=at90, at97=at97, third=third, epochs=epochs
    )


def _plan(judge: Judge) -> str:
    collapsed = STUDY["collapsed"]
    return PLAN.format(
        alpha=STUDY["wrong_calls"],
        family=len(judge.comparisons),
        n=len(SEEDS),
        flips=2 ** (1 - len(SEEDS)),
        share=100 * 0.05 ** (1 / len(SEEDS)),
        variance=collapsed["variance"],
        rank=collapsed["erank projection last"],
    )


def _table(judge: Judge, rows: Sequence[str], heads: Sequence[Head]) -> str:
    lines = []
    for name in rows:
        seeds = list(judge.runs[name].values())
        cells = [name, str(len(seeds))]
        for _, columns, digits, separator in heads:
            measured = [c for c in columns if all(c in values for values in seeds)]
            values = (mean_std([values[c] for values in seeds], digits) for c in measured)
            cells.append(separator.join(values) or "–")
        collapsed = judge.collapsed(name)
        cells.append("{} of {}".format(*collapsed) if collapsed else "–")
        lines.append(cells)
    return markdown.table(["", "n", *(head[0] for head in heads), "outputs collapsed"], lines)


def _verdicts(judge: Judge) -> str:
    lines = []
    for claim in STUDY["claims"]:
        verdict, numbers, controls, _ = judge.verdict(claim)
        cells = [claim["says"], claim["rule"], f"**{verdict}**", numbers or "–", controls or "–"]
        lines.append(cells)
    return markdown.table(["claim", "rule", "verdict", "numbers", "controls"], lines)
