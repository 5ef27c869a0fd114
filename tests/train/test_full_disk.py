"""A disk that is full, or read-only: one sentence, whole files, and no accuracy lost."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import command
from support.drills import draws, record, tries
from support.small_disk import small_disk
from support.small_runs import DRAWN

from rdm_solo.runs import checkpoints, failures

TINY = [*DRAWN, "max_epochs=2", "scheduler.warmup_epochs=0", "trainer.enable_progress_bar=false"]
DRILL = "runs on a file system of 4 to 8,192 kB that is full at some file"


def torn(folder: Path) -> list[str]:
    """The files that are not whole."""
    found = [str(path) for path in folder.rglob("*.part")]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        try:
            if path.suffix == ".json":
                json.loads(path.read_bytes())
            elif path.suffix == ".ckpt":
                checkpoints.read(path)
            elif path.suffix == ".npz":
                np.load(path).files  # noqa: B018
            elif path.name in ("failed.txt", "metrics.csv"):
                assert path.read_text().endswith("\n")
        except Exception as error:
            found.append(f"{path.name}: {error}")
    return found


def fill(path: Path) -> None:
    """Write zeros until the disk is full."""
    with contextlib.suppress(OSError), open(path, "wb", 0) as file:
        while True:
            file.write(bytes(512))


@pytest.mark.drill
def test_a_full_disk_is_one_sentence_and_leaves_whole_files(typed, tmp_path):
    draw, number, survived = draws(DRILL), tries(2, 25), 0
    for attempt in range(number):
        size = round(2 ** draw.uniform(2, 13)) * 1024
        with small_disk(tmp_path / str(attempt), str(size)) as disk:
            out = typed("rdm_solo.train", *TINY, "hydra.run.dir=run", cwd=disk)
            lines = out.stderr.splitlines()
            errors = [line for line in lines if line.startswith("error: ")]
            others = [line for line in lines if not line.startswith(("error: ", "warning: "))]
            full = ["No space left on device" in line for line in errors] == [True]
            ended = (out.returncode == 2 and full) or (out.returncode == 0 and not errors)
            whole = torn(disk)
            survived += ended and not others and not whole
            if not (ended and not others and not whole):
                print(size, out.returncode, lines, whole)
        logging.getLogger().handlers.clear()
    record(DRILL, number, survived)


def test_an_accuracy_that_cannot_be_kept_is_printed(typed, tmp_path):
    (tmp_path / "made").mkdir()
    assert (
        typed("rdm_solo.train", *TINY, "hydra.run.dir=run", cwd=tmp_path / "made").returncode == 0
    )
    with small_disk(tmp_path / "disk", "16m") as disk:
        shutil.copytree(tmp_path / "made" / "run", disk / "run")
        before = {p: p.read_bytes() for p in disk.rglob("*") if p.is_file()}
        fill(disk / "rest")
        options = ["run=run", "features=cached", "epochs=1"]
        out = typed("rdm_solo.linear", *options, cwd=disk)
        assert out.returncode == 2
        assert "top-1 " in out.stdout
        (line,) = out.stderr.splitlines()
        assert "linear.json cannot be written: No space left on device" in line
        (disk / "rest").unlink()
        assert before == {p: p.read_bytes() for p in disk.rglob("*") if p.is_file()}
        # Whether the file is read before the evaluation, or written after it.
        for name, evaluated in (("linear.json", False), ("loggers.json", True)):
            (disk / "run" / name).write_text('{"protocol": [')
            out = typed("rdm_solo.linear", *options, cwd=disk)
            assert (out.returncode, "top-1 " in out.stdout) == (2, evaluated)
            assert f"run/{name} cannot be read" in out.stderr
            (disk / "run" / name).unlink()


def test_results_that_cannot_be_kept_are_named_in_a_sentence(typed, tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    assert typed("rdm_solo.train", *TINY, "hydra.run.dir=run", cwd=made).returncode == 0
    with small_disk(tmp_path / "disk", "16m") as disk:
        fill(disk / "rest")
        commands = {
            "report": [str(made / "run"), f"--out={disk}"],
            "export": [f"run={made / 'run'}", f"out={disk}"],
            "preview": ["filter=target_pow", f"out={disk}"],
            "roles": [str(made / "run"), "--rows=16", f"--out={disk / 'roles.png'}"],
        }
        for command, arguments in commands.items():
            out = typed(f"rdm_solo.{command}", *arguments, cwd=made)
            *_, line = out.stderr.splitlines()
            assert (out.returncode, line.startswith(f"error: {disk}/")) == (2, True), out
            assert line.endswith("cannot be written: No space left on device")
            assert [path.name for path in disk.iterdir()] == ["rest"]


def test_a_run_needs_no_space_for_temporary_files(tmp_path):
    with small_disk(tmp_path / "disk", "16k") as disk:
        fill(disk / "rest")
        out = command("rdm_solo.train", *TINY, "hydra.run.dir=run", cwd=tmp_path, TMPDIR=str(disk))
        assert (out.returncode, out.stderr) == (0, "")
        assert not torn(tmp_path / "run")


def test_a_reason_is_whole_or_not_there(tmp_path):
    assert failures.note(tmp_path, "images/\udcff.png cannot be decoded") is None
    assert (tmp_path / "failed.txt").read_bytes() == b"images/\\udcff.png cannot be decoded\n"
    with small_disk(tmp_path / "disk", "4k") as disk:
        fill(disk / "rest")
        assert failures.note(disk, "the disk is full") is None
        assert [path.name for path in disk.iterdir()] == ["rest"]
