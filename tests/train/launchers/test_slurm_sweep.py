"""``launcher=slurm`` on a real SLURM of two nodes: a job for each run of a sweep."""

from __future__ import annotations

import json
import os
import re
import signal
import sys

import pytest
from conftest import command, started
from omegaconf import OmegaConf
from support import cluster
from support.small_runs import SMALL, configure, run

from rdm_solo.train import signals
from rdm_solo.train.launchers import slurm as launcher
from rdm_solo.train.launchers.following import Followed
from rdm_solo.train.launchers.plan import Job

OPTIONS = [*SMALL, "scheduler.warmup_epochs=1", "filter=target_pow", "trainer=cpu"]
SWEEP = ["-m", *OPTIONS, "launcher=slurm", "hydra.sweep.dir=sweep", "hydra.sweep.subdir=${p}"]


@pytest.mark.process
class TestOnTwoNodes:
    @pytest.fixture(autouse=True)
    def _submitit(self):
        pytest.importorskip("submitit")

    def test_a_sweep(self, slurm, tmp_path):
        """One run fails and one is cancelled while it waits: neither hangs the sweep."""
        exponents = ["p=soft,-1,-0.7", "launcher.jobs=3"]
        exponents += [f"launcher.cpus={os.cpu_count()}"]  # a whole node for each run
        process = started(
            *("rdm_solo.train", *SWEEP, *exponents, "max_epochs=2"),
            cwd=tmp_path,
            **slurm.variables,
        )
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"\[-0\.7 *\] SLURM job (\d+_2): PENDING", line):
                slurm.call("scancel", found[1])
        status, text = process.wait(timeout=300), "".join(said)
        assert status == 1, text[-3000:]
        nodes = {words.split()[-1] for words in re.findall(r"RUNNING n\d", text)}
        assert nodes == {"n1", "n2"}
        assert re.search(r"^\[-1 *\] epoch 2/2: loss", text, re.M)
        assert text.count("SimSiam, h(σ) = σ^") == 1
        assert "failed: soft: p must be a number" in text
        ended = r"(was cancelled before it began|has ended as CANCELLED)"
        assert re.search(rf"failed: -0\.7: SLURM job \d+_2 {ended}", text)
        one = run(tmp_path / "one", *OPTIONS, "p=-1", "max_epochs=2")
        other = json.loads((tmp_path / "sweep" / "-1" / "summary.json").read_text())
        assert other["last"] == one["last"]
        job = json.loads((tmp_path / "sweep" / "-1" / "owner.json").read_text())["slurm_job"]
        assert re.fullmatch(r"\d+_1", job)

    @pytest.mark.long
    def test_a_sweep_that_is_only_submitted(self, slurm, tmp_path):
        """The command ends at once, and says how to look; what is left goes on by resume=."""
        variables = slurm.variables
        more = ["launcher.wait=false", "max_epochs=3000", "p=-0.5,-1"]
        out = command("rdm_solo.train", *SWEEP, *more, cwd=tmp_path, **variables)
        assert (out.returncode, out.stderr) == (0, ""), out.stdout
        number = re.search(r"submitted as SLURM jobs (\d+), in sweep", out.stdout)[1]
        assert f"squeue --me --job {number}" in out.stdout
        again = "once none of these jobs is left, what is missing can be submitted again:\n"
        assert f"{again}    python -m rdm_solo.train resume=sweep launcher=slurm\n" in out.stdout
        assert "setting" not in out.stdout
        assert len(slurm.call("squeue", "-h", "-r", "-j", number).splitlines()) == 2
        tables = [tmp_path / "sweep" / p / "metrics.csv" for p in ("-0.5", "-1")]
        cluster.until(lambda: all(path.exists() for path in tables), 60)
        slurm.call("scancel", number)
        cluster.until(lambda: number not in slurm.call("squeue", "-h"), 60)
        stopped = [json.loads((path.parent / "summary.json").read_text()) for path in tables]
        assert [summary["stopped"] for summary in stopped] == ["SIGTERM"] * 2
        epochs = max(int(summary["last"]["epoch"]) for summary in stopped) + 2
        again = ["resume=sweep", "launcher=slurm", f"max_epochs={epochs}"]
        out = command("rdm_solo.train", *again, cwd=tmp_path, **variables)
        assert (out.returncode, out.stderr) == (0, ""), out.stdout
        assert out.stdout.count(f"epoch {epochs}/{epochs}") == 2


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ((), (1, 1, 0)),
        (("trainer=gpu",), (1, 1, 1)),
        (("trainer=ddp", "trainer.accelerator=gpu", "trainer.devices=4"), (1, 4, 4)),
        (("trainer.accelerator=cpu", "trainer.devices=2", "trainer.num_nodes=3"), (3, 2, 0)),
    ],
)
def test_what_a_run_asks_for(options, shape):
    found = launcher.Shape.of(configure(*options).trainer)
    assert (found.nodes, found.tasks, found.gpus) == shape


@pytest.mark.parametrize("options", [["trainer.accelerator=gpu"], []])
def test_a_run_on_all_gpus_of_a_node_must_say_how_many_these_are(options):
    config = configure("trainer=ddp", *options)
    with pytest.raises(ValueError, match=r"with launcher=slurm, trainer\.devices must be a whole"):
        launcher.Shape.of(config.trainer)


def test_the_command_of_a_job_holds_all_that_it_needs(tmp_path):
    hydra = OmegaConf.create({"hydra": {"job": {"env_set": {"A": "b c"}}}})
    job = Job(tmp_path / "x", configure(), ["p=-0.5"], hydra, tmp_path / ".jobs" / "x")
    assert launcher._command(job, tmp_path) == [
        "env",
        f"RDM_SOLO_SWEEP={tmp_path}",
        f"RDM_SOLO_CONFIG={tmp_path / '.jobs' / 'x' / '.hydra' / 'config.yaml'}",
        f"RDM_SOLO_FOLDER={tmp_path / 'x'}",
        "A=b c",
        *(sys.executable, "-u", "-m", "rdm_solo.train", "p=-0.5"),
    ]


def programs(folder, patch, **bodies):
    """Shell scripts in place of SLURM's programs; scancel notes what it is asked to end."""
    for name, body in {"srun": "", "scancel": f"echo $@ >> {folder}/cancelled", **bodies}.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_submitted_while_a_signal_comes_is_cancelled(number, tmp_path, monkeypatch):
    """sbatch gets the signal, too, as with Ctrl-C in a terminal."""
    pytest.importorskip("submitit")
    does = f"import os; os.kill(os.getppid(), {number:d}); os.kill(os.getpid(), {number:d}); "
    does += "print('Submitted batch job 7')"
    programs(tmp_path, monkeypatch, sbatch=f'exec {sys.executable} -S -c "{does}"')
    jobs = [Job(tmp_path / "a", configure("trainer=cpu"))]
    with pytest.raises(signals.Stopped), signals.handled():
        launcher.run(jobs, tmp_path / "sweep", configure("launcher=slurm").launcher)
    assert re.fullmatch(r"7(_0)?\n", (tmp_path / "cancelled").read_text())
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize(
    ("option", "lines"),
    [
        ("launcher.setup=module load cuda", ["module load cuda"]),
        ("launcher.setup=[module load cuda, conda activate rdm]", None),
        ("launcher.setup=null", []),
    ],
)
def test_lines_before_the_run(option, lines, tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    programs(tmp_path, monkeypatch, sbatch=f"cp $1 {tmp_path}/script; echo job 7")
    options = configure("launcher=slurm", option, "launcher.wait=false").launcher
    launcher.check(options, configure("trainer=cpu").trainer)
    launcher.run([Job(tmp_path / "a", configure("trainer=cpu"))], tmp_path / "sweep", options)
    _, _, after = (tmp_path / "script").read_text().partition("# setup\n")
    found = after.partition("\n\n")[0].splitlines()
    assert found == (["module load cuda", "conda activate rdm"] if lines is None else lines)


@pytest.mark.parametrize(
    ("accelerators", "warnings"), [(("auto", "auto", "cpu"), 1), (("cpu", "gpu"), 0)]
)
def test_runs_that_ask_for_no_gpu_are_told_of_once(
    accelerators, warnings, tmp_path, monkeypatch, caplog
):
    pytest.importorskip("submitit")
    programs(tmp_path, monkeypatch, sbatch="echo job 7")
    jobs = [
        Job(tmp_path / str(i), configure(f"trainer.accelerator={name}"))
        for i, name in enumerate(accelerators)
    ]
    options = configure("launcher=slurm", "launcher.wait=false").launcher
    launcher.run(jobs, tmp_path / "sweep", options)
    said = [record.message for record in caplog.records if "ask for no GPU" in record.message]
    assert len(said) == warnings
    assert all(sentence.startswith("warning: ") for sentence in said)


def test_what_was_submitted_is_cancelled_where_the_rest_is_refused(tmp_path, monkeypatch):
    """The user has not been told the numbers of those jobs."""
    pytest.importorskip("submitit")
    sbatch = f"mkdir {tmp_path}/once && echo Submitted batch job 7 && exit\n"
    sbatch += "echo sbatch: error: too many nodes >&2; exit 1"
    programs(tmp_path, monkeypatch, sbatch=sbatch)
    jobs = [
        Job(tmp_path / str(nodes), configure(f"trainer.num_nodes={nodes}", "trainer=cpu"))
        for nodes in (1, 2)
    ]
    options = configure("launcher=slurm").launcher
    with pytest.raises(ValueError, match="SLURM refuses the jobs: sbatch: error: too many nodes"):
        launcher.run(jobs, tmp_path / "sweep", options)
    assert re.fullmatch(r"7(_0)?\n", (tmp_path / "cancelled").read_text())


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("launcher.minutes=0", "launcher.minutes must be a number of at least 1, got 0"),
        ("launcher.wait=perhaps", "launcher.wait must be true or false"),
        ("launcher.memory=much", "launcher.memory must be a number of at least 0, or null"),
        ("launcher.jobs=0", "launcher.jobs must be a whole number of at least 1"),
        ("launcher.setup=[1]", "launcher.setup must be a line of the batch script or a list of"),
        ("launcher.options=x", "launcher.options must be options of sbatch with their values"),
        ("launcher.partion=a", "did you mean 'launcher.partition'?"),
        ("launcher.cpus=4", "needs SLURM's program sbatch, which this machine does not have"),
    ],
)
def test_what_slurm_could_not_use_is_refused(option, says, typed, tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    out = typed("rdm_solo.train", *SWEEP, "p=-1,-0.5", option, cwd=tmp_path)
    assert out.returncode == 2
    assert says in out.stderr
    assert out.stderr.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_any_option_of_sbatch_can_be_typed():
    options = ["launcher=slurm", "launcher.options={account: me, constraint: a100}"]
    assert configure(*options).launcher.options == {"account": "me", "constraint": "a100"}


def test_a_summary_from_before_a_job_began_is_not_its_own(tmp_path):
    """A job that was cancelled before it began has not finished, whatever an earlier one left."""
    summary = tmp_path / "summary.json"
    summary.write_text('{"stopped": null}')
    followed = Followed(Job(tmp_path, configure()), "SLURM job 1", tmp_path / "log")
    assert not followed.has_finished()
    assert "was cancelled before it began" in launcher._why_it_failed(followed)
    summary.unlink()
    assert not followed.has_finished()
    summary.write_text('{"stopped": null}')
    assert followed.has_finished()
    assert launcher._why_it_failed(followed) is None
