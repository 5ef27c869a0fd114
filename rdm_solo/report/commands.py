"""The commands that repeat runs."""

import shlex
from collections import defaultdict

from rdm_solo.runs import reading
from rdm_solo.runs.files import OVERRIDES
from rdm_solo.runs.groups import Group


def commands(group: Group) -> list[str]:
    """Return the commands that repeat a setting's runs; one command covers several seeds."""
    seeds: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for run in group.runs:
        try:
            overrides = reading.read_yaml(run.folder, OVERRIDES)
        except (OSError, ValueError):  # missing or damaged: the command is unknown
            continue
        if isinstance(overrides, list):  # an empty file gives a mapping
            rest = tuple(str(o) for o in overrides if _section(str(o)) not in ("seed", "launcher"))
            seeds[rest].append(str(run.seed))
    lines = []
    for rest, numbers in seeds.items():
        multirun = ["-m"] if len(numbers) > 1 else []
        words = [*multirun, *rest, f"seed={','.join(sorted(numbers, key=int))}"]
        lines.append(shlex.join(["python", "-m", "rdm_solo.train", *words]))
    return lines


def _section(override: str) -> str:
    """Return the option that an override sets, or its section.

    >>> _section("++launcher.jobs=2"), _section("seed=1")
    ('launcher', 'seed')
    """
    return override.lstrip("+").partition("=")[0].partition(".")[0]
