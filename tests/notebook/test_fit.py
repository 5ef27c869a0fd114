"""rdm_solo.fit: the command's numbers and errors, several times in one process."""

from __future__ import annotations

import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import command
from support.small_runs import QUICK, SMALL

import rdm_solo
from rdm_solo import train
from rdm_solo.messages import UserError, shown
from rdm_solo.notebook.fitting import words

ARGUMENTS = [*QUICK[:2], *SMALL]
OPTIONS: dict[str, Any] = {
    name: yaml.safe_load(value) if equals else None
    for name, equals, value in (line.partition("=") for line in ARGUMENTS)
}


def process_state() -> dict[str, object]:
    """What training might change of the process that uses it."""
    names = (None, "rdm_solo")
    return {
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "logging": [(logging.getLogger(n).level, logging.getLogger(n).handlers[:]) for n in names],
        "folder": os.getcwd(),
        "random": (random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()),
    }


@pytest.mark.process
def test_two_fits_give_the_numbers_of_two_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"high": {"filter": "target_pow", "p": -0.5}, "byol": {"method": "byol"}}
    before = process_state()
    for name, options in settings.items():
        run = rdm_solo.fit(OPTIONS, **options, folder=f"fit/{name}", quiet=True)
        assert run.folder == Path("fit", name)
    assert process_state() == before
    for name, options in settings.items():
        arguments = [*ARGUMENTS, *words(options), f"hydra.run.dir=command/{name}"]
        done = command("rdm_solo.train", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        one, other = (rdm_solo.Run(Path(way, name)) for way in ("fit", "command"))
        csv, csv_of_command = ((run.folder / "metrics.csv").read_bytes() for run in (one, other))
        assert csv == csv_of_command
        for key, values in other.spectra.items():
            np.testing.assert_array_equal(one.spectra[key], values)


def test_the_same_folder_resumes(tmp_path):
    run = rdm_solo.fit(OPTIONS, max_epochs=1, folder=tmp_path / "run", quiet=True)
    assert run.epochs == 1
    assert rdm_solo.fit(resume=run.folder, max_epochs=2, quiet=True).epochs == 2
    assert run.reload().epochs == 2


def test_refusals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, message in (
        ({"optimizer": {"lrr": 0.1}}, r"did you mean 'optimizer\.lr'"),
        ({"trainer.accelerator": "cpu", "trainer.devices": 2}, "one process"),
        ({"a b": 1}, "is not an option's name"),
        ({"seed": torch.zeros(2)}, "seed must be .* got"),
    ):
        with pytest.raises(UserError, match=message):
            rdm_solo.fit(options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "value",
    [
        *(1, -0.5, 1e-7, np.float64(0.25), np.int64(3), True, False, None, "word", "a/b.c", "a b"),
        *("1", "null", "True", "it's", 'say "no"', "back\\", "a,b", "k=v", "$x", "", "[1]", "é"),
        *([1, "two", None], [], [[1], ["a,b"]], "~/here", "a: b", "# no", " ", "\\'", "{a: 1}"),
        {"schedule": "linear", "start": -0.1, "end": -0.5},
    ],
    ids=shown,
)
def test_a_value_reaches_the_config_as_it_is(value):
    (argument,) = words({"++trainer.mine": value})
    composed = train.compose([argument]).trainer.mine
    assert composed == value
    assert isinstance(composed, type(value)) or isinstance(value, (np.number, list, dict))


def test_a_numpy_float_is_the_number_that_it_prints_and_a_path_needs_no_quotes():
    values = [np.float32(-0.3), np.float16(1e-3), np.float64("inf")]
    assert words({"p": values}) == ["p=[-0.3,0.001,inf]"]
    (argument,) = words({"dataset.root": Path("runs/p=-0.5,b")})
    assert train.compose(["dataset=folder", argument]).dataset.root == "runs/p=-0.5,b"
