"""How the runs of a sweep share a machine: GPUs where they train there, the CPU's cores else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small_runs import configure

from rdm_solo.train.launchers import devices
from rdm_solo.train.launchers.devices import Share, divided, shares


@pytest.fixture
def machine(monkeypatch):
    """A machine with that many GPUs and cores."""

    def made(gpus: int, cores: int, visible: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(devices, "available_cores", lambda: tuple(range(cores)))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return made


def jobs(number: int, *options: str) -> list:
    return [configure(*options)] * number


def test_each_gpu_gets_a_run(machine):
    machine(4, 16)
    found = shares(jobs(6))
    assert [share.gpus for share in found] == [("0",), ("1",), ("2",), ("3",)]
    assert all(share.cores == () for share in found)
    assert found[1].variables() == {"CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "4"}


def test_no_more_shares_than_runs(machine):
    machine(4, 16)
    assert [share.gpus for share in shares(jobs(2))] == [("0",), ("1",)]
    assert shares(jobs(2))[0].threads == 8
    machine(0, 16)
    assert [len(share.cores) for share in shares(jobs(2))] == [8, 8]


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        (("trainer.devices=2",), [("4", "6"), ("5", "7")]),
        (("trainer=ddp",), [("4", "6", "5", "7")]),  # all devices
        (("trainer.devices=3",), [("4", "6", "5")]),
        (("trainer=ddp", "trainer.devices=4", "trainer.num_nodes=2"), [("4", "6", "5", "7")]),
    ],
)
def test_a_run_of_several_gpus_gets_them_from_those_that_are_visible(machine, options, groups):
    machine(4, 16, visible="4,6,5,7")
    assert [share.gpus for share in shares(jobs(5, *options))] == groups


def test_several_runs_on_a_gpu_where_that_was_typed(machine):
    machine(2, 16)
    assert [share.gpus[0] for share in shares(jobs(9), at_once=5)] == ["0", "1", "0", "1", "0"]


def test_a_run_that_names_its_gpus_is_refused(typed, tmp_path):
    sweep = ["-m", "launcher=local", "trainer.devices=[0,1]", "seed=0,1"]
    out = typed("rdm_solo.train", *sweep, cwd=tmp_path)
    assert out.returncode == 2
    assert "assigns GPUs itself: give trainer.devices as a number" in out.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "cores"),
    [
        ((), [(0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)]),
        (("threads=3",), [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (("trainer=ddp", "trainer.devices=4"), [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (("threads=16",), [(0, 1, 2, 3, 4, 5, 6, 7)]),
    ],
)
def test_each_share_of_the_cores_gets_a_run(machine, options, cores):
    machine(8, 8)  # GPUs that a run on the CPU does not use
    found = shares(jobs(9, *options, "trainer.accelerator=cpu"))
    assert [share.cores for share in found] == cores
    assert all("CUDA_VISIBLE_DEVICES" not in share.variables() for share in found)


def test_threads_that_were_typed_as_a_variable_stay(machine, monkeypatch):
    machine(0, 8)
    (share,) = shares(jobs(1, "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"))
    assert share.variables() == {"OMP_NUM_THREADS": "4"}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert share.variables() == {}


def test_a_run_that_will_be_refused_gets_a_share(machine):
    """Its own process says why it is refused, and the other runs go on."""
    machine(0, 4)
    bad = configure("trainer.devices=two", "threads=many", "trainer.accelerator=cpu")
    assert shares([bad, *jobs(1, "trainer.accelerator=cpu")]) == [
        Share(cores=(0, 1), threads=2),
        Share(cores=(2, 3), threads=2),
    ]


@given(st.integers(1, 40), st.integers(1, 40))
def test_parts_are_equal_within_one_and_leave_nothing_out(things, number):
    parts = divided(range(things), number)
    assert len(parts) == number
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert {core for part in parts for core in part} == set(range(things))
