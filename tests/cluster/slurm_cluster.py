"""A Slurm cluster of two nodes on this machine: Debian's daemons without munge, all files in one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cells import wait_until

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdTimeout=6
SchedulerParameters=sched_interval=1,sched_min_interval=0
KillWait=60
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why no cluster can be started here; empty if one can."""
    places = f"{os.environ['PATH']}:/usr/sbin"
    absent = [program for program in PROGRAMS if shutil.which(program, path=places) is None]
    if absent:
        return (
            f"Slurm is not installed ({absent[0]}): apt-get install slurmctld slurmd slurm-client, or make test-cluster"
        )
    return "" if os.geteuid() == 0 else "the daemons of Slurm need root"


class SlurmCluster:
    """A running cluster.

    Args:
        folder: the folder of its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("state", "n1", "n2"):
            (folder / name).mkdir()
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
            for listener in sockets:
                listener.bind(("127.0.0.1", 0))
            ports = [listener.getsockname()[1] for listener in sockets]
        text = CONFIGURATION.format(folder=folder, ports=ports, host=socket.gethostname().partition(".")[0])
        self.configuration.write_text(text)

    def start(self) -> None:
        """Start the controller and the nodes."""
        self._daemon("slurmctld", "-D")
        for node in ("n1", "n2"):
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """Start the daemon of a node, and wait until jobs can run there."""
        self._daemon(node, "-D", "-N", node)
        wait_until(lambda: self.state(node).startswith(("idle", "mixed", "alloc")), 120)

    def _daemon(self, name: str, *words: str) -> None:
        program = "slurmctld" if name == "slurmctld" else "slurmd"
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen([program, *words], stdout=output, stderr=output)

    def state(self, node: str) -> str:
        """The state of a node, such as ``idle``."""
        return self.ask("sinfo", "--noheader", "--format=%T", f"--nodes={node}").strip()

    def ask(self, *words: str) -> str:
        """The output of a command; empty if it fails."""
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout

    def node_of(self, process: int) -> str:
        """The node that has started a process."""
        return self._variable(process, "SLURMD_NODENAME")

    def job_of(self, process: int) -> str:
        """The job of a process; the last element of an array by its index, since its number names the whole array."""
        job, array = self._variable(process, "SLURM_JOB_ID"), self._variable(process, "SLURM_ARRAY_JOB_ID")
        return job if job != array else f"{array}_{self._variable(process, 'SLURM_ARRAY_TASK_ID')}"

    def _variable(self, process: int, name: str) -> str:
        return _environment(process)[name]

    def processes(self, node: str) -> list[int]:
        """The processes of the jobs of a node."""
        mine = {"SLURMD_NODENAME": node, "SLURM_CONF": str(self.configuration)}
        numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [number for number in numbers if mine.items() <= _environment(number).items()]

    def kill_daemon(self, node: str) -> None:
        """Kill the daemon of a node; its jobs go on."""
        self._daemons[node].kill()
        self._daemons.pop(node).wait()

    def kill_node(self, node: str) -> None:
        """Kill every process of a node at once, as a power failure does."""
        job = next(self._variable(process, "SLURM_JOB_ID") for process in self.processes(node))
        keepers = [int(entry.name) for entry in Path("/proc").iterdir() if _is_step(entry, job)]
        self.kill_daemon(node)
        for process in [*keepers, *self.processes(node)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def stop(self) -> None:
        """End all jobs and daemons."""
        for node in ("n1", "n2"):
            for process in self.processes(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[SlurmCluster]:
    """A cluster for the duration of the block."""
    cluster = SlurmCluster(folder)
    os.environ["SLURM_CONF"] = str(cluster.configuration)
    try:
        try:
            cluster.start()
        except TimeoutError:
            last = (folder / "slurmctld.out").read_text(errors="replace").strip().splitlines()[-1:]
            pytest.skip(f"the daemons of Slurm do not start on this machine: {''.join(last)}")
        yield cluster
    finally:
        cluster.stop()
        del os.environ["SLURM_CONF"]


def _environment(process: int) -> dict[str, str]:
    """The environment with which a process was started; empty if it has ended."""
    try:
        entries = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _is_step(entry: Path, job: str) -> bool:
    """Whether an entry of /proc is the daemon of a step of a job."""
    try:
        return entry.name.isdecimal() and (entry / "cmdline").read_bytes().startswith(f"slurmstepd: [{job}.".encode())
    except OSError:
        return False
