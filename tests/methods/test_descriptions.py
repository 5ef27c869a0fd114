"""Methods and filters are described once: no other module names them."""

import ast

import pytest
from conftest import ROOT
from omegaconf import OmegaConf

from rdm_solo.filters import takes_p
from rdm_solo.methods.chosen_filter import FUNCTIONS, shipped_filters
from rdm_solo.methods.descriptions import FAMILIES, METHODS

# What describes and builds them, and the paper's rows as data.
ALLOWED = ("methods/", "paper/")
# What is measured, and the name of one of the paper's tables.
EXCEPTIONS = {("report/tables.py", "byol")}
SPECTRAL = {name: chosen for name, chosen in shipped_filters().items() if chosen.spectral}


def test_every_method_has_a_config():
    assert {path.stem for path in (ROOT / "conf" / "method").glob("*.yaml")} == {*METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_the_config_agrees_with_the_description(name):
    description = METHODS[name]
    cfg = OmegaConf.load(ROOT / "conf" / "method" / f"{name}.yaml")
    assert cfg.method.name == name
    assert ("momentum" in cfg.method) is description.momentum
    takes_none = cfg.get("defaults") == [{"override /filter": "none"}]
    assert takes_none is bool(description.no_filter)
    assert description.family in FAMILIES
    assert description.target
    # A negative gap is watched where the mechanism predicts that the target leads.
    if description.family != "symmetric":
        watched = "watch" not in cfg or cfg.watch.gap_epochs is not None
        assert watched is description.leads


@pytest.mark.parametrize("name", SPECTRAL)
def test_a_described_function_is_registered(name):
    chosen = SPECTRAL[name]
    assert name == f"{chosen.branch}_{chosen.function}"
    assert chosen.function in FUNCTIONS
    assert (chosen.p is not None) is takes_p(chosen.function)


def test_no_other_module_names_a_method_or_a_filter():
    package = ROOT / "rdm_solo"
    names = {*METHODS, *SPECTRAL}
    named = set()
    for path in package.rglob("*.py"):
        file = path.relative_to(package).as_posix()
        if file.startswith(ALLOWED):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value in names:
                named.add((file, node.value))
    assert named <= EXCEPTIONS, "ask rdm_solo.methods.descriptions by property instead"
