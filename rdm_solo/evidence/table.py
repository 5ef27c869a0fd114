"""The table of runs: a CSV with one line a run, from which the page is made without training."""

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rdm_solo.messages import UserError
from rdm_solo.runs.files import write_whole

# What is measured in a run; an accuracy is in per cent, a rank in directions. Columns of an
# untrained network's line stay empty where nothing was measured.
MEASURED = (
    "knn third",
    "knn end",
    "linear third",
    "linear end",
    "variance first",  # of the projection, here and below
    "variance",
    "erank projection first",
    "erank projection last",
    "erank online first",
    "erank online last",
    "erank online rise",
    "erank target first",
    "erank target last",
    "erank target rise",
    "gap epochs",
    "gap share",
    "epochs",
    "alignment",
    "alignment weighted",
    "alignment positive",
    "monotonicity",
    "monotonicity directional",
)
# Behind them: `settings` is a hash of the run's options, `code` the commit where one is known.
ABOUT = ("seconds", "settings", "code", "versions", "processor")
HEAD = ("row", "seed", "status", *MEASURED, *ABOUT)
OK = "ok"  # else the status says why the run failed

Line = Mapping[str, str]
# Row -> seed -> column -> value, of the runs that did not fail.
Runs = Mapping[str, Mapping[int, Mapping[str, float]]]


def line(
    row: str, seed: int, status: str, values: Mapping[str, float], about: Mapping[str, str]
) -> Line:
    """One run as a line; ValueError where a value is not finite."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise UserError(f"{name} is {value}, but a mean needs finite numbers")
    numbers = {name: f"{value:.7g}" for name, value in values.items()}
    return {"row": row, "seed": str(seed), "status": status, **numbers, **about}


def read(path: Path) -> list[Line]:
    """The lines of the file, none where there is no file."""
    lines = rows(path)
    runs: set[tuple[str, str]] = set()
    for number, found in enumerate(lines, start=2):
        if fault := _fault(found) or ("repeats a run" if _run(found) in runs else ""):
            raise UserError(f"{path}, line {number}, {fault}: remove it, or give another file")
        runs.add(_run(found))
    return lines


def _run(line: Line) -> tuple[str, str]:
    return line["row"], line["seed"]


def _fault(line: Line) -> str:
    """What is wrong with a line, if anything."""
    if tuple(line) != HEAD or None in line.values():
        return f"does not have the {len(HEAD)} columns of a table of runs"
    if not line["seed"].isdecimal():
        return f"has seed {line['seed']!r}, which is not a whole number"
    for name in (*MEASURED, "seconds"):
        try:
            finite = math.isfinite(float(line[name] or 0))
        except ValueError:
            finite = False
        if not finite:
            return f"has {name} {line[name]!r}, which is not a finite number"
    return ""


def hashed(settings: Any) -> str:
    """A hash of a run's settings, by which a table shows that they have changed since.

    >>> hashed({"lr": 0.1, "p": 1}) == hashed({"p": 1, "lr": 0.1}) != hashed({"p": 1})
    True
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


def rows(path: Path) -> list[Line]:
    """The lines of any study's table as they are, none where there is no file."""
    if not path.exists():
        return []
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def add(path: Path, new: Line) -> None:
    """Add a line; the file is whole at any moment. One process at a time may add."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, HEAD, [*read(path), new])


def write(path: Path, head: Sequence[str], lines: Sequence[Line]) -> None:
    """Write a table; what a line does not have stays empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, head, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_whole(path, text.getvalue())


def runs_of(lines: Sequence[Line], seeds: Sequence[int]) -> Runs:
    """The runs with these seeds that did not fail."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for each in lines:
        if each["status"] == OK and int(each["seed"]) in seeds:
            values = {name: float(each[name]) for name in MEASURED if each[name]}
            found.setdefault(each["row"], {})[int(each["seed"])] = values
    return found


def failures(lines: Sequence[Line], seeds: Sequence[int]) -> dict[str, dict[int, str]]:
    """Row -> seed -> why that run failed."""
    found: dict[str, dict[int, str]] = {}
    for each in lines:
        if each["status"] != OK and int(each["seed"]) in seeds:
            found.setdefault(each["row"], {})[int(each["seed"])] = each["status"]
    return found
