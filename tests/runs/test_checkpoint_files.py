"""Checkpoints: whole at any moment, changed bytes noticed, the previous one taken where needed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch
from support.drills import draws, record, tries
from support.same_values import same
from support.small_disk import small_disk
from support.world import processes

from rdm_solo.callbacks.checkpoints import CheckpointFiles, random_state
from rdm_solo.messages import CannotWrite
from rdm_solo.runs import checkpoints, files


def content(epoch: int, numbers: int = 500) -> dict:
    """What a checkpoint holds: tensors, an optimiser's state, numbers, random numbers' states."""
    rng = torch.Generator().manual_seed(epoch)
    state = {f"layer{i}.weight": torch.randn(numbers, generator=rng) for i in range(3)}
    state["layer0.steps"] = torch.tensor(epoch)
    momentum = {0: {"momentum_buffer": torch.randn(4, 3, 2, 2, generator=rng), "step": epoch}}
    return {
        "epoch": epoch,
        "state_dict": state,
        "optimizer_states": [{"state": momentum, "param_groups": [{"lr": 0.1, "params": [0]}]}],
        "callbacks": {"Checkpoints": {"random": [random_state()]}},
    }


def written(folder: Path, *epochs: int, numbers: int = 500) -> Path:
    """A run's folder after those epochs, each with its checkpoint."""
    (folder / "checkpoints").mkdir(parents=True)
    store = CheckpointFiles(folder)
    for epoch in epochs:
        store.save_checkpoint(content(epoch, numbers), folder / files.CHECKPOINT)
    return folder


@pytest.fixture
def whole(tmp_path) -> tuple[bytes, dict]:
    path = written(tmp_path / "whole", 3) / files.CHECKPOINT
    return path.read_bytes(), checkpoints.read(path)


@pytest.mark.drill
def test_a_changed_byte_is_noticed_or_harmless(whole, tmp_path):
    data, right = whole
    draw, path = draws("changed bytes"), tmp_path / "changed.ckpt"
    tried = tries(150, 2000)
    noticed = harmless = 0
    for _ in range(tried):
        changed = bytearray(data)
        changed[draw.randrange(len(data))] ^= draw.randrange(1, 256)
        path.write_bytes(changed)
        try:
            harmless += same(checkpoints.read(path), right)
        except ValueError as error:
            sentence = f"{path} cannot be read as a checkpoint"
            noticed += str(error).startswith(sentence) and "\n" not in str(error)
    print(f"{noticed} noticed, {harmless} without effect on any value")
    assert noticed > tried / 2
    record("a byte of a checkpoint changed", tried, noticed + harmless)


@pytest.mark.drill
def test_a_torn_file_is_noticed(whole, tmp_path):
    data, _ = whole
    draw, path = draws("torn checkpoints"), tmp_path / "torn.ckpt"
    tried = tries(40, 500)
    survived = 0
    for _ in range(tried):
        path.write_bytes(data[: draw.randrange(len(data))])
        with pytest.raises(ValueError, match=r"torn\.ckpt cannot be read as a checkpoint"):
            checkpoints.read(path)
        survived += 1
    record("a checkpoint cut off", tried, survived)


def test_a_small_or_empty_file_cannot_keep_a_command_busy(whole, tmp_path):
    """10 GB of zeros that take no space, and a zip whose thousand records are the same 10 MB."""
    path = tmp_path / "zeros.ckpt"
    with open(path, "wb") as file:
        file.truncate(10 * 2**30)
    began = time.monotonic()
    with pytest.raises(ValueError, match="cannot be read as a checkpoint of torch: it is a tar"):
        checkpoints.read(path)
    path = tmp_path / "overlapping.ckpt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data/0", bytes(10**7))
        record = archive.filelist[0]
        archive.filelist += [record] * 999
    with pytest.raises(ValueError, match="its records overlap"):
        checkpoints.read(path)
    assert time.monotonic() - began < 3


def test_the_one_before_the_last_stays_and_is_taken_with_a_sentence(tmp_path, caplog):
    folder = written(tmp_path / "run", 0, 1, 2)
    last, previous = folder / files.CHECKPOINT, folder / files.PREVIOUS
    assert checkpoints.read(previous)["epoch"] == 1
    assert checkpoints.latest(folder)[0] == last
    assert not caplog.records
    for damage in (lambda: last.write_bytes(last.read_bytes()[:-300]), last.unlink):
        damage()
        caplog.clear()
        path, saved = checkpoints.latest(folder)
        assert (path, saved["epoch"]) == (previous, 1)
        (said,) = caplog.messages
        assert said.startswith(f"warning: {last} ")
        assert said.endswith("; previous.ckpt, of epoch 2, is taken")
    # The run goes on from it: what it cannot read never takes the name of what it can.
    last.write_bytes(b"torn")
    store = CheckpointFiles(folder)
    store.load_checkpoint(previous)
    store.save_checkpoint(content(2), last)
    assert [checkpoints.read(path)["epoch"] for path in (last, previous)] == [2, 1]
    store.save_checkpoint(content(3), last)
    assert [checkpoints.read(path)["epoch"] for path in (last, previous)] == [3, 2]
    for path in (last, previous):
        path.write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"last\.ckpt cannot .*; .*previous\.ckpt cannot"):
        checkpoints.latest(folder)


def test_without_hard_links_there_are_two_files_as_well(tmp_path, monkeypatch):
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", refused)
    folder = written(tmp_path / "run", 0, 1)
    assert checkpoints.read(folder / files.PREVIOUS)["epoch"] == 0
    files.add_name(folder / files.CHECKPOINT, folder / files.BEST)
    assert checkpoints.read(folder / files.BEST)["epoch"] == 1
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["best.ckpt", "last.ckpt", "previous.ckpt"]


class TestFullDisk:
    def epochs(self, folder: Path) -> list[int]:
        paths = (folder / files.CHECKPOINT, folder / files.PREVIOUS)
        return [checkpoints.read(path)["epoch"] for path in paths if path.exists()]

    def test_where_three_do_not_fit_the_older_makes_room(self, tmp_path):
        with small_disk(tmp_path / "disk", "1m") as disk:
            folder = written(disk / "run", 0, 1, 2, 3, numbers=33_000)  # 0.4 MB each
            assert self.epochs(folder) == [3, 2]
            assert len(list((folder / "checkpoints").iterdir())) == 2

    def test_where_two_do_not_fit_the_old_one_stays(self, tmp_path):
        with small_disk(tmp_path / "disk", "1m") as disk:
            folder = written(disk / "run", 0, numbers=60_000)  # 0.7 MB
            store = CheckpointFiles(folder)
            store.load_checkpoint(folder / files.CHECKPOINT)
            with pytest.raises(CannotWrite) as refused:
                store.save_checkpoint(content(1, 60_000), folder / files.CHECKPOINT)
            assert str(refused.value) == (
                f"{folder / files.CHECKPOINT} cannot be written: No space left on device"
            )
            assert self.epochs(folder) == [0]
            assert [path.name for path in (folder / "checkpoints").iterdir()] == ["last.ckpt"]

    def test_a_disk_that_became_read_only_is_named(self, tmp_path):
        with small_disk(tmp_path / "disk", "1m") as disk:
            folder = written(disk / "run", 0, 1)
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            with pytest.raises(CannotWrite, match=r"last\.ckpt cannot be written: Read-only file"):
                CheckpointFiles(folder).save_checkpoint(content(2), folder / files.CHECKPOINT)
            assert self.epochs(folder) == [1, 0]

    def test_a_broken_last_one_is_no_reason_to_remove_the_previous(self, tmp_path):
        with small_disk(tmp_path / "disk", "1m") as disk:
            folder = written(disk / "run", 0, 1, numbers=33_000)
            store = CheckpointFiles(folder)
            store.load_checkpoint(folder / files.CHECKPOINT)
            data = bytearray((folder / files.CHECKPOINT).read_bytes())
            data[len(data) // 2] ^= 1
            (folder / files.CHECKPOINT).write_bytes(data)
            with pytest.raises(CannotWrite, match="No space left"):
                store.save_checkpoint(content(2, 33_000), folder / files.CHECKPOINT)
            assert checkpoints.latest(folder, quiet=True)[1]["epoch"] == 0


def test_a_folder_that_was_removed_is_named_and_not_made_again(tmp_path):
    store = CheckpointFiles(tmp_path / "gone")
    path = tmp_path / "gone" / files.CHECKPOINT
    with pytest.raises(CannotWrite, match=r"last\.ckpt cannot be written: No such file or dir"):
        store.save_checkpoint(content(0), path)
    assert not list(tmp_path.iterdir())


STEPS = ("open", "fsync", "link", "replace", "unlink")


def _killed_at_step(folder: Path, step: int) -> None:
    """Write epoch 2 over epoch 1, and die before that call of the system."""
    store, called = CheckpointFiles(folder), 0
    store.load_checkpoint(folder / files.CHECKPOINT)

    def dying(function):
        def call(*arguments, **options):
            nonlocal called
            called += 1
            if called == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in STEPS:
        setattr(os, name, dying(getattr(os, name)))
    store.save_checkpoint(content(2), folder / files.CHECKPOINT)


def test_a_kill_before_any_step_of_the_writing_leaves_two_whole_checkpoints(tmp_path):
    for step in range(1, 20):
        folder = written(tmp_path / str(step), 0, 1)
        child = processes.Process(target=_killed_at_step, args=(folder, step))
        child.start()
        child.join()
        found = [checkpoints.read(path)["epoch"] for path in checkpoints.present(folder)]
        assert found in ([1, 0], [1, 1], [2, 1])
        files.remove_parts(folder)
        names = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert names == ["last.ckpt", "previous.ckpt"]
        if child.exitcode == 0:
            break
    assert (child.exitcode, found) == (0, [2, 1])
    assert step > 5


def _write_for_ever(folder: Path, first: int) -> None:
    """Epoch after epoch, as a run does that was resumed; there is no folder for temporary files."""
    tempfile.tempdir = "/nowhere"
    store = CheckpointFiles(folder)
    if first:
        store.load_checkpoint(checkpoints.latest(folder, quiet=True)[0])
    epoch = first
    while True:
        store.save_checkpoint(content(epoch, 100_000), folder / files.CHECKPOINT)
        epoch += 1


@pytest.mark.drill
def test_kills_while_checkpoints_are_written(tmp_path):
    folder, draw = tmp_path / "run", draws("kills while checkpoints are written")
    folder.mkdir()
    tried, survived, done = tries(3, 200), 0, 0
    for _ in range(tried):
        child = processes.Process(target=_write_for_ever, args=(folder, done))
        child.start()
        while not checkpoints.present(folder):
            assert child.is_alive()
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.2))
        child.kill()
        child.join()
        _, saved = checkpoints.latest(folder)
        right = content(saved["epoch"], 100_000)
        fine = all(same(saved[name], right[name]) for name in ("state_dict", "optimizer_states"))
        fine &= saved["epoch"] >= done - 1
        fine &= all(checkpoints.read(path) is not None for path in checkpoints.present(folder))
        survived += fine
        done = saved["epoch"] + 1
    record("kill -9 while checkpoints are written", tried, survived)


def test_a_signal_while_a_checkpoint_is_written_waits_for_its_end(tmp_path):
    """At many moments: raised inside torch.save, it became "unexpected pos" in a fourth of them."""
    folder = written(tmp_path / "run", 1)
    last, previous = (folder / name for name in (files.CHECKPOINT, checkpoints.PREVIOUS))
    saved = content(2, numbers=200_000)
    began = time.perf_counter()
    checkpoints.write(last, saved)
    took = time.perf_counter() - began

    def stop(number, frame):
        raise KeyboardInterrupt

    stopped, before = 0, signal.signal(signal.SIGTERM, stop)
    try:
        for attempt in range(60):
            delay = took * (attempt + 1) / 60
            sending = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGTERM))
            try:
                sending.start()
                checkpoints.write(last, saved, previous)
                while sending.is_alive():
                    time.sleep(0.001)
                time.sleep(0.01)
            except KeyboardInterrupt:
                stopped += 1
            sending.join()
            assert checkpoints.read(last)["epoch"] == 2
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped == 60


def test_a_checkpoint_of_a_callback_of_ones_own_may_lie_anywhere(tmp_path):
    """Lightning's ModelCheckpoint names a folder of its own below the logger's."""
    path = tmp_path / "version_0" / "checkpoints" / "mine.ckpt"
    CheckpointFiles(tmp_path / "run").save_checkpoint({"epoch": 0, "state_dict": {}}, path)
    assert checkpoints.read(path)["epoch"] == 0


def test_kept_ones_that_are_later_than_the_run_go(tmp_path):
    folder = written(tmp_path / "run", 0, 1)
    for epoch in (1, 2, 10_000):
        files.add_name(folder / files.CHECKPOINT, checkpoints.of_epoch(folder, epoch))
    (folder / "checkpoints" / "epoch_mine.ckpt").touch()
    checkpoints.begin(folder, 2)
    assert list(checkpoints.kept(folder)) == [1, 2]
    checkpoints.begin(folder, 0)
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["epoch_mine.ckpt", "last.ckpt"]
