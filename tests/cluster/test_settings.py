"""Settings of Slurm jobs, as submitit accepts them, and clusters that do not accept jobs."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from classwise.core.errors import ClasswiseError
from classwise.sweeps.executors.slurm import Slurm, SlurmTask
from tests.launching import write_programs
from tests.refusals import check_refused

pytest.importorskip("submitit", reason='submitit is not installed: pip install "classwise[slurm]"')


def test_unknown_settings_are_refused() -> None:
    check_refused(
        "unknown setting of Slurm 'partitoin'; did you mean 'partition'", Slurm, settings={"partitoin": "gpu"}
    )
    check_refused("unknown setting of Slurm 'xyzzy'; known: account, additional_param", Slurm, settings={"xyzzy": "1"})
    check_refused("setting 'gpus_per_node' of Slurm: use 'gpus' instead", Slurm, settings={"gpus_per_node": "1"})


def test_a_machine_without_slurm_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    check_refused("there is no Slurm on this machine: sbatch was not found", Slurm().check)
    for program in ("sbatch", "squeue"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    Slurm().check()


def test_a_cluster_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "sbatch").touch(mode=0o755)
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nprintf 'squeue: retrying\\nsqueue: no controller\\n' >&2\nexit 1\n")
    squeue.chmod(0o755)
    check_refused(r"^no answer from Slurm: squeue: no controller; submit from ", Slurm().check)
    squeue.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("classwise.sweeps.executors.slurm.ANSWER_SECONDS", 0.1)
    check_refused(r"^no answer from Slurm: squeue took more than 0\.1 s; submit from ", Slurm().check)


def test_jobs_that_slurm_refuses_are_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for program in ("sbatch", "srun"):
        (tmp_path / program).write_text(
            "#!/bin/sh\necho 'sbatch: error: invalid partition specified: mian' >&2\n"
            "echo 'sbatch: error: Batch job submission failed' >&2\nexit 1\n"
        )
        (tmp_path / program).chmod(0o755)
    write_programs(tmp_path / "task", "pass")
    with pytest.raises(ClasswiseError) as refused:
        next(Slurm(settings={"partition": "mian"}).run([tmp_path / "task"]))
    said = "invalid partition specified: mian; Batch job submission failed; check the settings in --slurm"
    assert str(refused.value) == f"the jobs were refused by Slurm: {said}"
    assert capsys.readouterr().err == ""


def test_settings_become_parameters_of_submitit() -> None:
    assert Slurm()._parameters() == {"name": "classwise", "timeout_min": 60}
    executor = Slurm(workers=3, gpus=2, settings={"partition": "gpu", "timeout_min": "600", "cpus_per_task": "8"})
    assert executor._parameters() == {
        "name": "classwise",
        "slurm_partition": "gpu",
        "timeout_min": 600,
        "cpus_per_task": 8,
        "slurm_srun_args": ["--cpus-per-task=8"],
        "gpus_per_node": 2,
        "slurm_array_parallelism": 3,
    }


@pytest.fixture
def sigterm() -> Iterator[None]:
    """Restores the handler of SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm")
def test_requeuing_is_not_interrupted_by_slurm() -> None:
    """As soon as a job is requeued, Slurm terminates its processes, also the one that asked for it."""
    terminated = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"]
    assert subprocess.run(terminated, check=False).returncode == -signal.SIGTERM
    SlurmTask("/sweeps/x/cell").__submitit_checkpoint__()
    assert subprocess.run(terminated, check=False).returncode == 0


@pytest.mark.usefixtures("sigterm")
def test_only_the_path_crosses_the_engine() -> None:
    task = pickle.loads(pickle.dumps(SlurmTask("/sweeps/x/cell")))
    assert vars(task) == {"folder": "/sweeps/x/cell"}
    delayed = task.__submitit_checkpoint__()
    assert delayed.function == task
    assert (delayed.args, delayed.kwargs) == ((), {})
