"""The page of the study: what was planned, how the bounds were chosen, and how they did."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product
from statistics import median

from rdm_solo.evidence import markdown
from rdm_solo.evidence.collapse import definitions, judging, sets
from rdm_solo.evidence.collapse.judging import LABELS, WARMUP, Judged, Row
from rdm_solo.evidence.collapse.runs import OTHERS, PARTS, PLAN, planned
from rdm_solo.evidence.intervals import rate
from rdm_solo.spectra.collapse import ONE_ASSIGNMENT, Bounds

# Those that the first part chose alone, and the first two; and what was tried on the first three.
FIRST = Bounds(variance=0.1, erank=0.18, fewest=2.2, assignment=0, warmup=WARMUP)
SECOND = Bounds(variance=0.1, erank=0.21, fewest=2.4, assignment=1.2, warmup=WARMUP)
VARIANCES = (0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
ERANKS = (0.18, 0.21, 0.24, 0.27)
FEWEST = (2, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6)
MOST_ALARMS = 0.05

INTRODUCTION = """\
# Are the warnings of collapse right?

`python -m rdm_solo.evidence.collapse` trains runs, labels each without the numbers that the
warnings read, and compares. The bounds of the warnings were chosen on {early} of the runs and
judged on {last} new ones, the fourth part; {others} runs of other methods came later. The command
adds a row to [collapse.csv](collapse.csv) for each run that ends, and goes on where it stopped;
`--most 0` writes this page from the table alone.

The plan, `rdm_solo/evidence/collapse/study.yaml`, was written before the runs. Three things in it
changed while the runs were made, and it says why: kNN's margin, when the first part had been
trained; what counts as a healthy run, when the second part had been judged; and the number of
parts, from two to four, because the bounds that had been chosen failed on the second part and again
on the third. The runs of other methods came after that.
"""
METHOD = """\
## How it was done

Three data sets: scikit-learn's digits, generated pictures of blobs, and rows of 64 numbers, which
an MLP takes in place of the convolutions. {settings} settings of SimSiam, BYOL, SwAV, DINO and the
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
  {directions:g} (of SwAV and DINO, that of the unit vectors that enter the last layer).

kNN accuracy can stay high under the last two. A collapse counts as warned of in time when any
warning but that of a negative gap, of whatever kind, came no later than {in_time} epochs after the
event. Any warning about a healthy setting that got no label, also of a negative gap, is a false
alarm. Runs with an induced failure that got no label are counted apart, since many nearly collapse.
So are runs that diverge, which end with an error.

The plan first counted every run that did not collapse as healthy. The second part was judged that
way: {second_alarms} were false alarms. After that, induced failures that did not collapse were
counted apart. Counted the first way, {last_alarms} are false alarms in the fourth part. The last
column of the result has this rate for every part.

The runs were trained in four parts. The bounds are those that warn of the most collapses in time
with at most {most:.0%} of false alarms; among equals those with the fewest false alarms, and then
those in the middle of the equals. They were chosen on the first part and judged on the second;
chosen anew on these two and judged on the third; and chosen anew on these three, each time before a
run of the next part was looked at. Twice, the next part showed that they did not hold. Only the
fourth part judges the package's bounds. The warm-up is {warmup} epochs in all runs;
`rdm_solo.train` judges variance and directions after its own `scheduler.warmup_epochs`. Intervals
are Clopper and Pearson's, 95 %.

{others} further runs have the other methods of solo-learn: healthy ones, and ones with a learning
rate 10 to 100 times too high, strong weight decay, or only 2 to 8 samples. They came after the
bounds were fixed, and chose none.
"""


def page(rows: Sequence[Row]) -> str:
    """The page, from the rows of the table."""
    parts = {p: [row for row in rows if row["part"] == p] for p in (*PARTS, OTHERS)}
    early = [row for part in PARTS if part != "last" for row in parts[part]]
    second = judging.judge_all(parts["judge"], FIRST)
    judged, others = (judging.judge_all(parts[part]) for part in ("last", OTHERS))
    shared = dict(option.split("=", 1) for option in PLAN["shared"])
    counts = Counter(run.part for run in planned())
    text = METHOD.format(
        settings=len(PLAN["settings"]),
        epochs=shared["max_epochs"],
        warmup=shared["scheduler.warmup_epochs"],
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
    results = {
        "first part, by bounds that were chosen on it": judging.judge_all(parts["choose"], FIRST),
        "second part, by the same bounds": second,
        "third part, by bounds that were chosen on the first two": judging.judge_all(
            parts["test"], SECOND
        ),
        "these three, by the package's bounds, chosen on them": judging.judge_all(early),
        "**fourth part, by the package's bounds**": judged,
        "**other methods, by the package's bounds**": others,
    }
    early_runs = sum(counts[part] for part in PARTS) - counts["last"]
    introduction = INTRODUCTION.format(early=early_runs, last=counts["last"], others=counts[OTHERS])
    found = [introduction, _progress(rows), _result(results), text, definitions.section(judged)]
    found += [_choice(early)]
    found += [_by(judged, what) for what in ("label", "data", "method", "setting")]
    found += [_mistakes(judged)]
    found += [_others(others)]
    found += [_by(others, what, "Other methods") for what in ("label", "method", "setting")]
    found += [_mistakes(others, "among the other methods")]
    return "\n\n".join(part.strip() for part in found if part) + "\n"


def _progress(rows: Sequence[Row]) -> str:
    total = sum(1 for _ in planned())
    versions = ", ".join(sorted({row["versions"].replace("=", " ") for row in rows}))
    kept = "" if len(rows) == total else f" **The study is not finished: {len(rows)} of {total}.**"
    diverged = sum(bool(row["diverged"]) for row in rows)
    return f"{len(rows)} runs, of which {diverged} diverged.{kept} Versions: {versions}."


HEAD = (
    "collapses warned of in time",
    "false alarms",
    "induced failures without collapse, warned of",
)


def _rates(runs: Sequence[Judged]) -> list[str]:
    counts = (judging.named(runs), judging.alarms(runs), judging.unlabelled(runs))
    return [rate(*count) for count in counts]


def _result(results: dict[str, list[Judged]]) -> str:
    found = [
        [name, *_rates(runs), rate(*judging.alarms_as_planned(runs))]
        for name, runs in results.items()
    ]
    table = markdown.table(["", *HEAD, "all runs without collapse, warned of"], found)
    other = "How many are warned of in time depends on what counts as a collapse, and from when:"
    link = "[by other definitions](#the-fourth-part-by-other-definitions)."
    return f"## Result\n\n{table}\n\n{other} {link}"


def choice(rows: Sequence[Row]) -> list[tuple[Bounds, tuple[int, int], tuple[int, int]]]:
    """All bounds, with the collapses warned of in time and their false alarms, the best first.

    Among equals, the one in the middle of them, so that the next run is as safe as it can be.
    """
    read = [(row, judging.events(row), judging.history(row)) for row in rows]
    known: dict[tuple[int, float, float], Judged] = {}  # several bounds are one in a small space

    def judged(number: int, bounds: Bounds) -> Judged:
        row, events, epochs = read[number]
        key = number, bounds.variance or 0, bounds.directions(int(row["dimensions"]))
        if key not in known:
            warned = judging.warnings(epochs, judging.expected(row, bounds))
            known[key] = Judged(row, events, warned)
        return known[key]

    found = []
    for variance, erank, fewest in product(VARIANCES, ERANKS, FEWEST):
        bounds = Bounds(variance, erank, warmup=WARMUP, fewest=fewest)
        runs = [judged(number, bounds) for number in range(len(read))]
        found.append((bounds, judging.named(runs), judging.alarms(runs)))

    def order(entry: tuple[Bounds, tuple[int, int], tuple[int, int]]) -> tuple[bool, int, int]:
        _, (named, _), (alarms, healthy) = entry
        return alarms > MOST_ALARMS * healthy, -named, alarms

    found.sort(key=order)
    best = [entry for entry in found if order(entry) == order(found[0])]
    middle = sorted(best, key=lambda entry: _from_middle(entry[0], [b for b, _, _ in best]))
    return middle + found[len(best) :]


def _from_middle(bounds: Bounds, among: Sequence[Bounds]) -> float:
    """How far bounds are from the middle of others, in steps of the lists."""

    def place(b: Bounds) -> tuple[int, int, int]:
        places = VARIANCES.index(b.variance or 0), ERANKS.index(b.erank or 0)
        return *places, FEWEST.index(b.fewest)

    places = [place(b) for b in among]
    middle = [sum(axis) / len(axis) for axis in zip(*places)]
    return float(sum((at - centre) ** 2 for at, centre in zip(place(bounds), middle)))


def _values(bounds: Bounds) -> tuple[float, float, float]:
    return bounds.variance or 0, bounds.erank or 0, bounds.fewest


def _choice(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    shown = [
        [*(f"{b:g}" for b in _values(bounds)), rate(*named), rate(*alarms)]
        for bounds, named, alarms in choice(rows)[:8]
    ]
    head = ["variance", "exponent", "fewest", *HEAD[:2]]
    own = "The package's are {:g}, {:g} and {:g}.".format(*_values(Bounds()))
    told = (
        "The bounds that did best on the first three parts, best first. A run is warned of below "
        "that variance, and where fewer directions of k are left than k^exponent or than the "
        "fewest, but never where more than half of k are left (`watch.variance` and `watch.erank` "
        f"are the first two). {own} All "
        "runs have 16 to 64 dimensions, so nothing is known of larger spaces. The rule of equal "
        f"assignments (a softmax with an effective rank below {ONE_ASSIGNMENT:g}) was added when "
        "the bounds were chosen the second time."
    )
    return f"## The bounds\n\n{told}\n\n" + markdown.table(head, shown)


def _by(runs: Sequence[Judged], what: str, of: str = "The fourth part") -> str:
    groups: dict[str, list[Judged]] = {}
    for run in runs:
        names = list(run.events) or ["none"] if what == "label" else [run.row[what]]
        for name in names:
            groups.setdefault(name, []).append(run)
    order = [*LABELS, "none"] if what == "label" else sorted(groups)
    found = [[name, *_rates(groups[name])] for name in order if name in groups]
    return f"## {of} by {what}\n\n" + markdown.table([what, *HEAD], found)


OTHER_METHODS = """\
## Other methods

The bounds were chosen on SimSiam, BYOL, SwAV, DINO and the symmetric baselines. Of the {missed}
collapses of other methods that were not warned of in time, {features} have the label "features"
alone: kNN gained less than {margin} points, while the outputs ended with {directions} directions,
in half of these runs with at most {median:.1f}. {low} of {healthy} healthy runs of these methods
had as few at some time after the warm-up, so no bound on directions tells the two apart. {learnt}
of the {features} had only 2 to 8 samples to learn from. Without the {alone} runs that have this
label alone, {named} were warned of in time.

Of all bounds that were tried for the first three parts, those that do best on these very runs
(variance {variance:g}, exponent {exponent:g}, fewest {fewest:g}) would warn of {best} in time, with
{alarms} false alarms. They are not used: no run would be left to judge them. So a run of these
methods that is not warned of may still have useless features: look at kNN, too.
"""


def _others(runs: Sequence[Judged]) -> str:
    collapses = [run for run in runs if run.collapsed]
    if not collapses:
        return ""
    missed = [run for run in collapses if not run.named]
    alone = [run for run in missed if set(run.events) == {"features"}]
    seen = [run for run in collapses if set(run.events) != {"features"}]
    ends = [judging.history(run.row)[-1].erank for run in alone]
    middle = median(ends) if ends else math.nan
    healthy = [run for run in runs if run.control]
    bounds, best, alarms = choice([run.row for run in runs])[0]
    variance, exponent, fewest = _values(bounds)
    return OTHER_METHODS.format(
        missed=len(missed),
        features=len(alone),
        margin=PLAN["margin"],
        directions=f"{min(ends):.1f} to {max(ends):.1f}" if ends else "–",
        median=middle,
        low=sum(_fewest_directions(run) <= middle for run in healthy),
        healthy=len(healthy),
        learnt=sum(int(run.row["distinct"]) < sets.TRAIN for run in alone),
        alone=len(collapses) - len(seen),
        named=rate(*judging.named(seen)),
        variance=variance,
        exponent=exponent,
        fewest=fewest,
        best=rate(*best),
        alarms=rate(*alarms),
    )


def _fewest_directions(run: Judged) -> float:
    """The fewest in an epoch after the warm-up."""
    return min(epoch.erank for epoch in judging.history(run.row) if epoch.epoch > WARMUP)


def _mistakes(runs: Sequence[Judged], where: str = "in the fourth part") -> str:
    lines = []
    for run in runs:
        said = ", ".join(f"{kind} in epoch {at}" for kind, at in run.warnings.items())
        about = f"{run.row['data']}: {run.row['setting']}"
        if run.collapsed and not run.named:
            label = ", ".join(f"{name} from epoch {at}" for name, at in run.events.items())
            lines.append(f"- missed: {about}; {label}; warned of: {said or 'nothing'}")
        elif run.control and run.warnings:
            lines.append(f"- false alarm: {about}; {said}")
    title = f"## Every mistake {where} ({len(lines)})\n\n"
    return title + "\n".join(lines or ["none"])
