"""Sharded audits and curves from the command line: their tasks, what fails, and what is resumed."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

from classwise.auditing.curve.result import Curve
from classwise.auditing.curve.search import robustness_curve
from classwise.auditing.evaluation.evaluation import Evaluation, complete
from classwise.auditing.run.result import Audit
from classwise.cli import main
from classwise.cli.cluster import ClusterOptions
from classwise.cli.sharding import ShardOptions
from classwise.core.files.ownership import owned
from classwise.data import load_data
from classwise.models import build_model, save_weights
from classwise.run import main as run
from classwise.sweeps.executors.base import Executor, Finished
from classwise.sweeps.jobs import JOB, Call, Job
from classwise.sweeps.tasks import LOG, run_task
from tests.auditing.test_criteria import written
from tests.launching import ENVIRONMENT
from tests.refusals import check_refused

WORDS = ["--data=digits", "--subset=40", "--threat=Linf:0.1", "--attack=fgsm", "--attack=pgd:steps=2"]


@dataclass
class InProcess(Executor):
    """Makes the calls in this process, or pretends that some were killed, or that the user stops one."""

    killed: tuple[str, ...] = ()
    stopped: str = ""
    ran: list[str] = field(default_factory=list)

    def run(self, folders: Sequence[Path]) -> Iterator[Finished]:
        for folder in folders:
            self.ran.append(folder.name)
            if folder.name == self.stopped:
                signal.raise_signal(signal.SIGINT)
            if folder.name in self.killed:
                (folder / LOG).write_text("one line\nclasswise: the last line\n")
                yield Finished(folder, -signal.SIGKILL)
                continue
            with (folder / LOG).open("w") as log, contextlib.redirect_stdout(log):
                status = run([str(folder / JOB), "1"])
            yield Finished(folder, status)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "net.safetensors"
    save_weights(path, build_model("small-cnn", num_classes=10, in_channels=1, width=0.1))
    return path


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    built = InProcess()
    monkeypatch.setattr(ClusterOptions, "executor", lambda self, gpus=0: built)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    yield built
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_a_sharded_audit_equals_one_command(model: Path, executor: InProcess, tmp_path: Path) -> None:
    words = ["audit", str(model), *WORDS, "--save=logits"]
    assert main([*words, f"--out={tmp_path / 'one' / 'x'}"]) == 0
    out = [f"--out={tmp_path / 'x'}", f"--html={tmp_path / 'x.html'}", "--shards=2", "--on=local"]
    assert main([*words, *out]) == 0
    assert executor.ran == ["001-of-002", "002-of-002", "merge"]
    one, found = Audit.load(tmp_path / "one" / "x"), Audit.load(tmp_path / "x")
    pd.testing.assert_frame_equal(found.outcomes.frame, one.outcomes.frame, check_exact=True)
    assert found.outcomes.meta == one.outcomes.meta
    assert found.artifacts.get("logits", "fgsm")[1].tobytes() == one.artifacts.get("logits", "fgsm")[1].tobytes()
    pages = [(tmp_path / "one" / "x" / "page.html").read_text(), (tmp_path / "x.html").read_text()]
    differing = re.compile("(conds|conds by phase|Command|Date)</dt>")
    first, second = ([line for line in page.splitlines() if not differing.search(line)] for page in pages)
    assert [line for line in second if "<dt>Shards</dt><dd>2</dd>" not in line] == first


@pytest.mark.slow
def test_only_shards_that_are_not_finished_run_again(
    model: Path, executor: InProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", str(model), *WORDS, f"--out={tmp_path / 'x'}", "--shards=2", "--on=local", "--batch-size=64"]
    executor.killed = ("002-of-002",)
    assert main(words) == 3
    assert (
        "1 of 2 shards are not finished: 2; shard 2/2 was killed by signal 9: the last line ("
        in capsys.readouterr().err
    )
    executor.killed, executor.stopped = (), "merge"
    executor.ran.clear()
    assert main(words) == 2  # without --resume
    capsys.readouterr()
    assert main([word for word in words if "batch" not in word] + ["--resume"]) == 130
    assert (
        f"finished shards are saved in {tmp_path / 'x' / 'shards'}; continue with --resume" in capsys.readouterr().err
    )
    executor.stopped = ""
    assert main([word for word in words if "batch" not in word] + ["--resume"]) == 0
    assert executor.ran == ["002-of-002", "merge", "merge"]
    assert Audit.load(tmp_path / "x").outcomes.meta.batch_size == 64
    executor.ran.clear()
    capsys.readouterr()
    assert main([*words, "--resume", "--json", "--fail-if=overall(all) < 1"]) == 1
    assert executor.ran == [], "the merged audit is finished"
    assert json.loads(capsys.readouterr().out)["complete"]
    with owned(tmp_path / "x" / "shards"):
        assert main([*words, "--resume", "--guards=full"]) == 2
    assert "in use" in capsys.readouterr().err


@pytest.mark.slow
def test_shards_by_hand(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", str(model), *WORDS]
    place = tmp_path / "x" / "shards"
    assert main([*words, "--shard=1/2", f"--out={place / '001-of-002'}"]) == 0
    assert f"{place / '001-of-002'}; merge with --shards\n" in capsys.readouterr().out
    assert main([*words, "--shard=1/2", f"--out={tmp_path / 'y'}"]) == 0
    assert f"{tmp_path / 'y'}; move it to DIR/shards/001-of-002 and merge, in DIR," in capsys.readouterr().out
    assert main([*words, "--shards=2", f"--out={tmp_path / 'x'}"]) == 3
    assert "1 of 2 shards are not finished: 2" in capsys.readouterr().err
    assert main([*words, "--shard=2/2", f"--out={place / '002-of-002'}", "--max-time=0.0000001"]) == 3
    assert "shard 2/2 is not finished; repeat the command with --resume" in capsys.readouterr().err
    assert main([*words, "--shard=2/2", f"--out={place / '002-of-002'}", "--resume"]) == 0
    assert main([*words, "--shards=2", f"--out={tmp_path / 'x'}", "--resume"]) == 0
    assert Audit.load(tmp_path / "x").complete


@pytest.mark.slow
def test_a_sharded_curve_equals_one_command(model: Path, executor: InProcess, tmp_path: Path) -> None:
    words = ["curve", str(model), *WORDS[:3], "--attack=fgsm", "--rounds=2"]
    assert main([*words, f"--out={tmp_path / 'x'}", "--shards=2", "--on=local"]) == 0
    assert executor.ran[-1] == "merge"
    one = robustness_curve(str(model), load_data("digits", subset=40), attacks="fgsm", highest=0.1, rounds=2)
    pd.testing.assert_frame_equal(Curve.load(tmp_path / "x").frame, one.frame, check_exact=True)
    assert (tmp_path / "x" / "page.html").is_file()


@pytest.mark.usefixtures("forked")
def test_a_job_runs_in_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths in the arguments, and modules named in them, are those of the user."""
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    (tmp_path / "helper.py").write_text("WORD = 'helped'")
    (tmp_path / "mine.py").write_text("import os, helper\ndef show(a: int): print(os.getcwd(), helper.WORD, a)")
    call = Call(function="mine:show", arguments={"a": 1})
    Job(calls=(call,), directory=str(tmp_path)).write(tmp_path / "task")
    assert run_task(tmp_path / "task") == 0
    assert (tmp_path / "task" / LOG).read_text() == f"{tmp_path} helped 1\n"
    Job(calls=(call,), directory=str(tmp_path / "gone")).write(tmp_path / "task")
    check_refused(r"job.json: the directory .*gone does not exist on this machine", run_task, tmp_path / "task")


def test_shards_and_their_merge_have_the_options_of_the_command(
    model: Path, executor: InProcess, tmp_path: Path
) -> None:
    options = ["--no-cascade", "--no-early-stop", "--save=logits", "--repeats=3", "--repeat-rule=all", "--grid=8bit"]
    executor.killed = ("001-of-002",)
    words = ["audit", "small-cnn", f"--weights={model}", "--width=0.1", *WORDS, *options, "--guards=off"]
    assert main([*words, f"--out={tmp_path / 'x'}", "--shards=2", "--on=local", "--max-time=60", "--seed=3"]) == 3
    tasks = tmp_path / "x" / "shards" / "tasks"
    shard, merge = (Job.read(tasks / name / JOB).calls[0] for name in ("001-of-002", "merge"))
    assert (shard.function, merge.function) == ("audit", "audit")
    assert (shard.arguments.pop("shard"), shard.arguments.pop("max_time")) == ("1/2", 3600.0)
    assert merge.arguments.pop("shards") == 2
    assert shard.arguments == merge.arguments
    assert shard.arguments["weights"] == str(model)
    assert shard.arguments["batch_size"] == 64
    found = Audit.load(Path(str(Job.read(tasks / "002-of-002" / JOB).calls[0].out)))
    meta = found.outcomes.meta
    assert (meta.repeats, meta.repeat_rule, meta.grid, meta.seed) == (3, "all", "8bit", 3)
    command = str(found.environment["command"])
    shown = [word for word in words if word != "--guards=off"]
    assert command.startswith("classwise audit small-cnn ")
    assert [word for word in shown if word not in command] == []
    assert command.endswith(f"--resume --shard=2/2 --max-time=60 --out={tmp_path / 'x' / 'shards' / '002-of-002'}")


@pytest.mark.parametrize(("conditions", "guards", "status"), [([">= 0"], [], 1), ([">= 1"], ["logit-range"], 3)])
def test_the_verdict_of_a_policy_fails_no_merge(
    model: Path, executor: InProcess, tmp_path: Path, conditions: list[str], guards: list[str], status: int
) -> None:
    policy = written(tmp_path / "p.yaml", fail_if=[f"overall(all) {end}" for end in conditions], guards=guards)
    words = ["audit", "small-cnn", f"--weights={model}", "--width=0.1", "--data=digits", "--subset=40"]
    words += [f"--policy={policy}", f"--out={tmp_path / 'x'}", "--shards=2", "--on=local"]
    assert main(words) == main([*words, "--resume"]) == status


def test_a_device_elsewhere_requires_a_batch_size_and_a_precision(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards, ray = ShardOptions(shards=2), ClusterOptions(on="ray")
    every: list[Evaluation] = [{}, {"batch_size": 512}, {"precision": "bfloat16"}]
    for given in every:
        check_refused("as in --batch-size 512 --precision bfloat16$", shards.device, ray, "meta", complete(given))
    assert shards.device(ray, "meta", complete({"batch_size": 512, "precision": "bfloat16"})) == "cpu"
    assert main(["audit", str(model), *WORDS, "--shards=2", "--on=local", "--device=meta", "--batch-size=64"]) == 2
    assert capsys.readouterr().err == "classwise: device 'meta' computes no values; cpu is always available\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shards=2", "--shard=1/2"], "--shard runs one shard and --shards all of them"),
        (["--shard=3/2"], "shard 3/2: the number must be from 1 to 2"),
        (["--on=local"], "--on requires --shards, as in --shards 40 --on local"),
        (["--shards=2", "--workers=2"], "--workers requires --on, as in --shards 40 --on local"),
        (["--shard=1/2", "--fail-if=worst(all) < 0.2"], "--fail-if applies to all images"),
        (["--shard=1/2", "--attack=autoattack", "--settle=1"], "settle samples from the survivors of all images"),
    ],
)
def test_options_that_exclude_each_other(
    words: list[str], said: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = WORDS[:3] if "--settle=1" in words else WORDS
    assert main(["audit", str(model), *given, *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on=rey"], "unknown executor 'rey'; did you mean 'ray'"),
        (["--on=local", "--slurm=partition=a"], "--slurm does not apply to --on local, which takes --workers"),
        (["--on=local", "--device=xpu", "--batch-size=32"], "there is no device 'xpu' on this machine"),
        (["--on=local", "--gpus-per-shard=1"], "--gpus-per-shard 1 requires --device cuda"),
        (["--on=local", "--workers=2", "--gpus-per-shard=1", "--device=cuda"], "CUDA_VISIBLE_DEVICES=0 has fewer"),
    ],
)
def test_a_cluster_that_cannot_run_shards_is_refused_before_a_folder_is_written(
    words: list[str],
    said: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert main(["audit", str(model), *WORDS, "--shards=2", f"--out={tmp_path / 'x'}", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("command", "words"), [("audit", WORDS), ("curve", WORDS[:3])])
def test_a_merge_without_shards_writes_no_folder(
    command: str, words: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x"
    assert main([command, str(model), *words, "--shards=4", f"--out={out}"]) == 2
    said = f"classwise: {out} contains no shards; run each with --shard, or all with --on local, ray or slurm\n"
    assert capsys.readouterr().err == said
    assert not out.exists()


def test_the_search_for_the_worst_class_has_no_shards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worst-class", "small-cnn", "--data=digits", "--shards=2"]) == 2
    assert "--shards does not apply to worst-class: each round" in capsys.readouterr().err
