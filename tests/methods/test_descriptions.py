"""Methods and filters are described once: nobody else names them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from omegaconf import OmegaConf

from rdm_solo.filters import takes_p
from rdm_solo.methods.chosen_filter import FUNCTIONS, ChosenFilter, shipped_filters
from rdm_solo.methods.descriptions import FAMILIES, METHODS, method

# What describes and builds them, and the paper's rows as data.
ALLOWED = ("methods/", "paper/")
# What is measured, and the name of one of the paper's tables.
EXCEPTIONS = {
    ("report/paper_comparison.py", "byol"),
}
PACKAGE = sorted((ROOT / "rdm_solo").rglob("*.py"))
NAMES = {*METHODS, *(name for name, chosen in shipped_filters().items() if chosen.spectral)}


def test_the_config_group_and_the_descriptions_have_the_same_methods():
    files = sorted((ROOT / "conf" / "method").glob("*.yaml"))
    assert {path.stem for path in files} == set(METHODS)
    for path in files:
        cfg = OmegaConf.load(path)
        described = METHODS[path.stem]
        assert cfg.method.name == described.name == path.stem
        assert ("momentum" in cfg.method) is described.momentum
        no_filter = [{"override /filter": "none"}] if "defaults" in cfg else None
        assert (cfg.get("defaults") == no_filter) or no_filter is None
        assert ("defaults" in cfg) is bool(described.no_filter)


def test_every_method_has_a_family_and_a_target_and_stands_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, described in METHODS.items():
        assert described.family in FAMILIES
        assert described.target
        assert f"`{name}`" in readme
        if described.symmetric:
            assert described.no_filter


def test_a_negative_gap_is_watched_where_the_mechanism_says_that_the_target_leads():
    for name, described in METHODS.items():
        cfg = OmegaConf.load(ROOT / "conf" / "method" / f"{name}.yaml")
        switched_off = "watch" in cfg and cfg.watch.gap_epochs is None
        if described.family != "symmetric":  # whose gap is zero
            assert switched_off is not described.leads


def test_described_functions_are_the_registered_ones():
    for name, chosen in shipped_filters().items():
        assert not chosen.spectral or name == f"{chosen.branch}_{chosen.function}"
        if chosen.spectral:
            assert ("{p}" in FUNCTIONS[chosen.function].formula) is takes_p(chosen.function)
            assert (chosen.p is not None) is takes_p(chosen.function)


def test_what_follows_from_a_description():
    symmetric = {name for name, described in METHODS.items() if described.symmetric}
    assert symmetric >= {"symsimsiam", "vanilla"}
    assert {name for name, m in METHODS.items() if not m.no_filter} >= {"simsiam", "byol"}
    assert {name for name, m in METHODS.items() if m.softmax} >= {"swav", "dino"}
    with pytest.raises(ValueError, match="did you mean 'byol'"):
        method("boyl")


def test_a_config_with_a_filters_name_alone_is_understood():
    chosen = ChosenFilter.of(OmegaConf.create({"filter": {"name": "target_pow"}, "p": -1}))
    assert (chosen.branch, chosen.function, chosen.p) == ("target", "pow", -1)


def test_descriptions_need_neither_torch_nor_solo_learn():
    script = (
        "import sys; import rdm_solo.methods.descriptions; "
        "print(sorted({'torch', 'solo', 'lightning', 'pytorch_lightning'} & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


def literals(path: Path) -> Iterator[ast.Constant]:
    yield from (node for node in ast.walk(ast.parse(path.read_text())) if _is_text(node))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_no_other_module_names_a_method_or_a_filter():
    rooms = {path.relative_to(ROOT / "rdm_solo").as_posix(): path for path in PACKAGE}
    found = {
        (name, literal.value)
        for name, path in rooms.items()
        if not name.startswith(ALLOWED)
        for literal in literals(path)
        if literal.value in NAMES
    }
    assert found <= EXCEPTIONS, "ask rdm_solo.methods.descriptions by property instead"
