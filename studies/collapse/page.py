"""The page of the study: what was planned, how the bounds were chosen, and how they did."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rdm_solo.runs.files import write_atomically
from rdm_solo.spectra.collapse import MIN_ASSIGNED, Bounds
from studies import markdown
from studies.collapse import definitions, judging, sets
from studies.collapse.choosing import MOST_ALARMS, bounds_in_order
from studies.collapse.judging import LABELS, WARMUP, Judged
from studies.collapse.plan import OTHERS, PARTS, PLAN, planned
from studies.intervals import rate
from studies.table import Row

# The bounds that the first part chose, and those that the first two parts chose.
FIRST = Bounds(variance=0.1, erank=0.18, fewest=2.2, assignment=0, warmup=WARMUP)
SECOND = Bounds(variance=0.1, erank=0.21, fewest=2.4, assignment=1.2, warmup=WARMUP)

INTRODUCTION = """\
# Are the warnings of collapse right?

`python -m studies.collapse` trains runs, labels each without the numbers that the warnings read,
and compares. The bounds of the warnings were tuned on {early} runs and tested on {last} held-out
runs, the fourth part. {others} runs of other methods were added afterwards. The command adds a row
to [collapse.csv](collapse.csv) for each run that finishes, and trains only what is missing;
`--most 0` writes this page from the table alone.

The plan, `studies/collapse/study.yaml`, was written before the runs. Three things in it changed
later, and it gives the reasons: kNN's margin, after the first part had been trained; what counts as
a healthy run, after the second part had been judged; and the number of parts, from two to four,
because the bounds failed on the second part and again on the third. The runs of other methods came
after that.
"""
METHOD = """\
## How it was done

Three data sets: scikit-learn's digits, generated pictures of blobs, and rows of 64 numbers, for
which an MLP replaces the convolutions. {settings} settings of SimSiam, BYOL, SwAV, DINO and the
symmetric baselines: healthy ones, and ones with no predictor, a filter the wrong way round, a
learning rate 10 to 100 times too high, batches of 4 or 8, no batch norm, strong weight decay, or
only 2 to 8 samples (duplicated data). Each run draws its learning rate, batch size, dimensions,
seed and, where its filter has one, the exponent; {epochs} epochs, {warmup} of warm-up.

Labels come from clean samples in `eval()` mode, before training and after each epoch. A run counts
as collapsed if one of these holds from some epoch, the {first}th or later, to the end, for at least
{in_a_row} epochs; that epoch is the event:

- **features**: weighted kNN accuracy of the backbone's features is less than {margin} points above
  that of the same network before training;
- **one point**: the outputs of two different validation samples have a mean cosine above
  {cosine:g};
- **few directions**: the effective rank of the validation outputs around their mean is below
  {directions:g} (for SwAV and DINO, the rank of the unit vectors that enter the last layer).

kNN accuracy can stay high under the last two. A collapse counts as detected in time if any warning
except a negative gap came at most {in_time} epochs after the event. A false alarm is
any warning, including a negative gap, on a healthy setting without a label. Runs with an induced
failure and no label are counted separately, because many of them nearly collapse. Diverged runs
are not counted.

The plan first counted every run that did not collapse as healthy. The second part was judged that
way: {second_alarms} were false alarms. Since then, induced failures that did not collapse are
counted separately. Counted the first way, {last_alarms} are false alarms in the fourth part. The
last column of the result has this rate for every part.

The runs were trained in four parts. The bounds are those that warn of the most collapses in time
with at most {most:.0%} of false alarms; ties are broken by fewer false alarms, then by taking the
middle value. They were tuned on the first part and tested on the second; tuned again on these two
and tested on the third; and tuned again on these three, each time before a run of the next part was
looked at. Twice, the next part showed that they did not hold. Only the fourth part tests the
package's bounds. The warm-up is {warmup} epochs in all runs; `rdm_solo.train` judges
variance and directions after its own warm-up. Intervals are Clopper and Pearson's, 95 %.

{others} further runs have the other methods of solo-learn: healthy ones, and ones with a learning
rate 10 to 100 times too high, strong weight decay, or only 2 to 8 samples. They were added after
the bounds were fixed.
"""


def write(rows: Sequence[Row], out: Path) -> None:
    """Write the page of a table."""
    write_atomically(out, page(rows))


def page(rows: Sequence[Row]) -> str:
    """Return the page of a table."""
    parts = {p: [row for row in rows if row["part"] == p] for p in (*PARTS, OTHERS)}
    early = [row for part in PARTS if part != "last" for row in parts[part]]
    second = judging.judge_all(parts["judge"], FIRST)
    judged, others = (judging.judge_all(parts[part]) for part in ("last", OTHERS))
    shared = dict(option.split("=", 1) for option in PLAN["shared"])
    counts = Counter(run.part for run in planned())
    tuned = sum(counts[part] for part in PARTS) - counts["last"]
    introduction = INTRODUCTION.format(early=tuned, last=counts["last"], others=counts[OTHERS])
    method = METHOD.format(
        settings=len(PLAN["settings"]),
        epochs=shared["max_epochs"],
        warmup=WARMUP,
        first=PLAN["judged_from"],
        in_a_row=PLAN["in_a_row"],
        margin=PLAN["margin"],
        cosine=PLAN["cosine"],
        directions=PLAN["directions"],
        in_time=judging.IN_TIME,
        most=MOST_ALARMS,
        second_alarms=rate(*judging.alarms_as_planned(second)),
        last_alarms=rate(*judging.alarms_as_planned(judged)),
        others=counts[OTHERS],
    )
    third = judging.judge_all(parts["test"], SECOND)
    results = {
        "first part, by bounds tuned on it": judging.judge_all(parts["choose"], FIRST),
        "second part, by the same bounds": second,
        "third part, by bounds tuned on the first two": third,
        "these three, by the package's bounds, tuned on them": judging.judge_all(early),
        "**fourth part, by the package's bounds**": judged,
        "**other methods, by the package's bounds**": others,
    }
    sections = [
        introduction,
        _progress(rows),
        _result(results),
        method,
        definitions.section(judged),
        _bounds(early),
        *(_by(judged, what) for what in ("label", "data", "method", "setting")),
        _mistakes(judged),
        _others(others),
        *(_by(others, what, "Other methods") for what in ("label", "method", "setting")),
        _mistakes(others, "among the other methods"),
    ]
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def _progress(rows: Sequence[Row]) -> str:
    total = sum(1 for _ in planned())
    versions = ", ".join(sorted({row["versions"].replace("=", " ") for row in rows}))
    kept = "" if len(rows) == total else f" **The study is not finished: {len(rows)} of {total}.**"
    diverged = sum(bool(row["diverged"]) for row in rows)
    return f"{len(rows)} runs, of which {diverged} diverged.{kept} Versions: {versions}."


HEAD = (
    "collapses detected in time",
    "false alarms",
    "warnings on induced failures without collapse",
)


def _rates(runs: Sequence[Judged]) -> list[str]:
    counts = (judging.in_time(runs), judging.alarms(runs), judging.unlabelled(runs))
    return [rate(*count) for count in counts]


def _result(results: dict[str, list[Judged]]) -> str:
    lines = [
        [name, *_rates(runs), rate(*judging.alarms_as_planned(runs))]
        for name, runs in results.items()
    ]
    table = markdown.table(["", *HEAD, "warnings on all runs without collapse"], lines)
    return (
        f"## Result\n\n{table}\n\nHow many are detected in time depends on what counts as a "
        "collapse, and from when: [by other definitions](#the-fourth-part-by-other-definitions)."
    )


BOUNDS = """\
## The bounds

The bounds that did best on the first three parts, best first. A warning is given below that
variance, or if fewer directions are left than k^exponent or than "fewest", but never if more than
half of k are left (`watch.variance` and `watch.erank` are the first two). The package's
are {variance:g}, {exponent:g} and {fewest:g}. All runs have 16 to 64 dimensions, so larger spaces
are untested. The rule of equal assignments (a softmax with an effective rank below
{assignment:g}) was added when the bounds were tuned the second time.

{table}
"""


def _bounds(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    best = [
        [*(f"{b:g}" for b in (bounds.variance, bounds.erank, bounds.fewest)), *counts]
        for bounds, *counts in (
            (bounds, rate(*in_time), rate(*alarms))
            for bounds, in_time, alarms in bounds_in_order(rows)[:8]
        )
    ]
    package = Bounds()
    return BOUNDS.format(
        variance=package.variance,
        exponent=package.erank,
        fewest=package.fewest,
        assignment=MIN_ASSIGNED,
        table=markdown.table(["variance", "exponent", "fewest", *HEAD[:2]], best),
    )


def _by(runs: Sequence[Judged], what: str, part: str = "The fourth part") -> str:
    groups: dict[str, list[Judged]] = {}
    for run in runs:
        names = list(run.events) or ["none"] if what == "label" else [run.row[what]]
        for name in names:
            groups.setdefault(name, []).append(run)
    order = [*LABELS, "none"] if what == "label" else sorted(groups)
    lines = [[name, *_rates(groups[name])] for name in order if name in groups]
    return f"## {part} by {what}\n\n" + markdown.table([what, *HEAD], lines)


OTHER_METHODS = """\
## Other methods

The bounds were tuned on SimSiam, BYOL, SwAV, DINO and the symmetric baselines. Of the {missed}
collapses of other methods that were not detected in time, {features} have the label "features"
alone: kNN gained less than {margin} points, while the outputs ended with {directions} directions,
in half of these runs with at most {median:.1f}. {low} of {healthy} healthy runs of these methods
had as few at some time after the warm-up, so no bound on directions tells the two apart. {learnt}
of the {features} had only 2 to 8 samples to learn from. Without the {alone} runs that have this
label alone, {in_time} were detected in time.

Of all bounds that were tried for the first three parts, those that do best on these very runs
(variance {variance:g}, exponent {exponent:g}, fewest {fewest:g}) would warn of {best} in time, with
{alarms} false alarms. They are not used, because no held-out run would be left to test them. So a
run of these methods without a warning may still have useless features: also look at kNN.
"""


def _others(runs: Sequence[Judged]) -> str:
    collapses = [run for run in runs if run.collapsed]
    if not collapses:
        return ""
    features_alone = [run for run in collapses if set(run.events) == {"features"}]
    missed = [run for run in features_alone if not run.in_time]
    others = [run for run in collapses if run not in features_alone]
    ends = [judging.history(run.row)[-1].erank for run in missed]
    middle = median(ends) if ends else math.nan
    healthy = [run for run in runs if run.control]
    bounds, best, alarms = bounds_in_order([run.row for run in runs])[0]
    return OTHER_METHODS.format(
        missed=sum(not run.in_time for run in collapses),
        features=len(missed),
        margin=PLAN["margin"],
        directions=f"{min(ends):.1f} to {max(ends):.1f}" if ends else "–",
        median=middle,
        low=sum(_fewest_directions(run) <= middle for run in healthy),
        healthy=len(healthy),
        learnt=sum(int(run.row["distinct"]) < sets.TRAIN for run in missed),
        alone=len(features_alone),
        in_time=rate(*judging.in_time(others)),
        variance=bounds.variance,
        exponent=bounds.erank,
        fewest=bounds.fewest,
        best=rate(*best),
        alarms=rate(*alarms),
    )


def _fewest_directions(run: Judged) -> float:
    """Return the fewest directions in an epoch after the warm-up."""
    return min(epoch.erank for epoch in judging.history(run.row) if epoch.epoch > WARMUP)


def _mistakes(runs: Sequence[Judged], where: str = "in the fourth part") -> str:
    lines = []
    for run in runs:
        warned = ", ".join(f"{kind} in epoch {at}" for kind, at in run.warnings.items())
        about = f"{run.row['data']}: {run.row['setting']}"
        if run.collapsed and not run.in_time:
            label = ", ".join(f"{name} from epoch {at}" for name, at in run.events.items())
            lines.append(f"- missed: {about}; {label}; warnings: {warned or 'none'}")
        elif run.control and run.warnings:
            lines.append(f"- false alarm: {about}; {warned}")
    title = f"## Every mistake {where} ({len(lines)})\n\n"
    return title + "\n".join(lines or ["none"])
