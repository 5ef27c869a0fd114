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
TEXT = Path(__file__).with_name("page_appendix.md").read_text(encoding="utf-8")


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
    at90, at97 = (196 * math.sqrt(p * (1 - p) / TEST_IMAGES) for p in (0.9, 0.975))
    return TEXT.format(
        facts=_facts(table),
        images=TEST_IMAGES,
        at90=at90,
        at97=at97,
        third=PROBED[0],
        epochs=PROBED[1],
        alpha=STUDY["wrong_calls"],
        family=len(judge.comparisons),
        n=len(SEEDS),
        flips=2 ** (1 - len(SEEDS)),
        share=100 * 0.05 ** (1 / len(SEEDS)),
        variance=STUDY["collapsed"]["variance"],
        rank=STUDY["collapsed"]["erank projection last"],
        so_far=so_far,
        table=_table(judge, rows, HEADS),
        failed=f"\n\nRuns that failed: {'; '.join(failed)}." if failed else "",
        verdicts=_verdicts(judge),
    )


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
