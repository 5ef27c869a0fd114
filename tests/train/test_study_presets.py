"""The presets of ``conf/study``: each of their runs has a valid config."""

import math

import pytest
from conftest import ROOT
from omegaconf import OmegaConf

from rdm_solo.cli.arguments import compose
from rdm_solo.train import checks
from rdm_solo.train.sweep import runs_of

STUDIES = ROOT / "conf" / "study"


@pytest.mark.parametrize("name", [path.stem for path in STUDIES.glob("*.yaml")])
def test_every_run_of_a_preset_is_valid(name):
    params = OmegaConf.load(STUDIES / f"{name}.yaml").hydra.sweeper.params
    combinations = runs_of([f"{key}={values}" for key, values in params.items()])
    lengths = [len(str(values).split(",")) for values in params.values()]
    assert len(combinations) == math.prod(lengths)
    for options in combinations:
        cfg = compose("config", [f"+study={name}", *options], with_hydra=True)
        checks.check(cfg)
        assert cfg.hydra.sweeper.params == params
