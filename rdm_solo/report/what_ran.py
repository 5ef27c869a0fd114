"""What exactly was run: the settings in a table, and the commands that repeat them."""

import shlex
import statistics
from collections import defaultdict
from collections.abc import Sequence

from omegaconf import OmegaConf

from rdm_solo.messages import finite, listed
from rdm_solo.report.tables import Table
from rdm_solo.runs import reading
from rdm_solo.runs.files import OVERRIDES
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import Group, run_name
from rdm_solo.runs.labels import exponent


def ran(groups: Sequence[Group]) -> Table:
    """What was run; a column that no run says anything of is left out."""
    head = ["setting", "filter", "p", "data", "network", "batch", "seeds", "epochs", "time", "on"]
    rows = []
    versions: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        run, runs = group.first, group.runs
        done = sorted({r.epochs for r in runs})
        epochs = "–".join(map(str, done))
        asked = run.config.get("max_epochs")  # which a loop of somebody's own need not say
        rows.append(
            [
                group.label,
                run.filter,
                exponent(run.config.get("p")) or "–",
                run.dataset,
                str(OmegaConf.select(run.config, "backbone.name", default="–")),
                global_batch(run),
                ", ".join(str(seed) for seed in sorted(r.seed for r in runs)),
                epochs if asked is None or done == [asked] else f"{epochs} of {asked}",
                _mean_time(runs),
                ", ".join(sorted({str(r.summary.get("device", "–")) for r in runs})),
            ]
        )
        for run in runs:
            known = run.summary.get("versions") or {}
            text = ", ".join(f"{name} {number}" for name, number in known.items())
            versions[text or "versions unknown (no summary.json)"].append(run_name(run))
    notes = [
        f"{text}." if len(versions) == 1 else f"{text}: {listed(names)}."
        for text, names in versions.items()
    ]
    caption = (
        "The settings of the runs. Time is the mean wall time of a run; of a resumed one, the "
        "time since it was resumed."
    )
    said = [i for i in range(len(head)) if any(row[i] != "–" for row in rows)]
    return Table(caption, [head[i] for i in said], [[row[i] for i in said] for row in rows], notes)


def global_batch(run: Run) -> str:
    """Images of a batch, over all devices."""
    derived = run.summary.get("derived") or {}
    return str(derived.get("global_batch", run.config.get("batch_size", "–")))


def _mean_time(runs: Sequence[Run]) -> str:
    known = [seconds for run in runs if (seconds := finite(run.summary.get("seconds"))) is not None]
    return f"{statistics.fmean(known) / 60:.1f} min" if known else "–"


def commands(group: Group) -> list[str]:
    """The commands that repeat the group's runs; seeds that differ alone are one multirun."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for run in group.runs:
        try:
            overrides = reading.read_yaml(run.folder, OVERRIDES)
        except Exception:  # none kept, or not readable: the command is not known
            continue
        if isinstance(overrides, list):  # an empty file is a mapping
            typed = map(str, overrides)
            rest = (word for word in typed if _option(word) not in ("seed", "launcher"))
            found[tuple(rest)].append(str(run.seed))
    lines = []
    for seedless, seeds in found.items():
        sweep = ["-m"] if len(seeds) > 1 else []
        words = [*sweep, *seedless, f"seed={','.join(sorted(seeds, key=int))}"]
        lines.append(shlex.join(["python", "-m", "rdm_solo.train", *words]))
    return lines


def _option(word: str) -> str:
    """The option that a word sets, or the section of it.

    >>> _option("++launcher.jobs=2"), _option("seed=1")
    ('launcher', 'seed')
    """
    return word.lstrip("+").partition("=")[0].partition(".")[0]
