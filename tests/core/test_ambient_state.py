"""Public functions compute the same in every state of torch, and leave it as it was."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import classwise as cw
from classwise.attacks.autoattack import AutoAttack
from classwise.auditing.run.corruptions import audit_corruptions
from classwise.auditing.run.cost import estimate
from classwise.core.settings.ambient_state import in_known_state, known_state
from classwise.data import corrupt
from classwise.maite import AttackAugmentation, to_dataset, to_model

from ..ambient_states import STATES, default_dtype

WITHIN = {name: state for name, state in STATES.items() if "deterministic" not in name}
"""The states that public functions change, all in `known_state`."""


def state() -> tuple[Any, ...]:
    """What is visible of the state of torch."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


USUAL = state()


def owners_on_cpu() -> list[Any]:
    """The settings of float32 on a CPU; torch before 2.9 has none."""
    owners = [getattr(torch.backends.mkldnn, name, None) for name in ("matmul", "conv", "rnn")]
    return [owner for owner in owners if hasattr(owner, "fp32_precision")]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", WITHIN)
def test_the_known_state_is_torchs_own_and_the_other_comes_back(name: str) -> None:
    with WITHIN[name]():
        before = state()
        assert before != USUAL
        with contextlib.suppress(KeyError), known_state():
            assert state()[:3] + state()[4:7] == USUAL[:3] + USUAL[4:7]
            with known_state():
                assert torch.rand(2, requires_grad=True).mul(2).requires_grad
            assert in_known_state(torch.get_default_dtype)() == torch.float32
            assert {owner.fp32_precision for owner in owners_on_cpu()} <= {"none", "ieee"}
            raise KeyError
        assert state() == before
    assert state() == USUAL


@pytest.mark.parametrize("first", [0, 1])
def test_settings_of_the_process_last_until_the_last_thread_has_left(first: int) -> None:
    with default_dtype(torch.float64), torch.autograd.set_detect_anomaly(True, check_nan=False):
        before, contexts = state(), [known_state()]
        contexts[0].__enter__()
        contexts.append(known_state())  # in a program that is in the known state already
        contexts[1].__enter__()
        contexts[first].__exit__(None, None, None)
        assert (torch.get_default_dtype(), torch.is_anomaly_enabled()) == (torch.float32, False)
        contexts[1 - first].__exit__(None, None, None)
        assert state() == before


@functools.cache
def network() -> nn.Module:
    """A trained network with batch normalisation."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    model, images = nn.Sequential(*layers), cw.load_data("digits", split="train", subset=500)
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.pixels()), images.y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


DATA = cw.load_data("digits", split="test", subset=40)
THREAT = "Linf:0.1"
SMALL = {"model.name": "small-cnn", "model.width": 0.1, "data.subset": 60, "data.validation": 0.2}


def audited(*attacks: str) -> list[Any]:
    audit = cw.audit(network(), DATA, THREAT, list(attacks), guards="full")
    margins = audit.outcomes.frame["margin"].tolist()
    return [audit.by_class.to_numpy().tolist(), margins, sorted(warning.name for warning in audit.warnings)]


def losses(_: Path) -> list[Any]:
    """Of a training loop that is in no state of these itself, but for its default data type."""
    layer = nn.Linear(64, 10, dtype=torch.float32)
    model = nn.Sequential(nn.Flatten(), layer)
    loss = cw.ClassWiseLoss("at", [4] * 10, steps_per_epoch=1, threat=THREAT)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-1, 1, 640, dtype=torch.float32).view(10, 64))
        layer.bias.zero_()
    return [loss(model, DATA.pixels(), DATA.y).detach().item(), loss.end_epoch(model, DATA)["train.robust"].tolist()]


def loaded(_: Path) -> list[Any]:
    models = [cw.load_model(name, data=DATA, width=0.1) for name in ("small-cnn", "preactresnet18")]
    tensors = [tensor for model in models for tensor in model.state_dict().values()]
    return [{str(tensor.dtype) for tensor in tensors}, any(tensor.is_inference() for tensor in tensors)]


def batch() -> Any:
    images = to_dataset(DATA)
    return tuple([images[row][part] for row in range(4)] for part in range(3))


def trained(folder: Path) -> list[Any]:
    run = cw.train("at", data="digits", out=folder / "run", overrides=SMALL, budget="short", epochs=1)
    return [value.tolist() for value in run.model().state_dict().values()]


CALLS: dict[str, Callable[[Path], Any]] = {
    "audit by gradients": lambda _: audited("pgd:steps=3", "apgd-dlr:steps=3", "fab:steps=2"),
    "audit without": lambda _: audited("square:steps=5"),
    "audit of a stream": lambda _: (
        cw.audit(network(), [(DATA.pixels(), DATA.y)], THREAT, "fgsm").by_class["all"].tolist()
    ),
    "curve": lambda _: (
        cw.robustness_curve(network(), DATA, attacks="fgsm", highest=0.2, rounds=2).frame["low"].tolist()
    ),
    "worst class": lambda _: (
        cw.find_worst_class(network(), DATA, THREAT, ["fgsm", "cw:steps=2"], tolerance=0.1)
        .by_class["estimate"]
        .tolist()
    ),
    "attack": lambda _: cw.attack(network(), DATA.pixels(), DATA.y, "mifgsm:steps=3", threat="L2:0.5").tolist(),
    "AutoAttack": lambda _: (
        AutoAttack(network(), eps=0.1, version="custom", attacks_to_run=["apgd-ce"], verbose=False)
        .run_standard_evaluation(DATA.pixels(), DATA.y)
        .tolist()
    ),
    "estimate": lambda _: estimate(network(), DATA, THREAT, "pgd:steps=5").forwards,
    "corruptions": lambda _: corrupt(DATA, "elastic_transform", 3).pixels().tolist(),
    "audits of corruptions": lambda _: (
        audit_corruptions(network(), DATA, corruptions=["fog", "gaussian_noise"], severities=[2])
        .table()
        .iloc[0]
        .tolist()
    ),
    "loading": loaded,
    "training": trained,
    "MAITE": lambda _: [
        [image.tolist() for image in to_model(network())([DATA.pixels()[0].numpy()])],
        [image.tolist() for image in AttackAugmentation(network(), "fgsm", THREAT)(batch())[0]],
    ],
    "loss": losses,
}


@functools.cache
def usual(call: str) -> Any:
    """What a function returns in torch's own state."""
    with tempfile.TemporaryDirectory() as folder:
        return CALLS[call](Path(folder))


@contextlib.contextmanager
def all_at_once() -> Iterator[None]:
    """Inference mode, autocast, another data type, anomaly detection, less precision, and warnings."""
    chosen = "inference_mode", "autocast in bfloat16", "bfloat16 by default", "anomaly detection"
    with contextlib.ExitStack() as stack:
        for name in (*chosen, "medium precision", "deterministic warnings"):
            stack.enter_context(STATES[name]())
        yield


def check_same_numbers(call: str, around: AbstractContextManager[Any], folder: Path) -> None:
    expected = usual(call)
    with around:
        before = state()
        assert CALLS[call](folder) == expected
        assert state() == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("call", CALLS)
def test_a_public_function_gives_the_same_numbers(call: str, tmp_path: Path) -> None:
    check_same_numbers(call, all_at_once(), tmp_path)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("call", ["attack", "loss", "loading"])
@pytest.mark.parametrize("name", STATES)
def test_every_state_by_itself(name: str, call: str, tmp_path: Path) -> None:
    """Of short calls; ``make test-hostile`` runs commands in each."""
    check_same_numbers(call, STATES[name](), tmp_path)


def test_code_of_a_model_that_changes_the_state_does_not_change_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import torch
from classwise import load_model
def build():
    model = load_model("small-cnn", num_classes=10, in_channels=1, width=0.1)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    return model
"""
    (tmp_path / "changes_the_state.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    before = state()
    audit = cw.audit("changes_the_state:build", DATA, THREAT, ["square:steps=2", "pgd:steps=2"], guards="off")
    assert not audit.outcomes.meta.not_applicable
    assert state() == before
