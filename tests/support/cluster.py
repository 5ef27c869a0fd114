"""Start a real SLURM on this machine, whose controller and nodes are ordinary processes."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "sbatch", "scontrol", "munged")
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
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus}
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def reason_to_skip() -> str:
    """Return why no SLURM can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "starting a SLURM needs root"
    missing = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurm-wlm and munge)"
    return ""


class Cluster:
    """The commands of a SLURM whose files are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}

    def call(self, *command: str, cwd: Path | None = None) -> str:
        env = {**os.environ, **self.variables}
        out = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=60)
        assert out.returncode == 0, f"{command}: {out.stderr}"
        return out.stdout.strip()

    def jobs(self) -> list[str]:
        return self.call("squeue", "-h", "-o", "%A").split()

    def state(self, job: str) -> str:
        return self.call("squeue", "-h", "--states=all", "-o", "%T", "-j", job)

    def start_now(self, job: str) -> None:
        """Start a requeued job, for which SLURM would wait two minutes."""
        time.sleep(2)  # a credential of the second in which the job ended is refused
        with contextlib.suppress(AssertionError):  # it has started by itself
            self.call("scontrol", "update", f"JobId={job}", "StartTime=now")


def wait_until(condition: Callable[[], bool], seconds: float = 400) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not in {seconds} seconds"
        time.sleep(0.2)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a SLURM of two nodes, each with all of this machine's cores."""
    (folder / "state").mkdir(parents=True)
    port = random.randrange(20000, 60000)
    config = CONFIG.format(
        host=socket.gethostname().split(".")[0],
        folder=folder,
        cpus=os.cpu_count(),
        port=port,
        first=port + 1,
        last=port + 2,
    )
    path = folder / "slurm.conf"
    path.write_text(config)
    slurm = Cluster(folder)
    if subprocess.run(["munge", "-n"], capture_output=True).returncode:
        _start_munge()
    slurm.call("slurmctld", "-f", str(path))

    def is_idle() -> bool:
        nodes = slurm.call("sinfo", "-h", "-N", "-t", "idle")
        return len(nodes.split("\n")) == 2

    try:
        for name in ("n1", "n2"):
            slurm.call("slurmd", "-N", name, "-f", str(path))
        wait_until(is_idle, 60)
        yield slurm
    finally:
        for job in slurm.jobs():
            slurm.call("scancel", "--signal=KILL", "--full", job)
            slurm.call("scancel", job)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not slurm.jobs(), 30)
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
