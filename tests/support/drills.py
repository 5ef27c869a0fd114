"""Drills: the same test with a few seeded tries in the suite, and with many in `.ci/run drills`.

A test marked ``drill`` asks :func:`tries` how often to try and tells :func:`record` what came of
it; ``docs/cost.md`` has the table. ``DRILL_SEED`` draws other tries, and ``DRILL_TABLE``
names a file that gets a row of each.
"""

import os
import random

MANY = os.environ.get("DRILLS") == "many"
SEED = int(os.environ.get("DRILL_SEED", "0"))


def tries(few: int, many: int) -> int:
    """Return how often to try: ``few`` in the suite, ``many`` in the drills."""
    return many if MANY else few


def draws(name: str) -> random.Random:
    """Return random numbers of that drill, the same in every run with one ``DRILL_SEED``."""
    return random.Random(f"{name} {SEED}")


def record(name: str, tried: int, survived: int) -> None:
    """Print the drill's row, and fail where not every try survived."""
    row = f"drill: {name}: {survived} of {tried} tries survived (DRILL_SEED={SEED})"
    print(f"\n{row}")
    if table := os.environ.get("DRILL_TABLE"):
        with open(table, "a") as file:
            file.write(f"{row}\n")
    assert survived == tried, f"{name}: {tried - survived} of {tried} tries did not survive"
