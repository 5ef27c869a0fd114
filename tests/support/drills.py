"""Drills: the same test with a few seeded tries in the suite, and with many in `.ci/run drills`.

A test marked ``drill`` gets the number of tries from :func:`tries` and passes the result to
:func:`record`; ``docs/evidence.md`` has the table. Another ``DRILL_SEED`` draws other tries.
``DRILL_TABLE`` names a file to which each drill adds a row.
"""

import os
import random

MANY = os.environ.get("DRILLS") == "many"
SEED = int(os.environ.get("DRILL_SEED", "0"))


def tries(few: int, many: int) -> int:
    """Return how often to try: ``few`` in the suite, ``many`` in the drills."""
    return many if MANY else few


def draws(name: str) -> random.Random:
    """Return a drill's generator; equal values of ``DRILL_SEED`` give equal numbers."""
    return random.Random(f"{name} {SEED}")


def record(name: str, tried: int, survived: int) -> None:
    """Print the drill's row, and fail if a try did not survive."""
    row = f"drill: {name}: {survived} of {tried} tries survived (DRILL_SEED={SEED})"
    print(f"\n{row}")
    if table := os.environ.get("DRILL_TABLE"):
        with open(table, "a") as file:
            file.write(f"{row}\n")
    assert survived == tried, f"{name}: {tried - survived} of {tried} tries did not survive"
