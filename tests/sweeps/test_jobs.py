"""Job files: what is written is read back, and what is wrong in one is refused in one line before anything runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from classwise.core.settings import limits
from classwise.run import main
from classwise.sweeps.executors.run import prepare_sweep
from classwise.sweeps.jobs import JOB, Call, Job
from classwise.sweeps.tasks import attempts
from tests.refusals import check_refused

AUDIT: dict[str, Any] = {"function": "audit", "arguments": {"model": "runs/at"}, "out": "x"}
TRAIN: dict[str, Any] = {"function": "train", "arguments": {"recipe": "at"}, "out": "x"}


def written(folder: Path, facts: object) -> str:
    """Write a job file; returns its path."""
    (folder / JOB).write_text(json.dumps(facts))
    return str(folder / JOB)


def job(call: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"schema_version": 1, "calls": [call], **fields}


def changed(call: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    return {**call, "arguments": {**call["arguments"], **arguments}}


def test_a_job_reads_back_what_it_has_written(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "model": "é",
        "attack": ["pgd", "fgsm"],
        "subset": 9,
        "early_stop": False,
        "group": None,
    }
    calls = (Call(function="audit", arguments=arguments, out="x"), Call(function="mine:f"))
    written = Job(calls=calls, processes=2, directory="/home", environment={"OMP_NUM_THREADS": "4"})
    written.write(tmp_path)
    assert Job.read(tmp_path / JOB) == written


def test_several_processes_are_started_by_torchrun(tmp_path: Path) -> None:
    words = Job(calls=(Call(function="audit"),), processes=4).command(tmp_path / JOB, 1)
    assert words == [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "4", "-m", "classwise.run", str(tmp_path / JOB), "1"),
    ]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([], "is damaged (not a JSON object)"),
        ({"calls": [AUDIT]}, "is damaged (schema_version is missing)"),
        (job(AUDIT, schema_version=2), "schema_version 2 is newer than the 1 supported here"),
        (job(AUDIT, calls=[]), "calls = []: must be a list of calls"),
        (job(AUDIT, calls="audit"), "calls = 'audit': must be a list of calls"),
        (job(AUDIT, calls=["audit"]), "must be a list of calls, each with a function and its arguments"),
        (job(AUDIT, proceses=1), "field 'proceses'; did you mean 'processes'?"),
        (job(AUDIT, processes=0), "processes = 0: Input should be greater than or equal to 1"),
        (job(AUDIT, processes=10**9), "processes = 1000000000: Input should be less than or equal to 10000000"),
        (job(AUDIT, directory=3), "directory = 3: Input should be a valid string"),
        (job(AUDIT, environment={"A B": "1"}), "'A B' is not a variable with a text, such as OMP_NUM_THREADS with 4"),
        (job(AUDIT, environment={"OMP_NUM_THREADS": 4}), "OMP_NUM_THREADS = 4: Input should be a valid string"),
        (job({**AUDIT, "argument": {}}), "call of a job has no field 'argument'; did you mean 'arguments'?"),
        (job({**AUDIT, "arguments": []}), "arguments = []: Input should be a valid dictionary"),
        (job(changed(AUDIT, out="y")), "call of audit: out is a key of the call, not one of its arguments"),
        (job({**AUDIT, "function": "a" * 256}), "String should have at most 255 characters"),
        (job({**AUDIT, "function": "audti"}), "unknown function of a job 'audti'; did you mean 'audit'?"),
        (job({**AUDIT, "function": "no:such"}), "function of a job 'no:such': there is no module 'no'"),
        (job({**AUDIT, "function": "builtins:dict"}), "the arguments of this function are not known"),
        (job({**AUDIT, "arguments": {}}), "call of audit: the argument model is missing"),
        (job(changed(AUDIT, subste=9)), "call of audit has no argument 'subste'; did you mean 'subset'?"),
        (job(changed(AUDIT, subset="9")), "call of audit: subset = '9': Input should be a valid integer"),
        (job(changed(AUDIT, attack="pgd")), "call of audit: attack = 'pgd': Input should be a valid array"),
        (job(changed(AUDIT, attack=["pgdd"])), "unknown attack 'pgdd'; did you mean 'pgd'?"),
        (job(changed(AUDIT, guards="of")), "guards"),
        (job(changed(TRAIN, seed=-1)), "seed = "),
        (job(changed(TRAIN, set=["modle.width=1"])), "recipe has no field 'modle'; did you mean 'model'?"),
    ],
)
def test_what_is_wrong_is_one_line(facts: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([written(tmp_path, facts), "1"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("classwise: ")
    assert (line.count("\n"), said in line) == (1, True), line
    assert [file.name for file in tmp_path.iterdir()] == [JOB]


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "big").mkdir()
    path = written(tmp_path / "big", job(changed(AUDIT, group="x" * limits.JOB_BYTES)))
    (tmp_path / "folder" / JOB).mkdir(parents=True)
    deep = tmp_path / "deep"
    deep.mkdir()
    (deep / JOB).write_text("[" * 100_000)
    tried = {
        (path,): f"{path} is larger than 1 MiB, the limit for such a file",
        (str(tmp_path / "folder" / JOB),): "is a folder; give a file",
        (str(deep / JOB),): "is damaged (not JSON)",
        (str(tmp_path / "none" / JOB),): f"cannot read {tmp_path / 'none' / JOB}: No such file or directory",
        (str(tmp_path / "task.json"),): "task.json' is not the path of a job.json; give one, as in python -m ",
        (): "'' is not the path of a job.json; give one",
        (written(tmp_path, job(AUDIT)), "2"): "the number of a call must be from 1 to 1, not '2'",
    }
    for words, said in tried.items():
        assert main(words) == 2
        assert said in capsys.readouterr().err


def test_a_task_of_an_earlier_version_is_refused_by_name_and_resumed_by_its_sweep(tmp_path: Path) -> None:
    plan = {"recipes": ["at"], "data": ["digits"]}
    sweep = prepare_sweep(plan, tmp_path / "sweep")
    folder = sweep.task(sweep.cells()[0])
    (folder / JOB).unlink()
    (folder / "task.json").write_text(json.dumps({"schema_version": 1, "commands": [["-c", "0"]], "processes": 1}))
    check_refused(r"task\.json is of an earlier version, and job\.json is missing; repeat", Job.read, folder / JOB)
    prepare_sweep(plan, sweep.path)
    assert [call.function for call in Job.read(folder / JOB).calls] == ["train", "audit"]


@pytest.mark.usefixtures("forked")
def test_a_job_runs_by_hand_and_records_its_attempt(tmp_path: Path) -> None:
    assert main([written(tmp_path, job({"function": "platform:node"}))]) == 0
    assert [line.get("status") for line in attempts(tmp_path)] == [None, 0]


def test_all_calls_are_checked_before_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calls = [{"function": "platform:node"}, changed(AUDIT, subset="9")]
    assert main([written(tmp_path, {"schema_version": 1, "calls": calls})]) == 2
    assert capsys.readouterr().err == "classwise: call of audit: subset = '9': Input should be a valid integer\n"
    assert attempts(tmp_path) == []
