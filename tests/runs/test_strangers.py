"""Mutated run folders through every command that reads one: nothing is run, each answer is a
sentence that names the folder, nothing is written anywhere else."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import signal
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import command
from omegaconf import OmegaConf
from support.drills import draws, record, tries
from support.small_runs import DRAWN, configure, run
from support.strangers import Stranger, Watch

from rdm_solo import cli
from rdm_solo.evaluate import roles
from rdm_solo.evaluate.export import export
from rdm_solo.evaluate.linear import evaluate
from rdm_solo.preview.show import preview
from rdm_solo.report import entry as report
from rdm_solo.train import resuming

SECONDS = 20  # that a command may take; alone on a core they take 5
HANGS = 600  # after which the drill gives it up
TOGETHER = 25  # folders of a report


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A real run with every file that commands leave."""
    folder = tmp_path_factory.mktemp("base") / "run"
    options = [*DRAWN, "filter=target_pow", "dataset.num_train=48", "logger=tensorboard"]
    run(folder, *options)
    (folder / ".hydra").mkdir()
    OmegaConf.save(configure(*options), folder / ".hydra" / "config.yaml")
    OmegaConf.save(options, folder / ".hydra" / "overrides.yaml")
    (folder / "failed.txt").write_text("no space\n")
    evaluate(LINEAR(folder))
    roles.measure(folder, rows=64)
    assert (folder / "roles.json").exists()
    return folder


def LINEAR(folder: Path):
    return cli.compose("linear", [f"run='{folder}'", "features=cached", "epochs=1", "device=cpu"])


def _with_run(name: str, *options: str):
    cfg = cli.compose(name, ["run=x", *options])

    def of(folder: Path):
        made = cfg.copy()
        made.run = str(folder)
        return made

    return of


@pytest.fixture(scope="module")
def commands():
    linear = _with_run("linear", "features=cached", "epochs=1", "device=cpu")
    plain_preview, plain_export = _with_run("preview"), _with_run("export")
    return {
        "preview": lambda folder: cli.sentences()(preview)(plain_preview(folder)),
        "export": lambda folder: cli.sentences()(export)(plain_export(folder)),
        "linear": lambda folder: cli.sentences()(evaluate)(linear(folder)),
        "roles": lambda folder: roles.main([str(folder), "--rows=64", f"--out={folder}/r.png"]),
        "resume": cli.sentences()(
            lambda folder: resuming.check_resume(
                *resuming.own_config([f"resume={folder}", "max_epochs=3"])
            )
        ),
    }


@pytest.fixture(scope="module")
def watch():
    return Watch()


class Hangs(BaseException):
    """Raised where a command has not ended; no command catches it."""


def give_up(*_: object) -> None:
    raise Hangs


def attempt(
    call, folder: Path, watch: Watch, names: Sequence[str], seconds: int = SECONDS
) -> list[str]:
    """What was wrong with a command's answer, which names one of these folders in each error."""
    said, faults, began = io.StringIO(), [], time.monotonic()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(HANGS)
    with watch.only_inside(folder) as seen:
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                call()
        except SystemExit as left:
            answer = said.getvalue()
            if left.code not in (0, None) and not any(name in answer for name in names):
                faults.append(f"does not name the folder: {answer[-300:]}")
            if len(answer) > 5000:
                faults.append(f"says {len(answer)} letters")
        except BaseException:
            faults.append("raises\n" + "\n".join(traceback.format_exc().splitlines()[-9:]))
        finally:
            signal.alarm(0)
    errors = [line for line in said.getvalue().splitlines() if line.startswith("left out: ")]
    faults += [
        f"does not name the folder: {line[:300]}"
        for line in errors
        if not any(name in line for name in names)
    ]
    if time.monotonic() - began > seconds:
        faults.append(f"takes {time.monotonic() - began:.0f} s")
    return faults + [f"did {what}" for what in seen]


@pytest.mark.drill
@pytest.mark.parametrize("part", range(tries(1, 5)))  # which several workers share
def test_mutated_folders_run_nothing_and_are_named(
    base, commands, watch, part, tmp_path, monkeypatch
):
    monkeypatch.setenv("SECRET", "SECRET-OF-THE-ENVIRONMENT")
    monkeypatch.chdir(tmp_path)
    stranger = Stranger(base, tmp_path / "place", draws(f"strangers {part}"))
    number, bad, together = tries(3, 100), [], []
    if number < TOGETHER:  # the suite leaves the drawing, which takes half a minute, to the drills
        monkeypatch.setattr(report.figures, "draw", lambda *_: ([], []))
    for i in range(number):
        folder, mutations = stranger.folder(i)
        faults = []
        for name, call in commands.items():
            found = attempt(lambda: call(folder), folder, watch, [folder.name])  # noqa: B023
            faults += [f"{name} {what}" for what in found]
        together.append(folder)
        if len(together) == TOGETHER or i == number - 1:
            out = stranger.place / "page"
            given = [*map(str, together), f"--out={out}"]
            names = [path.name for path in together]
            found = attempt(lambda: report.main(given), stranger.place, watch, names, 300)  # noqa: B023
            page = out / "report.html"
            text = page.read_text() if page.exists() else ""
            found += ["a secret is on the page"] * ("SECRET-" in text)
            faults += [f"report of the last {len(together)}: {what}" for what in found]
            for used in [*together, out]:
                _remove(used)
            together = []
        if stranger.canary.exists():
            faults.append("CODE WAS RUN")
            stranger.canary.unlink()
        if [path.name for path in stranger.elsewhere.iterdir()] != ["secret"]:
            faults.append("a link was followed")
        if faults:
            bad.append(i)
            print(i, mutations, *faults, sep="\n  ", flush=True)
    name = f"mutated run folders through every command that reads one, part {part + 1}"
    record(name, number, number - len(bad))


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
def test_mutated_folders_as_real_commands(base, tmp_path):
    stranger = Stranger(base, tmp_path / "place", draws("strangers as commands"))
    survived, lines = (
        0,
        {
            "report": lambda f: ["rdm_solo.report", f],
            "preview": lambda f: ["rdm_solo.preview", f"run={f}"],
            "linear": lambda f: ["rdm_solo.linear", f"run={f}", "features=cached", "epochs=1"],
            "export": lambda f: ["rdm_solo.export", f"run={f}"],
            "roles": lambda f: ["rdm_solo.roles", f, "--rows=64", f"--out={f}/r.png"],
            "resume": lambda f: ["rdm_solo.train", f"resume={f}", "max_epochs=3"],
        },
    )
    for i in range(30):
        name = list(lines)[i % len(lines)]
        folder, mutations = stranger.folder(i)
        out = command(*lines[name](str(folder)), cwd=tmp_path, PYTHONWARNINGS="ignore")
        well = "Traceback" not in out.stdout + out.stderr and not stranger.canary.exists()
        well &= out.returncode == 0 or folder.name in out.stdout + out.stderr
        well &= [path.name for path in stranger.elsewhere.iterdir()] == ["secret"]
        survived += well
        if not well:
            print(i, name, mutations, out.stdout[-500:], out.stderr[-1500:])
        stranger.canary.unlink(missing_ok=True)
    record("mutated run folders, as real commands", 30, survived)


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("rdm_solo").setLevel(logging.INFO)
