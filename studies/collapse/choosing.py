"""How the bounds of the warnings were tuned: all of a grid, on the runs of some parts."""

from collections.abc import Sequence
from itertools import product

from rdm_solo.spectra.collapse import Bounds
from studies.collapse import judging
from studies.collapse.judging import WARMUP, Judged
from studies.table import Row

VARIANCES = (0.03, 0.05, 0.07, 0.1, 0.15, 0.2)
ERANKS = (0.18, 0.21, 0.24, 0.27)
MIN_DIRECTIONS = (2, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6)
MOST_ALARMS = 0.05

Count = tuple[int, int]  # of how many
Place = tuple[int, int, int]  # in the lists above


def bounds_in_order(rows: Sequence[Row]) -> list[tuple[Bounds, Count, Count]]:
    """Return all bounds, the best first, with the collapses detected in time and false alarms.

    Among equals the one in the middle comes first, because the next run may lie on either side.
    """
    runs = [(row, judging.events(row), judging.history(row)) for row in rows]
    judged: dict[tuple[int, float, float], Judged] = {}  # several bounds are one in a small space

    def judge(number: int, bounds: Bounds) -> Judged:
        row, events, epochs = runs[number]
        key = number, bounds.variance or 0, bounds.min_rank(int(row["dimensions"]))
        if key not in judged:
            warnings = judging.warnings(epochs, judging.expected(row, bounds))
            judged[key] = Judged(row, events, warnings)
        return judged[key]

    def order(entry: tuple[Place, Bounds, Count, Count]) -> tuple[bool, int, int]:
        _, _, (in_time, _), (alarms, healthy) = entry
        return alarms > MOST_ALARMS * healthy, -in_time, alarms

    entries = []
    for place in product(*(range(len(values)) for values in (VARIANCES, ERANKS, MIN_DIRECTIONS))):
        i, j, k = place
        bounds = Bounds(VARIANCES[i], ERANKS[j], warmup=WARMUP, fewest=MIN_DIRECTIONS[k])
        outcome = [judge(number, bounds) for number in range(len(runs))]
        entries.append((place, bounds, judging.in_time(outcome), judging.alarms(outcome)))
    entries.sort(key=order)
    best = [entry for entry in entries if order(entry) == order(entries[0])]
    middle = [sum(axis) / len(best) for axis in zip(*(place for place, *_ in best))]
    best.sort(key=lambda entry: sum((at - m) ** 2 for at, m in zip(entry[0], middle)))
    return [(bounds, *counts) for _, bounds, *counts in best + entries[len(best) :]]
