"""What a command says of itself."""

from __future__ import annotations

import io
import sys

import pytest
from conftest import command

from rdm_solo import cli
from rdm_solo.cli import check_arguments, config_folder


@pytest.mark.process
def test_help_lists_the_groups_of_its_own_command_alone(tmp_path):
    shown = command("rdm_solo.train", "--help", cwd=tmp_path).stdout
    listed = dict(
        line.split(": ", 1) for line in shown.split("Options")[0].splitlines() if ": " in line
    )
    for group in ("dataset", "filter", "logger", "method", "trainer", "experiment/cifar10"):
        options = sorted(path.stem for path in (config_folder() / group).glob("*.yaml"))
        assert sorted(listed[group].split(", ")) == options
    assert {name.partition("/")[0] for name in listed} == {
        *("dataset", "experiment", "filter", "logger", "method", "trainer")
    }


def test_a_folder_of_ones_own_adds_choices(tmp_path, capsys):
    (tmp_path / "filter").mkdir()
    (tmp_path / "filter" / "soft.yaml").write_text("# @package _global_\nfilter: {name: soft}\n")
    check_arguments(["--config-dir", str(tmp_path), "filter=soft"])
    with pytest.raises(SystemExit):
        check_arguments(["filter=soft"])
    with pytest.raises(SystemExit):
        check_arguments(["--config-dir", str(tmp_path), "filter=sof"])
    assert "did you mean 'soft'" in capsys.readouterr().err


@pytest.mark.parametrize("sign", ["+", "++"])
def test_any_argument_of_the_trainer_can_be_added(sign):
    check_arguments([f"{sign}trainer.limit_train_batches=2"])
    check_arguments([f"{sign}backbone.kwargs.width=8"])
    with pytest.raises(SystemExit):
        check_arguments([f"{sign}trainr.limit_train_batches=2"])


def test_a_terminal_without_sigma_is_no_reason_to_fail(monkeypatch):
    """A console of Windows: what it cannot show becomes a question mark."""
    console = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(sys, "stdout", console)
    with pytest.raises(UnicodeEncodeError):
        print("\N{GREEK SMALL LETTER SIGMA}", flush=True)
    cli.say_anything()
    print("\N{GREEK SMALL LETTER SIGMA}^-0.5", flush=True)
    assert console.buffer.getvalue().splitlines()[-1] == b"?^-0.5"
