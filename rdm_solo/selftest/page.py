"""The page that is printed, line by line, and the file that goes with a bug report."""

import json
import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rdm_solo.selftest.private import scrubbed
from rdm_solo.selftest.results import FAILED, NOT_TESTED, OK, Result

FORMAT = 1
WIDTH = 110


def head(facts: Mapping[str, str]) -> str:
    """Versions and devices.

    >>> print(head({"python": "3.11", "torch": "2.15"}))
    python 3.11; torch 2.15
    """
    return textwrap.fill("; ".join(f"{name} {value}" for name, value in facts.items()), WIDTH)


def line(result: Result) -> str:
    """A result on a line: verdict, name, figure, bound.

    >>> print(line(Result("sums", "ok", "off by 1e-09", "1e-05")))
    ok          sums                                   off by 1e-09  (bound: 1e-05)
    """
    bound = f"  (bound: {result.bound})" if result.verdict != NOT_TESTED and result.bound else ""
    return f"{result.verdict:<11} {result.name:<38} {result.figure}{bound}"


def foot(results: Iterable[Result], seconds: float, out: str, on_cpu: bool) -> str:
    """How many lines have which verdict, and what to do next."""
    verdicts = [result.verdict for result in results]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in (OK, FAILED, NOT_TESTED))
    lines = [f"{counts}; {seconds:.0f} s. All figures, and the errors: {out}"]
    if FAILED in verdicts:
        lines.append(
            "Something failed: please report it with that file. Names of users, folders and hosts "
            "that are known here are taken out of it; look through it before you send it. "
            "docs/selftest.md says what each line means."
        )
        if not on_cpu:
            lines.append(
                "These checks were written without a GPU: one of them may be wrong itself."
            )
    return "\n".join(lines)


def content(
    facts: Mapping[str, str],
    command: Mapping[str, Any],
    results: Mapping[str, Iterable[Result]],
    seconds: float,
) -> str:
    """The file: JSON, without what is known to say who or where somebody is."""
    whole = {
        "format": FORMAT,
        "machine": dict(facts),
        "command": dict(command),
        "seconds": round(seconds, 1),
        "results": [
            {"group": group, **asdict(result)}
            for group, found in results.items()
            for result in found
        ],
    }
    return json.dumps(_plain(scrubbed(whole)), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """JSON knows neither NaN nor infinity: as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
