"""Every run of every preset in ``conf/study`` has a valid config."""

import pytest
from conftest import ROOT

from rdm_solo.train import sweep

STUDIES = ROOT / "conf" / "study"


@pytest.mark.long
@pytest.mark.parametrize("name", [path.stem for path in STUDIES.glob("*.yaml")])
def test_every_run_of_a_preset_is_valid(name):
    sweep.check_all(["-m", f"+study={name}"])
