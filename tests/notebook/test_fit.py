"""rdm_solo.fit has the command's numbers and errors, several times in one process."""

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
from support.small_runs import QUICK, SMALL

import rdm_solo
from rdm_solo import train
from rdm_solo.ground.errors import UserError
from rdm_solo.notebook.fitting import words

ARGUMENTS = [*QUICK[:2], *SMALL]
OPTIONS: dict[str, Any] = {}
for argument in ARGUMENTS:
    name, _, value = argument.partition("=")
    OPTIONS[name] = yaml.safe_load(value) if value else None


def process_state() -> list[object]:
    """Return what training might change in its process."""
    logger = logging.getLogger("rdm_solo")
    return [
        signal.getsignal(signal.SIGINT),
        signal.getsignal(signal.SIGTERM),
        logger.level,
        logger.handlers[:],
        os.getcwd(),
        random.getstate(),
        repr(np.random.get_state()),
        torch.get_rng_state().tolist(),
    ]


def test_two_fits_in_one_process_give_the_numbers_of_the_command(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    options = {"filter": "target_pow", "p": -0.5}
    command = typed(
        "rdm_solo.train",
        *ARGUMENTS,
        *words(options),
        "hydra.run.dir=command",
        cwd=tmp_path,
    )
    assert command.returncode == 0, command.stderr
    before = process_state()
    rdm_solo.fit(OPTIONS, method="byol", max_epochs=1, folder="byol", quiet=True)
    run = rdm_solo.fit(OPTIONS, **options, max_epochs=1, folder="fit", quiet=True)
    rdm_solo.fit(resume="fit", max_epochs=2, quiet=True)
    assert run.reload().epochs == 2
    assert process_state() == before
    assert "epoch 2/2" in Path("fit/train.log").read_text()  # also of a quiet run
    assert Path("fit/metrics.csv").read_bytes() == Path("command/metrics.csv").read_bytes()
    for key, values in rdm_solo.Run("command").spectra.items():
        np.testing.assert_array_equal(run.spectra[key], values)


def test_refusals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, message in (
        ({"optimizer": {"lrr": 0.1}}, r"did you mean 'optimizer\.lr'"),
        ({"trainer.accelerator": "cpu", "trainer.devices": 2}, "one process"),
        ({"a b": 1}, "a b"),
        ({"seed": torch.zeros(2)}, "seed"),
    ):
        with pytest.raises(UserError, match=message):
            rdm_solo.fit(options)
    assert not list(tmp_path.iterdir())


VALUES = [
    1,
    -0.5,
    1e-7,
    True,
    None,
    "word",
    "1",
    "null",
    "it's",
    "back\\",
    "\\'",
    "a,b",
    "k=v",
    "$x",
    "",
    "[1]",
    "{a: 1}",
    "é",
    "~/here",
    "# no",
    [1, "two", [None, "a,b"]],
    {"schedule": "linear", "start": -0.1},
    {"schedule": "steps", 1: -0.5, 11: 0},
]


def test_a_value_reaches_the_config_as_it_is():
    options = {f"++trainer.v{i}": value for i, value in enumerate(VALUES)}
    trainer = train.compose(words(options)).trainer
    for i, value in enumerate(VALUES):
        assert repr(trainer[f"v{i}"]) == repr(value)


def test_a_numpy_float_is_the_number_that_it_prints_and_a_path_needs_no_quotes():
    values = [np.float32(-0.3), np.float16(1e-3), np.float64("inf")]
    assert words({"p": values}) == ["p=[-0.3,0.001,inf]"]
    (argument,) = words({"dataset.root": Path("runs/p=-0.5,b")})
    assert train.compose(["dataset=folder", argument]).dataset.root == "runs/p=-0.5,b"
