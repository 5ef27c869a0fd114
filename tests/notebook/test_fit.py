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
OPTIONS: dict[str, Any] = {
    name: yaml.safe_load(value) if equals else None
    for name, equals, value in (line.partition("=") for line in ARGUMENTS)
}


def process_state() -> dict[str, object]:
    """Return what training might change in its process."""
    names = (None, "rdm_solo")
    return {
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "logging": [(logging.getLogger(n).level, logging.getLogger(n).handlers[:]) for n in names],
        "folder": os.getcwd(),
        "random": (random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()),
    }


def test_two_fits_in_one_process_give_the_numbers_of_the_command(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    options = {"filter": "target_pow", "p": -0.5}
    arguments = [*ARGUMENTS, *words(options), "hydra.run.dir=command"]
    done = typed("rdm_solo.train", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before = process_state()
    rdm_solo.fit(OPTIONS, method="byol", max_epochs=1, folder="byol", quiet=True)
    run = rdm_solo.fit(OPTIONS, **options, max_epochs=1, folder="fit", quiet=True)
    assert (run.folder, run.epochs) == (Path("fit"), 1)
    rdm_solo.fit(resume="fit", max_epochs=2, quiet=True)
    assert run.reload().epochs == 2
    assert process_state() == before
    assert Path("fit/metrics.csv").read_bytes() == Path("command/metrics.csv").read_bytes()
    for key, values in rdm_solo.Run("command").spectra.items():
        np.testing.assert_array_equal(run.spectra[key], values)


def test_refusals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for options, message in (
        ({"optimizer": {"lrr": 0.1}}, r"did you mean 'optimizer\.lr'"),
        ({"trainer.accelerator": "cpu", "trainer.devices": 2}, "one process"),
        ({"a b": 1}, "a b"),
        ({"seed": torch.zeros(2)}, "seed must be .* got"),
    ):
        with pytest.raises(UserError, match=message):
            rdm_solo.fit(options)
    assert not list(tmp_path.iterdir())


VALUES = [1, -0.5, 1e-7, True, False, None, "word", "a/b.c", "a b", "1", "null", "True", "it's"]
VALUES += ['say "no"', "back\\", "a,b", "k=v", "$x", "", "[1]", "é", "~/here", "a: b", "# no", " "]
VALUES += ["\\'", "{a: 1}", [1, "two", None], [], [[1], ["a,b"]]]
VALUES += [{"schedule": "linear", "start": -0.1, "end": -0.5}, np.float64(0.25), np.int64(3)]


def test_a_value_reaches_the_config_as_it_is():
    composed = train.compose(words({f"++trainer.v{i}": value for i, value in enumerate(VALUES)}))
    for i, value in enumerate(VALUES):
        read = composed.trainer[f"v{i}"]
        assert read == value
        assert isinstance(read, type(value)) or isinstance(value, (np.number, list, dict))


def test_a_numpy_float_is_the_number_that_it_prints_and_a_path_needs_no_quotes():
    values = [np.float32(-0.3), np.float16(1e-3), np.float64("inf")]
    assert words({"p": values}) == ["p=[-0.3,0.001,inf]"]
    (argument,) = words({"dataset.root": Path("runs/p=-0.5,b")})
    assert train.compose(["dataset=folder", argument]).dataset.root == "runs/p=-0.5,b"
