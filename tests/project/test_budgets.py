"""Each room stays within its budget of lines (Python and templates)."""

import pytest
from conftest import ROOT

BUDGETS = {
    "rdm_solo/filters": 1250,
    "rdm_solo/spectra": 1850,
    "rdm_solo/theory": 540,
    "rdm_solo/data": 1650,
    "rdm_solo/methods": 2160,
    "rdm_solo/runs": 1600,
    "rdm_solo/plots": 1055,
    "rdm_solo/loggers": 450,
    "rdm_solo/callbacks": 1761,
    "rdm_solo/train": 1320,
    "rdm_solo/evaluate": 900,
    "rdm_solo/watch": 620,
    "rdm_solo/notebook": 500,
    "rdm_solo/report": 1600,
    "rdm_solo/preview rdm_solo/paper": 390,
    "rdm_solo/cli": 400,
    "rdm_solo hydra_plugins": 18150,
    "studies": 3200,
    "benchmarks": 900,
    "tests": 14500,
}
COUNTED = {".py", ".html", ".css", ".js"}


@pytest.mark.parametrize(("places", "most"), BUDGETS.items())
def test_a_room_is_within_its_budget(places, most):
    found = [path for place in places.split() for path in (ROOT / place).rglob("*")]
    files = [path for path in found if path.suffix in COUNTED]
    assert files
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= most


def test_every_room_has_a_budget():
    rooms = {f"rdm_solo/{path.parent.name}" for path in (ROOT / "rdm_solo").glob("*/__init__.py")}
    assert rooms <= set(" ".join(BUDGETS).split())
