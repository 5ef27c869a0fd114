"""Every run of every preset in ``conf/study`` has a valid config."""

import re

import pytest
from conftest import ROOT
from omegaconf import OmegaConf

from rdm_solo.cli.arguments import compose
from rdm_solo.train import checks
from rdm_solo.train.sweep import runs_of

STUDIES = ROOT / "conf" / "study"


@pytest.mark.long
@pytest.mark.parametrize("name", [path.stem for path in STUDIES.glob("*.yaml")])
def test_every_run_of_a_preset_is_valid(name):
    params = OmegaConf.load(STUDIES / f"{name}.yaml").hydra.sweeper.params
    overrides = []
    count = 1
    for key, values in params.items():
        overrides.append(f"{key}={values}")
        without_schedules = re.sub(r"{.*?}", "schedule", str(values))
        count *= len(without_schedules.split(","))
    runs = runs_of(overrides)
    assert len(runs) == count
    for options in runs:
        cfg = compose("config", [f"+study={name}", *options], with_hydra=True)
        checks.check(cfg)
        assert cfg.hydra.sweeper.params == params
