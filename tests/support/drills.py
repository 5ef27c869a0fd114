"""Drills: the same test with a few seeded tries in the suite, and with many in `.ci/run drills`.

A test marked ``drill`` asks :func:`tries` how often to try and tells :func:`record` what came of
it; ``docs/reliability.md`` has the table. ``DRILL_SEED`` draws other tries, and ``DRILL_TABLE``
names a file that gets a row of each.
"""

import os
import random
from collections.abc import Callable

MANY = os.environ.get("DRILLS") == "many"
SEED = int(os.environ.get("DRILL_SEED", "0"))


def tries(few: int, many: int) -> int:
    """How often to try: ``few`` in the suite, ``many`` in the drills."""
    return many if MANY else few


def draws(name: str) -> random.Random:
    """Random numbers of that drill, the same in every run with one ``DRILL_SEED``."""
    return random.Random(f"{name} {SEED}")


def record(name: str, tried: int, survived: int, measured: str = "") -> None:
    """Print the drill's row, and fail where not every try survived."""
    row = f"drill: {name}: {survived} of {tried} tries survived (DRILL_SEED={SEED}){measured}"
    print(f"\n{row}")
    if table := os.environ.get("DRILL_TABLE"):
        with open(table, "a") as file:
            file.write(f"{row}\n")
    assert survived == tried, f"{name}: {tried - survived} of {tried} tries did not survive"


def record_faults(
    name: str, draw: random.Random, number: int, attempt: Callable[[int], tuple[str, Callable]]
) -> None:
    """Make that many attempts, and fail with the seed and the words of each that has a fault.

    An attempt gets a seed; it gives words on what it is about to try, and a function that returns
    what went wrong, or None. An exception is a fault as well.
    """
    bad = []
    for _ in range(number):
        seed = draw.getrandbits(32)
        words, fault = attempt(seed)
        try:
            problem = fault()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            bad.append(f"{seed} {words}: {problem}")
    print(*bad[:40], sep="\n")
    record(name, number, number - len(bad))
