"""Audits of binary models with one output equal those of the same model with two logits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks import ATTACKS as ATTACK_REGISTRY
from classwise.auditing.run.cost import estimate
from classwise.core.settings.config import make
from classwise.data.stream import Stream
from classwise.reporting import report
from tests.auditing import toys

DATA = toys.images(60, classes=2, strength=(0.03, 0.06))
RADIUS = "Linf:0.03"
ATTACKS = ("fgsm", "pgd:steps=3", "pgd:steps=3,objective=dlr", "pgd-t:steps=3", "apgd-ce:steps=5", "apgd-dlr:steps=5",
           "apgd-t:steps=5", "fab:steps=3", "fab-t:steps=3", "square:steps=10", "cw:steps=5", "pma")  # fmt: skip


class OneOutput(nn.Module):
    """The difference of the logits of the linear model, in another form."""

    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        weight = toys.patterns(2)
        self.head = nn.Linear(weight.shape[1], 1)
        with torch.no_grad():
            self.head.weight.copy_(weight[1:] - weight[:1])
            self.head.bias.copy_(-0.5 * (weight[1] - weight[0]).sum())
        self.form = form
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self.head(x.flatten(1)))


def two_logits() -> OneOutput:
    return OneOutput(lambda z: torch.cat([torch.zeros_like(z), z], 1))


def audited(model: nn.Module, data: Any = DATA, attacks: Any = "fgsm", **options: Any) -> cw.Audit:
    return cw.audit(model, data, RADIUS, attacks, batch_size=32, **({"guards": "off"} | options))


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    "logits (N, 1)": (lambda z: z, "binary-logits"),
    "logits (N,)": (lambda z: z[:, 0], "binary-logits"),
    "probabilities": (lambda z: z.sigmoid(), "binary-probabilities"),
}


@pytest.mark.filterwarnings("ignore:the .*difference of logits ratio")
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_gives_the_verdicts_of_two_logits(attack: str) -> None:
    made, expected = make(ATTACK_REGISTRY, attack), two_logits()
    predictions = [
        expected(cw.attack(model, DATA.x[:40], DATA.y[:40], made, threat="Linf:0.06")).argmax(1).tolist()
        for model in (expected, *(cw.load_model(OneOutput(form), outputs=kind) for form, kind in FORMS.values()))
    ]
    assert predictions[1:] == [predictions[0]] * len(FORMS)
    assert predictions[0] != DATA.y[:40].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_an_audit_gives_the_verdicts_of_two_logits(form: str) -> None:
    function, kind = FORMS[form]
    expected = audited(two_logits(), attacks=["pgd:steps=3"])
    for outputs in ("binary", kind):
        result = audited(cw.load_model(OneOutput(function), outputs=outputs), attacks=["pgd:steps=3"])
        assert result.by_class.equals(expected.by_class)
        assert bool(0 < expected.by_class["all"].min() < 1)
        decided = f"outputs are read as {kind}, decided on the first 32 images"
        assert result.outcomes.meta.notes == ((decided,) if outputs == "binary" else ())


def test_the_decision_is_logged_once_and_a_part_of_the_hash(caplog: pytest.LogCaptureFixture) -> None:
    hashes = {}
    for outputs in ("binary", "binary-logits", "binary-probabilities"):
        caplog.clear()
        model = cw.load_model(OneOutput(lambda z: z.sigmoid()), outputs=outputs)
        with caplog.at_level(logging.WARNING):
            hashes[outputs] = audited(model).outcomes.meta.model_hash
        assert len(caplog.records) == (outputs == "binary")
    assert hashes["binary"] == hashes["binary-probabilities"] != hashes["binary-logits"]


def test_each_audit_decides_on_its_own_images() -> None:
    one = OneOutput(lambda z: z)
    model = cw.load_model(one, outputs="binary")
    near = cw.Images((DATA.x - 0.5) * 1e-4 + 0.5, DATA.y, DATA.class_names)
    shifted = cw.load_model(lambda x: one(x) + 0.5, outputs="binary")
    for net, data, kind in ((model, DATA, "logits"), (shifted, near, "probabilities"), (shifted, DATA, "logits")):
        notes = audited(net, data).outcomes.meta.notes
        assert notes == (f"outputs are read as binary-{kind}, decided on the first 32 images",)


def test_images_after_the_first_do_not_change_the_decision() -> None:
    x = DATA.x.clone()
    x[40:] = 0.9
    model = cw.load_model(lambda x: x.mean((1, 2, 3)) * 1.2, outputs="binary")  # above 1 from image 40 on
    data = cw.Images(x, DATA.y, DATA.class_names)
    whole = audited(model, data)
    assert whole.outcomes.meta.notes[0].startswith("outputs are read as binary-probabilities")
    stream = Stream([(x[at : at + 10], DATA.y[at : at + 10]) for at in range(0, 60, 10)], DATA.class_names)
    assert audited(model, stream).by_class.equals(whole.by_class)


def test_shards_resumption_and_exports(tmp_path: Path) -> None:
    model = cw.load_model(OneOutput(lambda z: z), outputs="binary")
    whole = audited(model, attacks=["pgd:steps=2"], out=tmp_path / "whole", guards="auto")
    for shard in ("1/2", "2/2"):
        number = int(shard[0])
        place = tmp_path / "out" / "shards" / f"{number:03d}-of-002"
        audited(model, attacks=["pgd:steps=2"], out=place, shard=shard)
    merged = audited(model, attacks=["pgd:steps=2"], out=tmp_path / "out", shards=2)
    assert merged.by_class.equals(whole.by_class)
    explicit = cw.load_model(OneOutput(lambda z: z), outputs="binary-logits")
    again = audited(explicit, attacks=["pgd:steps=2"], out=tmp_path / "whole", guards="auto", resume=True)
    assert again.by_class.equals(whole.by_class)
    other = cw.load_model(OneOutput(lambda z: z), outputs="logits")
    with pytest.raises(cw.ClasswiseError, match="one output per image"):
        audited(other, attacks=["pgd:steps=2"], out=tmp_path / "whole", guards="auto", resume=True)
    assert whole.confusion("pgd").shape == (2, 2)
    assert "binary-logits" in report(whole, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "not-repeatable" not in [warning.name for warning in whole.warnings]


def test_curve_worst_class_and_estimate() -> None:
    model = cw.load_model(OneOutput(lambda z: z), outputs="binary")
    options: dict[str, Any] = {"attacks": ["pgd:steps=3"], "batch_size": 32}
    curves = [
        cw.robustness_curve(net, DATA, norm="Linf", highest=0.1, rounds=3, **options) for net in (model, two_logits())
    ]
    assert curves[0].frame["low"].tolist() == curves[1].frame["low"].tolist()
    worst = [cw.find_worst_class(net, DATA, RADIUS, **options) for net in (model, two_logits())]
    assert worst[0].by_class["estimate"].tolist() == worst[1].by_class["estimate"].tolist()
    assert estimate(model, DATA, RADIUS, ["fgsm"]).images == 60


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        (torch.arange(60) % 3, None, "the model has 2 classes, the data set .* has 3"),
        (torch.arange(60) % 2, ["a", "b", "c"], "the model has 2 classes, the data set .* has 3"),
        (torch.arange(60) % 2 + 1, None, r"the labels are 1 to 2: load the data with .*classes=range\(1, 3\)"),
    ],
)
def test_other_classes_are_one_line(labels: Tensor, names: list[str] | None, message: str) -> None:
    with pytest.raises(cw.ClasswiseError, match=message):
        audited(cw.load_model(OneOutput(lambda z: z), outputs="binary"), cw.Images(DATA.x, labels, names))


@pytest.mark.parametrize(
    ("form", "outputs", "message"),
    [
        (
            lambda z: z,
            "binary-probabilities",
            r"the model returns numbers from -.*, expected \[0, 1\]; give outputs='bi",
        ),
        (lambda z: z.sigmoid() * 2, "binary-probabilities", r"expected \[0, 1\]"),
        (lambda z: z * torch.nan, "binary-probabilities", r"from nan to nan, expected \[0, 1\]"),
        (lambda z: torch.cat([z, z], 1), "binary", r"outputs='binary': .* shape \(32, 2\) for 32 images"),
    ],
)
def test_other_outputs_are_one_line(form: Callable[[Tensor], Tensor], outputs: Any, message: str) -> None:
    with pytest.raises(cw.ClasswiseError, match=message):
        audited(cw.load_model(OneOutput(form), outputs=outputs))


@pytest.mark.parametrize("shape", [(60,), (60, 1)])
def test_given_probabilities_of_class_1(shape: tuple[int, ...]) -> None:
    z = OneOutput(lambda z: z)(DATA.x).flatten().detach()
    predicted = (z > 0).long().requires_grad_(False)
    p = z.sigmoid().requires_grad_()
    pair = torch.stack([1 - p, p], 1).detach()
    tables = [
        cw.Outcomes.from_predictions(DATA.y, predicted, confidences={"clean": confidence}, class_names=["a", "b"])
        for confidence in (p.view(shape), pair)
    ]
    for column in ("p_label", "p_predicted", "runner_up"):
        assert tables[0].frame[column].round(6).tolist() == tables[1].frame[column].round(6).tolist()
    with pytest.raises(cw.ClasswiseError, match="predictions of 'clean': a meta tensor"):
        cw.Outcomes.from_predictions(DATA.y, predicted.to("meta"))


def test_untrained_networks_are_recognised_whatever_they_return() -> None:
    data = cw.Images(torch.rand(40, 1, 8, 8), torch.arange(40) % 2)
    model = cw.load_model("small-cnn", data=data, width=0.1, outputs="binary-logits")
    names = [warning.name for warning in cw.audit(model, data, RADIUS, "fgsm", batch_size=32).warnings]
    assert "untrained" in names


@pytest.mark.parametrize("names", [None, ["only"]])
def test_one_output_is_one_class_only_if_it_is_named(names: list[str] | None) -> None:
    data = cw.Images(DATA.x, torch.zeros(60, dtype=torch.int64), names)
    for outputs in ("auto", "logits"):
        model = cw.load_model(OneOutput(lambda z: z), outputs=outputs)
        if names is None and outputs == "auto":
            with pytest.raises(cw.ClasswiseError, match="one output per image"):
                audited(model, data)
        else:
            assert audited(model, data).by_class["all"].tolist() == [1.0]
