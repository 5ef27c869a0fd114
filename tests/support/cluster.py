"""A real SLURM on this machine: controller and node daemons as ordinary processes."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("slurmctld", "slurmd", "sbatch", "scontrol", "munged")


def why_not() -> str:
    """Why none can be started here; empty where one can."""
    if os.geteuid() != 0:
        return "a SLURM of one's own needs root"
    missing = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
    return f"{', '.join(missing)} not installed (Debian: slurm-wlm and munge)" if missing else ""


PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CONFIG = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobRequeue=1
ReturnToService=2
KillWait=30
SlurmdTimeout=10
NodeName={names} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    def __init__(self, folder: Path, nodes: list[str]) -> None:
        self.folder, self.nodes = folder, nodes
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("SLURM_")},
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": PATH,
        }

    @property
    def variables(self) -> dict[str, str]:
        """By which a command finds this cluster."""
        return {name: self.environment[name] for name in ("SLURM_CONF", "PATH")}

    def call(self, *command: str, **options: object) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, **options
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def submit(self, script: Path, cwd: Path) -> str:
        return self.call("sbatch", "--parsable", str(script), cwd=cwd).strip()

    def state(self, job: str) -> dict[str, str]:
        words = self.call("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, *states: str) -> None:
        until(lambda: self.state(job)["JobState"] in states)

    def run(self, script: Path) -> str:
        """What the job has printed, once it has ended as it should."""
        job = self.submit(script, script.parent)
        return self.completed(job, script.parent)

    def completed(self, job: str, folder: Path) -> str:
        """The same of a job whose script is in that folder."""
        self.wait(job, "COMPLETED", "FAILED")
        said = (folder / "said.txt").read_text()
        assert self.state(job)["JobState"] == "COMPLETED", said[-3000:]
        return said

    def has_said(self, job: str, folder: Path, words: str) -> None:
        """Wait for these words of a job whose script is in that folder."""
        path = folder / "said.txt"

        def said() -> bool:
            text = path.read_text() if path.exists() else ""
            over = self.state(job)["JobState"] in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")
            assert words in text or not over, text[-3000:]
            return words in text

        until(said)

    def start_again(self, job: str, requeue: bool = True) -> None:
        """Requeue the job; SLURM would wait for minutes before it begins again."""
        if requeue:
            self.call("scontrol", "requeue", job)
        self.wait(job, "PENDING")
        time.sleep(2)  # a credential of the second in which the job ended is refused by the node
        self.call("scontrol", "update", f"JobId={job}", "StartTime=now")

    def start_node(self, name: str) -> None:
        self.call("slurmd", "-N", name, "-f", str(self.folder / "slurm.conf"))

    def daemon(self, name: str) -> int:
        """The process of a node's daemon."""
        return int((self.folder / f"slurmd-{name}.pid").read_text())

    def kill_step(self, job: str) -> None:
        """Kill the daemons of the job's steps."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"slurmstepd: [{job}." in (path / "cmdline").read_text():
                    os.kill(int(path.name), signal.SIGKILL)

    def idle(self) -> bool:
        return len(self.call("sinfo", "-h", "-N", "-t", "idle").split("\n")) > len(self.nodes)


def script(
    folder: Path, options: Sequence[str], asked: str, start: str = "exec srun", **variables: str
) -> Path:
    """A batch script that trains with these options, ``asked`` of SLURM what stands there.

    What it prints is in ``said.txt`` beside it.
    """
    path = folder / "job.sh"
    places = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    told = {"PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1", **variables}
    path.write_text(
        "#!/bin/bash\n"
        f"#SBATCH --job-name=pretrain --open-mode=append {asked}\n"
        f"#SBATCH --output={folder}/said.txt\n"
        f"export {shlex.join(f'{name}={value}' for name, value in told.items())}\n"
        f"{start} {sys.executable} -m rdm_solo.train {shlex.join(options)}\n"
    )
    path.chmod(0o755)
    return path


def until(true: Callable[[], bool], seconds: float = 400) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not in {seconds} seconds"
        time.sleep(0.1)


@contextlib.contextmanager
def cluster(folder: Path, nodes: int = 1) -> Iterator[Cluster]:
    """Nodes n1, n2, ..., each with all of this machine's cores."""
    (folder / "state").mkdir(parents=True)
    port = random.randrange(20000, 60000)
    several = nodes > 1
    text = CONFIG.format(
        host=socket.gethostname().split(".")[0],
        port=port,
        names=f"n[1-{nodes}]" if several else "n1",
        ports=f"[{port + 1}-{port + nodes}]" if several else port + 1,
        folder=folder,
        cpus=os.cpu_count(),
    )
    (folder / "slurm.conf").write_text(text)
    made = Cluster(folder, [f"n{number}" for number in range(1, nodes + 1)])
    if subprocess.run(["munge", "-n"], capture_output=True).returncode:
        _start_munge()
    made.call("slurmctld", "-f", str(folder / "slurm.conf"))
    try:
        for name in made.nodes:
            made.start_node(name)
        until(made.idle, 60)
        yield made
    finally:
        for job in made.call("squeue", "-h", "-o", "%A").split():
            made.call("scancel", "--signal=KILL", "--full", job)
            made.call("scancel", job)
        for _ in range(60):
            if not made.call("squeue", "-h").strip():
                break
            time.sleep(0.5)
        for path in folder.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGTERM)


def _start_munge() -> None:
    key = Path("/etc/munge/munge.key")
    if not key.exists() or not key.stat().st_size:
        key.write_bytes(os.urandom(1024))
        shutil.chown(key, "munge", "munge")
        key.chmod(0o400)
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")
    subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True)
    time.sleep(1)
