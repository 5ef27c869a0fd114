"""Rooms do not grow (Python and templates): new work pays by deleting.

Lower a number when its room has become smaller.
"""

from __future__ import annotations

import pytest
from conftest import ROOT

BUDGETS = {
    "rdm_solo/filters": 1124,
    "rdm_solo/spectra": 1700,
    "rdm_solo/theory": 520,
    "rdm_solo/data": 1554,
    "rdm_solo/methods": 1800,
    "rdm_solo/runs": 1600,
    "rdm_solo/plots": 1050,
    "rdm_solo/loggers": 459,
    "rdm_solo/callbacks": 1597,
    "rdm_solo/train": 1250,
    "rdm_solo/evaluate": 900,
    "rdm_solo/watch": 620,
    "rdm_solo/notebook": 500,
    "rdm_solo/report": 1500,
    "rdm_solo/preview rdm_solo/paper": 380,
    "rdm_solo/cli": 436,
    "rdm_solo hydra_plugins": 17500,
    "studies": 2333,
    "benchmarks": 869,
    "tests": 15463,
}
COUNTED = {".py", ".html", ".css", ".js"}


@pytest.mark.parametrize(("places", "most"), BUDGETS.items())
def test_a_room_is_within_its_budget(places, most):
    files = [
        path
        for place in places.split()
        for path in (ROOT / place).rglob("*")
        if path.suffix in COUNTED
    ]
    assert files
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= most


def test_every_room_has_a_budget():
    rooms = {f"rdm_solo/{path.parent.name}" for path in (ROOT / "rdm_solo").glob("*/__init__.py")}
    assert rooms <= set(" ".join(BUDGETS).split())
