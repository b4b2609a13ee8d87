"""Settings of Slurm jobs, as submitit accepts them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from classwise.core.errors import ClasswiseError
from classwise.sweeps.executors.slurm import Slurm, SlurmTask

pytest.importorskip("submitit", reason='submitit is not installed: pip install "classwise[slurm]"')


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ClasswiseError, match="unknown setting of Slurm 'partitoin'; did you mean 'partition'"):
        Slurm(settings={"partitoin": "gpu"})
    with pytest.raises(ClasswiseError, match="unknown setting of Slurm 'xyzzy'; known: account, additional_param"):
        Slurm(settings={"xyzzy": "1"})
    with pytest.raises(ClasswiseError, match="setting 'gpus_per_node' of Slurm: use 'gpus' instead"):
        Slurm(settings={"gpus_per_node": "1"})


def test_a_machine_without_slurm_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClasswiseError, match="there is no Slurm on this machine: sbatch was not found"):
        Slurm().check()
    (tmp_path / "sbatch").touch(mode=0o755)
    Slurm().check()


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


def test_only_the_path_crosses_the_engine() -> None:
    task = pickle.loads(pickle.dumps(SlurmTask("/sweeps/x/cell")))
    assert vars(task) == {"folder": "/sweeps/x/cell"}
    delayed = task.__submitit_checkpoint__()
    assert delayed.function == task
    assert (delayed.args, delayed.kwargs) == ((), {})
