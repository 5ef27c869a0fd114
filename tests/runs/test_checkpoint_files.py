"""Checkpoints: whole at any moment, damage noticed, the previous one used if needed."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from support.drills import draws, record, tries
from support.small_runs import same

from rdm_solo.callbacks.checkpointing import CheckpointFiles, random_state
from rdm_solo.ground.errors import CannotWrite, UserError
from rdm_solo.runs import checkpoints, files

FORKED = multiprocessing.get_context("fork")


def content(epoch: int, numbers: int = 500) -> dict:
    """Return the content of a checkpoint."""
    rng = torch.Generator().manual_seed(epoch)
    state = {f"layer{i}.weight": torch.randn(numbers, generator=rng) for i in range(3)}
    return {
        "epoch": epoch,
        "state_dict": state,
        "callbacks": {"Checkpoints": {"random": [random_state()]}},
    }


def written(folder: Path, *epochs: int) -> Path:
    """Return a run's folder after those epochs, each with its checkpoint."""
    store = CheckpointFiles(folder)
    for epoch in epochs:
        store.save_checkpoint(content(epoch), folder / files.CHECKPOINT)
    return folder


def test_a_record_that_became_a_folder_is_noticed(tmp_path):
    """torch would leave the tensor's memory as it is."""
    path = written(tmp_path, 3) / files.CHECKPOINT
    data = bytearray(path.read_bytes())
    name = data.rindex(b"archive/data/0")  # in the zip's directory, behind 46 bytes of its entry
    data[name - 8] |= 0x10
    path.write_bytes(data)
    with pytest.raises(UserError, match="data/0"):
        checkpoints.read(path)


@pytest.mark.drill
def test_a_changed_byte_or_a_torn_file_is_noticed_or_harmless(tmp_path):
    path = written(tmp_path, 3) / files.CHECKPOINT
    data = path.read_bytes()
    expected = checkpoints.read(path)
    draw = draws("changed bytes")
    number = tries(100, 2000)
    noticed = 0
    harmless = 0
    for attempt in range(number):
        changed = bytearray(data)
        changed[draw.randrange(len(data))] ^= draw.randrange(1, 256)
        if attempt % 4 == 0:
            changed = changed[: draw.randrange(len(data))]
        path.write_bytes(changed)
        try:
            harmless += same(checkpoints.read(path), expected)
        except UserError as error:
            noticed += "\n" not in str(error)
    assert noticed > number / 2
    record("a byte of a checkpoint changed, or its end cut off", number, noticed + harmless)


def test_the_predecessor_is_used_and_never_replaced_by_what_cannot_be_read(tmp_path, caplog):
    folder = written(tmp_path, 0, 1, 2)
    last, previous = folder / files.CHECKPOINT, folder / files.PREVIOUS
    assert checkpoints.latest(folder)[0] == last
    assert not caplog.records
    last.write_bytes(last.read_bytes()[:-300])
    path, saved = checkpoints.latest(folder)
    assert path == previous
    assert saved["epoch"] == 1
    assert "using previous.ckpt of epoch 2" in caplog.text
    store = CheckpointFiles(folder)
    store.load_checkpoint(previous)
    store.save_checkpoint(content(2), last)
    assert checkpoints.read(last)["epoch"] == 2
    assert checkpoints.read(previous)["epoch"] == 1
    for path in (last, previous):
        path.write_bytes(b"torn")
    with pytest.raises(UserError, match=r"last\.ckpt cannot .*; .*previous\.ckpt cannot"):
        checkpoints.latest(folder)


def test_a_weight_that_is_not_finite_is_refused_by_name(tmp_path):
    broken = content(1)
    broken["state_dict"]["layer1.weight"][3] = torch.nan
    checkpoints.write(tmp_path / "a.ckpt", broken)
    with pytest.raises(UserError, match=r"layer1\.weight"):
        checkpoints.read(tmp_path / "a.ckpt")


def _killed_at_step(folder: Path, step: int) -> None:
    """Write epoch 2 over epoch 1, and die before that call of the system."""
    calls = 0

    def dying(function):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in ("open", "fsync", "replace", "unlink"):
        setattr(os, name, dying(getattr(os, name)))
    CheckpointFiles(folder).save_checkpoint(content(2), folder / files.CHECKPOINT)


def test_a_kill_before_any_step_of_the_writing_leaves_a_whole_checkpoint(tmp_path):
    for step in range(1, 20):
        folder = written(tmp_path / str(step), 0, 1)
        child = FORKED.Process(target=_killed_at_step, args=(folder, step))
        child.start()
        child.join()
        epochs = [checkpoints.read(path)["epoch"] for path in checkpoints.present(folder)]
        assert epochs in ([1, 0], [1], [2, 1])
        if child.exitcode == 0:
            break
    assert child.exitcode == 0
    assert epochs == [2, 1]
    assert step > 3


def _write_forever(folder: Path, epoch: int) -> None:
    store = CheckpointFiles(folder)
    while True:
        store.save_checkpoint(content(epoch, 100_000), folder / files.CHECKPOINT)
        epoch += 1


@pytest.mark.drill
def test_kills_while_checkpoints_are_written(tmp_path):
    draw = draws("kills")
    number = tries(3, 100)
    survived = 0
    done = 0
    for _ in range(number):
        child = FORKED.Process(target=_write_forever, args=(tmp_path, done))
        child.start()
        while not checkpoints.present(tmp_path):
            assert child.is_alive()
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.2))
        child.kill()
        child.join()
        _, saved = checkpoints.latest(tmp_path)
        survived += same(saved["state_dict"], content(saved["epoch"], 100_000)["state_dict"])
        done = saved["epoch"] + 1
    record("kill -9 while checkpoints are written", number, survived)


def test_a_full_disk_leaves_the_checkpoint_that_was_there(tmp_path, monkeypatch):
    folder = written(tmp_path, 0)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotWrite, match=r"last\.ckpt cannot be written: No space left"):
        written(folder, 1)
    assert checkpoints.read(folder / files.CHECKPOINT)["epoch"] == 0
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["last.ckpt"]
