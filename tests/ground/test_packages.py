"""Missing packages are named with the commands that install them."""

import importlib.util
import sys

import pytest

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.packages import check_installed

SOLO = "pip install --no-deps solo-learn==1.0.2"


@pytest.mark.parametrize(
    ("modules", "files", "commands"),
    [
        (["solo", "hydra"], [], ["pip install '.[train]'", SOLO]),
        (["solo", "wandb", "hydra"], ["uv"], ["uv pip install '.[wandb,train]'", f"uv {SOLO}"]),
        (["solo", "hydra"], ["uv", "pyproject.toml"], ["uv sync --inexact"]),
        (["wandb"], ["uv", "pyproject.toml"], ["uv sync --inexact --extra wandb"]),
    ],
)
def test_missing_packages_are_named_with_what_installs_them(
    modules, files, commands, tmp_path, monkeypatch
):
    for name in files:
        (tmp_path / name).touch()
    environment = "home = /usr\n"
    if "uv" in files:
        environment += "uv = 0.13\n"
    (tmp_path / "pyvenv.cfg").write_text(environment)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    module = tmp_path / "rdm_solo" / "ground" / "packages.py"
    monkeypatch.setattr("rdm_solo.ground.packages.__file__", str(module))

    with pytest.raises(UserError) as refused:
        check_installed("a run", *modules)
    first, *others = str(refused.value).splitlines()
    assert [line.strip() for line in others] == commands
    for name in modules:
        assert name in first
