"""Each check of the selftest can fail: something is broken on purpose, and the line says so."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import multiprocessing
import os
import re
import socket
import types
import warnings
from pathlib import Path

import pytest
import torch
from conftest import command
from support.second_device import DEVICE
from support.waits import Waits

from rdm_solo.filters import SpectralFilter, batch, spectral_filter
from rdm_solo.messages import CannotWrite, first_line
from rdm_solo.selftest import (
    batches,
    decompositions,
    entry,
    epochs,
    filters,
    machine,
    page,
    processes,
    spectra,
    steps,
    waits,
)
from rdm_solo.selftest.private import scrubbed
from rdm_solo.selftest.results import FAILED, NOT_TESTED, OK, Check, Result, Settings, attempt
from rdm_solo.spectra import branch_spectra, moments, sphere

SMALL = ["batch_size=8", "dataset.image_size=8", "backbone.name=small_resnet"]
SMALL += ["backbone.kwargs.zero_init_residual=null", "+backbone.kwargs.width=4"]
SMALL += ["method.kwargs.proj_hidden_dim=16", "method.kwargs.proj_output_dim=8"]
CPU = Settings("cpu", 2, 1, tuple(SMALL))
FEW = [("1/i after batch norm", 64, 64), ("well conditioned", 24, 48)]


def verdicts(module: types.ModuleType, settings: Settings = CPU) -> dict[str, str]:
    """The verdict of each of a module's lines."""
    found = [result for check in module.checks(settings) for result in attempt(check)]
    assert len({result.name for result in found}) == len(found)
    return {result.name: result.verdict for result in found}


@pytest.fixture
def few(monkeypatch):
    """Not the hundred batches of the command."""
    monkeypatch.setattr(filters, "WHOLE", FEW)


def failing(module: types.ModuleType) -> set[str]:
    return {name for name, verdict in verdicts(module).items() if verdict == FAILED}


def test_filters_of_this_version_pass(few):
    assert set(verdicts(filters).values()) == {OK}


def test_a_gram_matrix_in_float32_fails(few, monkeypatch):
    eigh = torch.linalg.eigh

    def narrow(gram):
        return [x.double() for x in eigh(gram.float())]

    monkeypatch.setattr(torch.linalg, "eigh", narrow)
    assert {"online_log, TF32 off", "target_pow, TF32 off"} <= failing(filters)


@pytest.mark.parametrize(
    ("when", "lines"),
    [
        (
            lambda: torch.get_float32_matmul_precision() == "high",
            {"all filters, TF32 allowed", *(f"all filters, {kind}" for kind in batches.HOSTILE)},
        ),
        (lambda: torch.is_autocast_enabled("cpu"), {"all filters, autocast in bfloat16"}),
    ],
    ids=["TF32", "autocast"],
)
def test_a_filter_that_loses_digits_under_a_setting_fails_there_alone(
    few, monkeypatch, when, lines
):
    exact = spectral_filter.filter_online

    def online(spectrum, gain):
        out, operator = exact(spectrum, gain)
        return (out.bfloat16().to(out) if when() else out), operator

    monkeypatch.setattr(spectral_filter, "filter_online", online)
    assert failing(filters) == lines


def test_a_gradient_that_is_a_thousandth_too_long_fails(few, monkeypatch):
    exact = spectral_filter.filter_gradient
    monkeypatch.setattr(spectral_filter, "filter_gradient", lambda *x: exact(*x) * 1.001)
    (check, *_) = filters.checks(CPU)
    (result,) = attempt(check)
    assert (result.verdict, result.name) == (FAILED, "online_log, TF32 off")
    assert "gradient of online_log" in result.figure


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: found._replace(matrix=found.matrix * 1.001), "1.0e-03"),
        (lambda found: found._replace(exact=found.exact & False), "the products did not meet"),
    ],
    ids=["a thousandth off", "left to eigh"],
)
def test_products_that_do_not_meet_their_bound_fail(few, monkeypatch, change, says):
    exact = spectral_filter.power
    monkeypatch.setattr(spectral_filter, "power", lambda *arguments: change(exact(*arguments)))
    (check,) = (c for c in filters.checks(CPU) if c.name == "target_pow, solver=iterative")
    (result,) = attempt(check)
    assert result.verdict == FAILED
    assert says in result.figure


def test_settings_of_torch_are_as_they_were(few):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        verdicts(filters)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_what_is_not_finite_fails():
    nan = float("nan")
    assert not batches.off(torch.full((2, 2), nan), torch.ones(2, 2).double()) <= 1e9


def test_the_oracle_is_a_matrix_function():
    """Of the square root of x x^T, by Newton's iteration, on a batch whose rows are broken."""
    given = batches.batch("a row of NaN", 48, 96)
    values, gradient = given.wanted(torch.ones_like)
    x = given.x.double().nan_to_num(0.0)
    torch.testing.assert_close(values, x)
    squared, _ = given.wanted(torch.square)
    torch.testing.assert_close(squared, x @ x.mT @ x)
    want = given.grad.double().masked_fill(given.short, 0.0)
    inside = torch.linalg.pinv(x) @ x
    torch.testing.assert_close(gradient, want @ inside)


@pytest.fixture
def short(monkeypatch):
    """Few rows and columns."""
    monkeypatch.setattr(spectra, "N", 48)
    monkeypatch.setattr(spectra, "K", 32)
    sample = {"max_dim": 16, "sample": 48}
    monkeypatch.setattr(spectra, "ROUTES", {"k x k matrices": {}, "a sample of rows": sample})


def test_spectra_pass_and_fail_where_eigenvalues_are_a_thousandth_off(short, monkeypatch):
    assert set(verdicts(spectra).values()) == {OK}
    exact = moments._eigenvalues
    monkeypatch.setattr(moments, "_eigenvalues", lambda C: exact(C) * 1.001)
    assert failing(spectra) == set(verdicts(spectra)) - {"uniformity"}


def test_uniformity_fails_where_autocast_reaches_its_product(short, monkeypatch):
    plain = sphere._squared_distances

    def rounded(x, y):
        return plain(*(each.bfloat16().to(x.dtype) for each in (x, y)))

    monkeypatch.setattr(sphere, "_squared_distances", rounded)
    assert failing(spectra) == {"uniformity"}


def test_spectra_that_lack_an_eigenvalue_fail(short, monkeypatch):
    """The smallest: those that are left are right."""
    whole = spectra.measured

    def shortened(*arguments):
        found = whole(*arguments)
        return dataclasses.replace(found, lam_online=found.lam_online[:-1])

    monkeypatch.setattr(spectra, "measured", shortened)
    found = [result for check in spectra.checks(CPU) for result in attempt(check)]
    eigenvalues = [result for result in found if result.name != "uniformity"]
    assert all(result.verdict == FAILED for result in eigenvalues), found
    assert "31 eigenvalues (online) of 32" in found[0].figure


def test_spectra_that_keep_a_broken_row_fail(short, monkeypatch):
    """Its numbers are replaced instead."""
    update = branch_spectra.BranchSpectra.update
    monkeypatch.setattr(
        branch_spectra.BranchSpectra,
        "update",
        lambda self, *parts: update(self, *(x.nan_to_num(1.0) for x in parts)),
    )
    assert failing(spectra) == set(verdicts(spectra))


def test_on_a_cpu_nothing_waits():
    assert verdicts(waits) == {"waits for the device": NOT_TESTED}


def test_torchs_warnings_of_cuda_are_counted(monkeypatch):
    """Its sentence stands in libc10_cuda; the first use of the mode adds another one."""
    mode = [0]

    def setting(new: object) -> None:
        mode.append(new)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", setting)

    def run() -> None:
        assert mode[-1] == "warn"
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    found = waits.count(Settings("cuda", 1, 1), run)
    assert len(found) == 3
    assert all("test_selftest.py:" in line for line in found)
    assert mode[-1] == 0
    with pytest.raises(ZeroDivisionError):
        waits.count(Settings("cuda", 1, 1), lambda: 1 / 0)
    assert mode[-1] == 0


@contextlib.contextmanager
def counted_there():
    found: list[str] = []
    with Waits() as counter:
        yield found
    found += [wait.where for wait in counter.found]


@contextlib.contextmanager
def blind():
    yield []


def there(broken: str) -> dict[str, tuple[str, str]]:
    """Lines of the device, where a filter reads its counts in every call, or nothing is counted."""
    settings = Settings(DEVICE, 1, 1, tuple(SMALL))
    waits.COUNTERS["fake"] = blind if broken == "blind" else counted_there
    every, SpectralFilter.EVERY = SpectralFilter.EVERY, 1 if broken == "twice" else 50
    try:
        found = [result for check in waits.checks(settings) for result in attempt(check)]
    finally:
        SpectralFilter.EVERY = every
    return {result.name: (result.verdict, result.figure) for result in found}


def test_waits_are_counted_on_a_device(on_second_device):
    assert on_second_device(there, "") == {
        "a filter's call, forward and backward": (OK, "1 wait"),
        "an update of the spectra": (OK, "0 waits"),
        "a SimSiam step with its predictor": (OK, "0 waits"),
        "a SimSiam step with target_pow": (OK, "2 waits"),
        "recording a step for the spectra": (OK, "0 waits"),
    }


def test_a_filter_that_waits_twice_fails(on_second_device):
    found = on_second_device(there, "twice")
    failed = {name for name, (verdict, _) in found.items() if verdict == FAILED}
    assert failed == {"a filter's call, forward and backward", "a SimSiam step with target_pow"}
    assert found["a filter's call, forward and backward"][1].startswith("2 waits: online_log")


def test_a_counter_that_sees_nothing_is_not_believed(on_second_device):
    assert {verdict for verdict, _ in on_second_device(there, "blind").values()} == {NOT_TESTED}


def exact_there() -> list[tuple[str, str, str]]:
    """Filters and spectra on the device, without autocast, which torch lacks for it."""
    settings = Settings(DEVICE, 1, 1)
    with pytest.MonkeyPatch.context() as patch:  # other tests run in this process, too
        for module in (filters, spectra):
            patch.setattr(module, "half_types", lambda settings: [])
        for module, name, value in (
            (filters, "WHOLE", FEW),
            (spectra, "N", 48),
            (spectra, "K", 32),
        ):
            patch.setattr(module, name, value)
        found = [r for m in (filters, spectra) for c in m.checks(settings) for r in attempt(c)]
    return [(result.name, result.verdict, result.figure) for result in found]


def test_filters_and_spectra_are_checked_on_a_device(on_second_device):
    found = on_second_device(exact_there)
    assert len(found) == 14
    assert [line for line in found if line[1] != OK] == []


def of_process(rank: int, world: int, alone: bool):
    """What a process measures; ``alone``, each filter sees its own shard."""
    if not alone:
        return processes.measured(rank, world, world, "cpu", FILTERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "world_size", lambda: 1)
        patch.setattr(batch, "gather_equal", lambda x: x)
        patch.setattr(batch, "sum_over_processes", lambda x: x)
        patch.setattr(batch, "rank", lambda: 0)
        return processes.measured(rank, world, world, "cpu", FILTERS)


FILTERS = [("target_pow", "target", "pow", -0.5), ("online_log1p", "online", "log1p", None)]


@pytest.mark.parametrize("alone", [False, True])
def test_processes_that_filter_their_shard_alone_fail(worlds, monkeypatch, alone):
    monkeypatch.setattr(filters, "spectral", lambda: [f for f in SPECTRAL if f.name in NAMES])
    monkeypatch.setattr(processes, "run", lambda *_: worlds(2).run(of_process, alone))
    expected = {"values": FAILED, "gradients": FAILED} if alone else {"values": OK, "gradients": OK}
    found = verdicts(processes)
    words = "on 2 CPU processes (gloo)"
    assert found == {f"{k} {words}": v for k, v in (expected | {"eigenvalues": OK}).items()}


NAMES = {name for name, *_ in FILTERS}
SPECTRAL = filters.spectral()


def test_one_process_is_no_test():
    for device, word in (("cpu", "one process"), ("cuda", "one GPU")):
        (check,) = processes.checks(Settings(device, 1, 1))
        (result,) = attempt(check)
        assert (result.verdict, result.figure) == (NOT_TESTED, f"{word}; two or more are needed")


def test_a_process_that_fails_and_one_that_hangs_end_as_a_line():
    """Both as the command starts them; the second before it has loaded torch."""
    before = {child.pid for child in multiprocessing.active_children()}
    for settings, asked, said in (
        (
            Settings("cpu", 1, 1),
            [("x", "online", "nonsense", None)],
            r"process 0: ValueError: .*'n",
        ),
        (Settings("cpu", 2, 1, patience=0.2), FILTERS, "TimeoutError: the 2 processes were not"),
    ):
        check = Check("x", lambda s=settings, a=asked: processes.run(s, a))
        (result,) = attempt(check)
        assert result.verdict == FAILED
        assert re.search(said, result.figure), result.figure
        assert "Traceback" in result.traceback
    assert not {child.pid for child in multiprocessing.active_children()} - before


def test_steps_are_measured_and_a_loss_of_nan_fails(monkeypatch):
    chosen = [steps.CONTESTANTS[0], ("simsiam", "target_pow")]
    monkeypatch.setattr(steps, "CONTESTANTS", chosen)
    (first, *rest) = attempt(Check("steps", lambda: steps.measure(CPU)))
    assert "small_resnet, 8 px, batch 8, k = 8; 1 round)" in first.figure
    assert all(" of learnable's (" in result.figure for result in rest)
    assert {result.verdict for result in (first, *rest)} == {OK}
    call = steps.Step.__call__
    monkeypatch.setattr(steps.Step, "__call__", lambda self: call(self) * float("nan"))
    assert failing(steps) == {"filter=learnable", "filter=target_pow"}


def test_eigh_that_is_wrong_in_its_tenth_digit_fails(monkeypatch):
    monkeypatch.setattr(decompositions, "SIZES", (32, 64))
    assert verdicts(decompositions) == {"eigh by LAPACK": OK}
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda G: (eigh(G)[0] * (1 + 1e-10), eigh(G)[1]))
    assert failing(decompositions) == {"eigh by LAPACK"}


@pytest.mark.parametrize("wrong", ["zeros", "one vector again and again"])
def test_eigenvectors_that_are_not_orthogonal_fail(monkeypatch, wrong):
    """Each of them satisfies the equation of an eigenvector."""
    eigh = torch.linalg.eigh

    def broken(G):
        lam, v = eigh(G)
        if wrong == "zeros":
            return lam * 0, v * 0
        return lam[-1:].expand(len(lam)), v[:, -1:].expand(-1, len(lam))

    monkeypatch.setattr(decompositions, "SIZES", (32, 64))
    monkeypatch.setattr(torch.linalg, "eigh", broken)
    assert failing(decompositions) == {"eigh by LAPACK"}


def test_the_preferred_library_is_set_and_set_back(monkeypatch):
    asked = ["default"]

    def choose(library=None):
        asked.extend([library] if library else [])
        return asked[-1]

    monkeypatch.setattr(torch.backends.cuda, "preferred_linalg_library", choose)
    with decompositions.preferred("magma"):
        assert asked[-1] == "magma"
    assert asked[-1] == "default"
    monkeypatch.setattr(torch.cuda, "has_magma", False)
    names = [check.name for check in decompositions.checks(Settings("cuda", 1, 1))]
    assert names == ["eigh by cusolver", "eigh by magma"]
    (result,) = decompositions._line(Settings("cuda", 1, 1), "magma")
    assert result.verdict == NOT_TESTED


def test_the_spectras_share_of_an_epoch():
    (check,) = epochs.checks(CPU)
    (result,) = attempt(check)
    assert (result.verdict, result.name) == (OK, "spectra of 50000 images, k = 8")
    assert re.search(r" s of \d+ steps: [\d.]+%", result.figure)


@pytest.mark.parametrize(("share", "advice"), [(0.029, []), (0.07, ["3"])])
def test_how_often_to_measure_is_said_where_it_costs_much(monkeypatch, share, advice):
    measured = epochs.measure(1, "cpu", tuple(SMALL))
    plain = measured.seconds / share / measured.epoch
    changed = dataclasses.replace(measured, plain=[plain * seconds for seconds in measured.plain])
    monkeypatch.setattr(epochs, "measure", lambda *arguments: changed)
    (check,) = epochs.checks(CPU)
    (result,) = attempt(check)
    found = re.findall(r"; for less than 3%: diagnostics.every_n_epochs=(\d+)$", result.figure)
    assert found == advice


class TestCommand:
    """The page, the status and the file, with one group of checks."""

    @pytest.fixture
    def run(self, typed, monkeypatch, tmp_path):
        monkeypatch.setattr(entry, "GROUPS", {"broken": "Broken", "epochs": "Spectra"})
        return lambda *given: typed(
            "rdm_solo.selftest", "--runs", "1", *SMALL, *given, cwd=tmp_path
        )

    def test_a_group_that_cannot_be_loaded_is_a_line_and_the_others_go_on(self, run, tmp_path):
        done = run("--out", "found.json")
        assert done.returncode == 1
        assert re.search(r"^FAILED +broken +ModuleNotFoundError: No module", done.stdout, re.M)
        assert re.search(r"^ok +spectra of 50000", done.stdout, re.M)
        assert "1 ok, 1 FAILED, 0 not tested" in done.stdout
        assert "please report it with that file" in done.stdout
        found = json.loads((tmp_path / "found.json").read_text())
        assert [result["verdict"] for result in found["results"]] == [FAILED, OK]
        assert "Traceback" in found["results"][0]["traceback"]
        assert found["command"]["overrides"][-len(SMALL) :] == SMALL
        assert not [path for path in tmp_path.iterdir() if path.name != "found.json"]

    def test_a_check_that_fails_is_status_1_and_one_that_passes_0(self, run, monkeypatch):
        monkeypatch.setattr(entry, "GROUPS", {"decompositions": ""})
        monkeypatch.setattr(decompositions, "SIZES", (8,))
        assert run().returncode == 0
        monkeypatch.setattr(decompositions, "RESIDUAL", 0.0)
        assert run().returncode == 1

    def test_all_gpus_are_asked_for_and_no_more(self, typed, monkeypatch, tmp_path):
        monkeypatch.setattr(entry, "GROUPS", {})
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
        done = typed("rdm_solo.selftest", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        asked = json.loads((tmp_path / "rdm_solo_selftest.json").read_text())["command"]
        wanted = {"device": "cuda", "devices": 4, "runs": 3, "overrides": ["batch_size=256"]}
        assert asked == wanted
        done = typed("rdm_solo.selftest", "--devices", "5", cwd=tmp_path)
        assert (done.returncode, "--devices must be at most 4" in done.stderr) == (2, True)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            (["--runs", "0"], "--runs must be at least 1, got 0"),
            (["--devices", "0"], "--devices must be at least 1, got 0"),
            (["--out", "no/such/file"], "give the name of a file in a folder that exists"),
            (["--device", "cuda"], "torch finds no CUDA device"),
            (["--device", "gpu"], "invalid choice: 'gpu'"),
        ],
    )
    def test_bad_options_get_one_sentence(self, typed, given, says, tmp_path, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        done = typed("rdm_solo.selftest", *given, cwd=tmp_path)
        assert done.returncode == 2
        assert says in done.stderr.splitlines()[-1]

    def test_a_disk_that_takes_nothing_is_one_sentence(self, run, monkeypatch):
        monkeypatch.setattr(entry, "GROUPS", {})

        def full(*_: object) -> None:
            raise CannotWrite(Path("found.json"), OSError(28, "No space left on device"))

        monkeypatch.setattr(entry, "write_whole", full)
        done = run()
        assert (done.returncode, "No space left on device" in done.stderr) == (2, True)


def test_the_file_says_nothing_of_who_and_where(monkeypatch, tmp_path):
    monkeypatch.setattr(getpass, "getuser", lambda: "anna")
    monkeypatch.setattr(socket, "gethostname", lambda: "thrain.example.org")
    monkeypatch.setenv("HOME", str(tmp_path / "Anna's things"))
    said = (
        f'File "{tmp_path}/Anna\'s things/rdm/filters/a.py", line 3, in f\n'
        'File "/scratch/anna/env/site-packages/torch/b.py", line 4\n'
        r'File "C:\Users\anna\x.py", line 5' + "\n"
        "anna@thrain: no route from thrain.example.org to 10.1.2.3:4000"
    )
    result = Result(
        "a", FAILED, "anna's error in /data/anna/b.png", "", {"x": [float("nan")]}, said
    )
    text = page.content({"torch": "2.15"}, {"overrides": ["root=/data/anna"]}, {"g": [result]}, 1.0)
    for private in ("anna", "Anna", "thrain", "example", "scratch", "10.1.2.3", str(tmp_path)):
        assert private not in text, private
    found = json.loads(text)
    for kept in ("filters/a.py", "b.py", "x.py", "line 3", "no route"):
        assert kept.rpartition("/")[2] in found["results"][0]["traceback"]
    assert found["results"][0]["details"]["x"] == ["nan"]


def test_words_and_figures_stay():
    for text in ("off by 3.9e-07", "1/i after batch norm (256, 2048)", "torch 2.15.0+cu132", "a/b"):
        assert scrubbed(text) == text


def test_gpus_facts_that_cannot_be_read_are_unknown(monkeypatch):
    """As on this machine, which has none: no error, whatever torch or nvidia-smi answer."""
    monkeypatch.setattr(machine, "versions", lambda: {"python": "3"})
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    found = machine.facts(Settings("cuda", 1, 1))
    assert {"device", "CUDA", "driver", "cuDNN", "NCCL", "compute capability"} <= found.keys()
    assert found["driver"] == "unknown (no nvidia-smi)"


def test_the_driver_is_what_nvidia_smi_says(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 550.54\necho 550.54\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert machine.driver() == "550.54"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert machine.driver() == "unknown (nvidia-smi failed)"


@pytest.mark.long  # CI runs it as a step of its own
@pytest.mark.process
def test_the_whole_command_on_a_cpu(tmp_path):
    given = ["--device", "cpu", "--devices", "1", "--runs", "1", *SMALL]
    done = command("rdm_solo.selftest", *given, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert FAILED not in done.stdout.rpartition("\n\n")[0]
    text = (tmp_path / "rdm_solo_selftest.json").read_text()
    found = json.loads(text)
    assert {result["group"] for result in found["results"]} == set(entry.GROUPS)
    assert all(result["name"] in done.stdout for result in found["results"])
    assert first_line(ValueError(found["machine"]["python"])) in done.stdout
    for private in (str(Path.home()), str(tmp_path), socket.gethostname()):
        assert private not in text
