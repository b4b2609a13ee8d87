"""The plans for a GPU: each is expanded, predicted and run on a few digits; and slices on machines without files."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from benchmarks import slices
from safetensors.torch import load_file

import classwise as cw
from classwise.core.compute.rates import RATES
from classwise.core.files.storage import write_text
from classwise.models import build_model, save_weights
from classwise.models.weights import fingerprint
from classwise.papers.store import Store
from classwise.run import make
from classwise.sweeps.cells import SweepFolder
from classwise.sweeps.collect import collect
from classwise.sweeps.cost import estimate_sweep
from classwise.sweeps.jobs import Job
from classwise.sweeps.plan import Plan, read_recipe
from tests.training.on_digits import TINY

ROOT = Path(__file__).parents[2]
PLANS = ROOT / "benchmarks" / "plans"
ORDER = ("strong", "fast", "class-wise", "class-wise-finetune")
"""The plans in the order of the document; those that start from another follow it."""
SMALLER = {"pgd:steps=20": "pgd:steps=2", "autoattack": "apgd-ce:steps=2"}
ELSEWHERE = {"cifar10": "digits", "preactresnet18": "lenet", "resnet18": "small-cnn"}
"""The data and the networks of a plan, and those of a short run of it."""

WEIGHTS = {"last": "last", "selected": "best"}


def smoke(name: str) -> Plan:
    """The plan on digits, with one seed and few steps."""
    text = (PLANS / f"{name}.yaml").read_text()
    for large, small in ELSEWHERE.items():
        text = text.replace(large, small)
    values: dict[str, Any] = yaml.safe_load(text)
    weights = values.get("set", {}).get("model.weights")
    model = {"name": "small-cnn", "width": 0.125} | ({} if weights is None else {"weights": weights})
    values |= {"seeds": [0], "set": TINY | {"model": model, "epochs": 2, "precision.dtype": "auto"}}
    for audit in values["audits"].values():
        audit |= {"attack": [SMALLER.get(attack, attack) for attack in audit["attack"]], "subset": 20}
    return Plan.read(values)


def test_every_plan_is_of_full_size_and_in_the_document() -> None:
    assert sorted(file.stem for file in PLANS.glob("*.yaml")) == sorted([*ORDER, "robustbench"])
    document = (ROOT / "docs" / "how-to" / "gpu-queue.md").read_text()
    positions = [document.index(f"`{name}.yaml`") for name in [*ORDER, "robustbench"]]
    assert positions == sorted(positions)
    for name in ORDER:
        plan = Plan.read(PLANS / f"{name}.yaml")
        assert plan.seeds[:3] == (0, 1, 2)
        assert (plan.data, {audit.options["guards"] for audit in plan.audits.values()}) == (("cifar10",), {"off"})
        attacks = {tuple(audit.attacks) for audit in plan.audits.values()}
        assert attacks == {("pgd:steps=20", "autoattack")}
        for cell in plan.cells():
            recipe = read_recipe(cell)
            assert recipe.precision.dtype == "auto"
            assert recipe.model.name.endswith("resnet18")
            assert (recipe.model.width, recipe.threat) == (1, "Linf:8/255")
            assert recipe.epochs == (100 if recipe.model.weights is None else 2)


@pytest.mark.slow
def test_every_plan_runs_at_smoke_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ORDER:
        plan = smoke(name)
        assert 0 < estimate_sweep(plan, rates=RATES["h100"]).hours < 0.01, name
        for cell in plan.cells():
            run = Path("sweeps") / name / "runs" / cell.name
            train, *audits = cell.calls(run)
            make(train)
        for call in audits if name == "strong" else audits[-1:]:  # of the last cell; the audits of all plans are alike
            make(call)
            audit = cw.Audit.load(str(call.out))
            assert audit.complete, call
            assert audit.attacks == ("clean", "pgd", "apgd-ce"), call


def one_cell() -> Plan:
    """A training on a few digits, and audits of its last and of its selected weights."""
    model = {"name": "small-cnn", "width": 0.125}
    options = {"attack": "fgsm", "subset": 20, "guards": "off"}
    audits = {name: {"which": which, **options} for name, which in WEIGHTS.items()}
    values = {"recipes": ["at"], "budgets": ["short"], "data": ["digits"], "audits": audits}
    return Plan.read(values | {"seeds": [0], "set": TINY | {"model": model, "precision.dtype": "auto"}})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the calls that are made, in this process."""
    made: list[int] = []

    def call(file: Path, number: int, seconds: float) -> bool:
        assert seconds > 0
        made.append(number)
        make(Job.read(file).calls[number - 1])
        return True

    monkeypatch.setattr(slices, "call", call)
    return made


def test_slices_survive_machines_without_files(
    tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, part_bytes = tmp_path / "at.yaml", 20_000
    plan.write_text(one_cell().yaml())
    monkeypatch.setattr(slices, "PART_BYTES", part_bytes)

    def run(machine: str, parts: list[str], calls_left: int) -> bool:
        """A slice on a new machine, whose time is over after some calls."""
        before = len(calls)
        monkeypatch.setattr(time, "monotonic", lambda: 60.0 * (len(calls) - before >= calls_left))
        monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2026, 1, 1, 0, 0, len(parts), 0, 0, 0)))
        inputs = [tmp_path / part for part in parts]
        return slices.run_slice(plan, tmp_path / machine, inputs, tmp_path / f"{machine}-parts", 1)

    assert not run("a", [], 1)
    assert not run("b", ["a-parts"], 1)
    assert run("c", ["b-parts", "a-parts"], 9)
    assert calls == [1, 2, 3]
    assert run("home", ["a-parts", "b-parts", "c-parts"], 9)
    assert calls == [1, 2, 3]

    parts = {machine: [*(tmp_path / f"{machine}-parts").iterdir()] for machine in "abc"}
    assert all(file.stat().st_size <= part_bytes for files in parts.values() for file in files)
    assert len(parts["a"]) > 1
    sweep = SweepFolder.open(tmp_path / "home" / "at")
    (cell,) = sweep.cells()
    checkpoints = sweep.run(cell) / "checkpoints"
    for which in ("last", "best"):
        tensors = load_file(checkpoints / f"{which}.safetensors")
        assert {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()} == {torch.float16}
        audit = json.loads((sweep.audit(cell, {"best": "selected"}.get(which, which)) / "audit.json").read_text())
        assert fingerprint(cw.load_model(checkpoints / f"{which}.safetensors")) in json.dumps(audit)
    assert not (checkpoints / "state.pt").exists()
    assert collect(sweep.path).missing == {}
    make(cell.calls(sweep.run(cell))[0])  # is not trained again
    assert not (checkpoints / "state.pt").exists()


def test_an_interrupted_training_returns_with_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "at.yaml"
    plan.write_text(one_cell().yaml())
    cell = one_cell().cells()[0].name

    def stopped(file: Path, number: int, seconds: float) -> bool:
        del number, seconds
        checkpoints = file.parents[2] / "runs" / cell / "checkpoints"
        checkpoints.mkdir(parents=True)
        (checkpoints / "state.pt").write_bytes(b"state")
        return False

    monkeypatch.setattr(slices, "call", stopped)
    assert not slices.run_slice(plan, tmp_path / "a", [], tmp_path / "parts", 1)
    slices.unpack(tmp_path / "parts", tmp_path / "b")
    assert (tmp_path / "b" / "at" / "runs" / cell / "checkpoints" / "state.pt").read_bytes() == b"state"


def test_a_call_is_stopped_at_the_end_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = {1: "import time; time.sleep(60)", 2: "", 3: "raise SystemExit(3)"}
    monkeypatch.setattr(Job, "read", lambda file: Job)
    monkeypatch.setattr(Job, "command", lambda file, number: [sys.executable, "-S", "-c", commands[number]])
    assert not slices.call(tmp_path, 1, 0.2)
    assert slices.call(tmp_path, 2, 30)
    with pytest.raises(subprocess.CalledProcessError):
        slices.call(tmp_path, 3, 30)


def test_a_training_starts_only_if_it_ends_in_time(tmp_path: Path, calls: list[int]) -> None:
    plan = dataclasses.replace(one_cell(), seeds=(0, 1), audits={})
    (tmp_path / "at.yaml").write_text(plan.yaml())
    slow = dataclasses.replace(RATES["h100"], operations=1e-6)
    file, root, parts = tmp_path / "at.yaml", tmp_path / "sweeps", tmp_path / "parts"
    assert not slices.run_slice(file, root, [], parts, 1, rates=slow)  # the first call always starts
    assert calls == [1]
    assert slices.run_slice(file, root, [], parts, 1, rates=RATES["h100"])
    assert calls == [1, 1]


def test_a_slice_of_models_is_their_audits(tmp_path: Path, calls: list[int]) -> None:
    weights, network = tmp_path / "mine.safetensors", {"name": "small-cnn", "num_classes": 10, "in_channels": 1}
    save_weights(weights, build_model("small-cnn", num_classes=10, in_channels=1), {"model": network})
    audits = {name: {"attack": "fgsm", "subset": 20, "threat": "Linf:0.1", "guards": "off"} for name in "ab"}
    values = {"models": [str(weights)], "data": ["digits"], "audits": audits}
    (tmp_path / "mine.yaml").write_text(Plan.read(values).yaml())
    assert slices.run_slice(tmp_path / "mine.yaml", tmp_path / "here", [], tmp_path / "parts", 1, rates=RATES["h100"])
    assert calls == [1, 2]
    assert slices.run_slice(tmp_path / "mine.yaml", tmp_path / "there", [tmp_path / "parts"], tmp_path / "parts", 1)
    assert calls == [1, 2]
    assert collect(tmp_path / "there" / "mine").missing == {}


def test_slices_of_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items run in the order of the plan until the time is over; the next slice, elsewhere, continues."""
    ran = list[str]()

    def wait(command: Sequence[str], seconds: float) -> bool:
        """Write the result of an item; the third call does not end in time."""
        assert 0 < seconds <= 60
        item, store = command[5], Store(command[command.index("--store") + 1])
        ran.append(item)
        if len(ran) != 3:
            write_text(store.result_file(item, "full"), "{}")
        return len(ran) != 3

    monkeypatch.setattr(slices, "wait", wait)
    monkeypatch.setattr(cw.papers, "plan", lambda papers, scale: [f"{papers[0]}/{name}" for name in "ABC"])
    parts = tmp_path / "parts"
    assert not slices.run_papers(["kdd21"], "full", tmp_path / "here", [], parts, 1)
    assert slices.run_papers(["kdd21"], "full", tmp_path / "there", [parts], parts, 1)
    assert ran == ["kdd21/A", "kdd21/B", "kdd21/C", "kdd21/C"]
