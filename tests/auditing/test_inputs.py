"""Models, attacks and data as users have them: functions, other outputs, programs, binary models, paths, groupings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the field's own name for it

import classwise as cw
from classwise.attacks import ATTACKS
from classwise.attacks import ATTACKS as ATTACK_REGISTRY
from classwise.attacks.autoattack import AutoAttack
from classwise.attacks.gradient.ascent import FGSM, PGD
from classwise.auditing.run.audit import audit
from classwise.auditing.run.cost import estimate
from classwise.auditing.run.inputs import name_of, network_of, threat_for, training_of
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT, FAST, Precision
from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.core.files.storage import write_json
from classwise.core.settings.config import make
from classwise.data import DATA as DATA_SETS
from classwise.data.images import Images
from classwise.data.sets.loading import load_data
from classwise.data.stream import Stream
from classwise.models import build_model, load_model, save_weights
from classwise.models.functions import FunctionModel
from classwise.models.weights import fingerprint
from classwise.reporting import report
from classwise.threat.ball import Threat
from tests.attacks.test_contract import SHORT
from tests.auditing import toys
from tests.auditing.toys import Listener
from tests.refusals import check_refused

DATA = toys.images(40)
RADIUS = "Linf:0.2"


def network() -> nn.Module:
    return toys.model(scale=2.0)


def audited(model: Any, attacks: Any = "fgsm", **options: Any) -> cw.Audit:
    return cw.audit(model, DATA, RADIUS, attacks, batch_size=32, guards="off", **options)


def expected() -> Any:
    return audited(network()).by_class


OUTPUTS: dict[str, Callable[[Tensor, Tensor], object]] = {
    ".logits": lambda logits, _: SimpleNamespace(logits=logits),
    "a tuple": lambda logits, _: (logits, None),
    "a dict": lambda logits, _: {"logits": logits, "loss": None},
}


@pytest.mark.parametrize("output", OUTPUTS)
def test_outputs(output: str) -> None:
    assert audited(toys.Wrapped(back=OUTPUTS[output])).by_class.equals(expected())


def test_a_lambda() -> None:
    inner = network().train()
    result = audited(lambda x: inner(x).clone())
    assert result.by_class.equals(expected())
    assert result.outcomes.meta.model.endswith("<lambda>")
    assert inner.training  # restored
    assert all(module.training for module in inner.modules())
    assert result.outcomes.meta.not_applicable == ()


@pytest.mark.parametrize(
    "wrap", [lambda model: model, lambda model: lambda x: model(x).clone()], ids=["module", "lambda"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_type_are_named(dtype: torch.dtype, wrap: Callable[[nn.Module], Any]) -> None:
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(cw.ClasswiseError, match=rf"weights of type {name} and .* float32; convert it with model.float"):
        audited(wrap(network().to(dtype)))


def traced(model: nn.Module) -> nn.Module:
    program: nn.Module = torch.jit.trace(model, DATA.x[:2])  # type: ignore[no-untyped-call]
    return program


@pytest.mark.slow  # imports of torch.compile
@pytest.mark.parametrize(
    "wrap",
    [lambda model: torch.compile(model, backend="eager"), traced],
    ids=["compiled", "TorchScript"],
)
@pytest.mark.filterwarnings("ignore")  # of torch.compile and TorchScript themselves
def test_compiled_and_scripted_modules(wrap: Callable[[nn.Module], nn.Module]) -> None:
    assert audited(wrap(network())).by_class.equals(expected())


@pytest.mark.slow
def test_an_exported_program() -> None:
    shapes = ({0: torch.export.Dim("n", min=1, max=64)},)
    program = torch.export.export(network(), (DATA.x[:2],), dynamic_shapes=shapes)
    assert audited(program.module()).by_class.equals(expected())
    assert cw.load_model(program.module())(DATA.x[:3]).shape == (3, 3)


def test_probabilities_are_refused_or_made_logits() -> None:
    model = toys.Wrapped(back=lambda logits, _: logits.softmax(1))
    with pytest.raises(cw.ClasswiseError, match=r"returns probabilities .*; return logits, or load it with outputs="):
        audited(model)
    converted = cw.load_model(model, outputs="probabilities")
    torch.testing.assert_close(converted(DATA.x), network()(DATA.x).log_softmax(1))
    result = audited(converted)
    assert result.by_class.equals(expected())
    assert result.outcomes.meta.model_hash != audited(cw.load_model(model, outputs="logits")).outcomes.meta.model_hash
    with pytest.raises(cw.ClasswiseError, match="returns rows that are negative or do not sum to 1"):
        audited(cw.load_model(network(), outputs="probabilities"))
    with pytest.raises(cw.ClasswiseError, match="outputs = 'probability': must be 'auto', 'logits', 'prob"):
        cw.load_model(network(), outputs="probability")  # type: ignore[arg-type]


def test_a_confident_model_of_probabilities_has_gradients() -> None:
    model = cw.load_model(toys.Wrapped(back=lambda logits, _: (20 * logits).softmax(1)), outputs="probabilities")
    x = DATA.x[:8].clone().requires_grad_()
    logits = model(x)
    assert float(logits.detach().exp().max()) == 1.0
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(logits, DATA.y[:8], reduction="sum"), x)
    assert bool((gradient.flatten(1).abs().sum(1) > 0).any())


def test_class_names_of_the_model() -> None:
    model = network()
    model.class_names = ("cat", "dog", "frog")  # type: ignore[assignment]
    unnamed = cw.Images(DATA.x, DATA.y, name="toy")
    result = cw.audit(model, unnamed, RADIUS, "fgsm", batch_size=32, guards="off")
    assert list(result.by_class.index) == ["cat", "dog", "frog"]
    other = cw.Images(DATA.x, DATA.y, ["Cat", "Frog", "Dog"], name="toy")
    with pytest.raises(
        cw.ClasswiseError,
        match=r"label 1 is 'dog' in the model and 'Frog' in the data; .* --data-set classes=Cat,Dog,Frog ",
    ):
        cw.audit(model, other, RADIUS, "fgsm", batch_size=32, guards="off")
    renamed = cw.Images(DATA.x, DATA.y, ["one", "two", "three"], name="toy")
    assert list(cw.audit(model, renamed, RADIUS, "fgsm", batch_size=32).by_class.index) == ["one", "two", "three"]


class Theirs:
    """An attack object like those of torchattacks."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.eps = model, 0.2

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        return cw.attack(self.model, images, labels, FGSM(), threat=RADIUS)


def test_attack_objects_and_functions() -> None:
    model = network()
    single = audited(model, Theirs(model))
    assert single.names == ("clean", "external", "all")
    own = audited(model, {"theirs": Theirs(model), "noise": lambda x, y: x + 0.1 * torch.ones_like(x) * (y == 0)[0]})
    assert own.names == ("clean", "theirs", "noise", "all")
    fractions = [own.by_class["theirs"], single.by_class["external"], audited(model).by_class["fgsm"]]
    assert fractions[0].tolist() == fractions[1].tolist() == fractions[2].tolist()
    with pytest.raises(cw.ClasswiseError, match=r"Theirs is a class; give an attack of it, such as Theirs\(\.\.\.\)"):
        audited(model, [Theirs])


def test_autoattack_and_attacks_on_a_model_with_other_outputs() -> None:
    model = toys.Wrapped(back=OUTPUTS[".logits"])
    attack = AutoAttack(model, eps=0.2)
    attack.attacks = {"apgd-ce": attack.attacks["apgd-ce"]}
    plain = AutoAttack(network(), eps=0.2)
    plain.attacks = attack.attacks
    x, y = DATA.x[:32], DATA.y[:32]
    found, expected = (suite.run_standard_evaluation(x, y, bs=32) for suite in (attack, plain))
    assert torch.equal(found, expected)
    assert torch.equal(cw.attack(model, x, y, FGSM(), threat=RADIUS), cw.attack(network(), x, y, FGSM(), threat=RADIUS))
    assert isinstance(AutoAttack(model.forward).model.model, FunctionModel)


Change = Callable[[Tensor], Tensor]
MEAN = 0.125
CHANGES: dict[str, tuple[Change, Change]] = {
    "sub_": (lambda x: x.sub_(MEAN), lambda x: x - MEAN),
    "clamp_": (lambda x: x.clamp_(0.4, 0.6), lambda x: x.clamp(0.4, 0.6)),
    "relu": (lambda x: F.relu(x, inplace=True), F.relu),
}
"""A front end that writes into its input, and the same without."""


ATTACKED = ["pgd:steps=3", "fab:steps=2", "square:steps=10", "cw:steps=3"]


def with_four_attacks(model: nn.Module, precision: Precision = EXACT) -> Audit:
    data = toys.images(36, strength=(0.03, 0.08, 0.08))
    return audit(model, data, "Linf:0.05", ATTACKED, precision=precision, batch_size=32, save="images")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"), [*((name, EXACT) for name in CHANGES), ("sub_", FAST)], ids=[*CHANGES, "sub_ in bfloat16"]
)
def test_the_outcomes_are_those_of_the_other_model(name: str, precision: Precision) -> None:
    writing, plain = (with_four_attacks(toys.Wrapped(change), precision) for change in CHANGES[name])
    assert writing.outcomes.frame.equals(plain.outcomes.frame)
    names = {warning.name for warning in writing.warnings}
    assert names - {warning.name for warning in plain.warnings} == {"overwrites-input"}
    assert {warning.name for warning in plain.warnings} <= names


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("external", "transfer")])
@pytest.mark.filterwarnings("ignore:the (targeted )?difference of logits ratio needs")
def test_every_attack_leaves_the_images_of_its_caller(name: str) -> None:
    attack: Any = make(ATTACKS, SHORT.get(name, name))
    batch = toys.images(32).batch(slice(0, 32))
    threat = f"{attack.norms[0]}:0.05"
    before = batch.x.clone()
    writing, plain = (
        cw.attack(toys.Wrapped(change), batch.x, batch.y, attack, threat=threat) for change in CHANGES["sub_"]
    )
    assert torch.equal(batch.x, before)
    assert torch.equal(writing, plain)


def test_autoattack_leaves_the_images_of_its_caller() -> None:
    batch = toys.images(32).batch(slice(0, 32))
    before = batch.x.clone()
    found = []
    for change in CHANGES["sub_"]:
        suite = AutoAttack(toys.Wrapped(change), eps=0.05)
        suite.attacks = {"pgd": PGD(steps=3)}
        found.append(suite.run_standard_evaluation(batch.x, batch.y, bs=32))
    assert torch.equal(batch.x, before)
    assert torch.equal(*found)


def test_a_model_that_does_not_write_gets_one_copy() -> None:
    """The first pass detects whether the model writes into its input; later passes make no copy."""
    model, x = toys.Wrapped(CHANGES["sub_"][1]), torch.rand(4, 1, toys.SIDE, toys.SIDE)
    seen: list[int] = []

    def look(image: Tensor) -> Tensor:
        seen.append(image.data_ptr())
        return image

    model.front = look
    forward = EXACT.forward(model)
    for _ in range(3):
        forward(x)
    assert [pointer == x.data_ptr() for pointer in seen] == [False, True, True]


PAIRS = toys.images(60, classes=2, strength=(0.03, 0.06))
BINARY_RADIUS = "Linf:0.03"
BINARY_ATTACKS = ("fgsm", "pgd:steps=3", "pgd:steps=3,objective=dlr", "pgd-t:steps=3", "apgd-ce:steps=5",
                  "apgd-dlr:steps=5", "apgd-t:steps=5", "fab:steps=3", "fab-t:steps=3", "square:steps=10",
                  "cw:steps=5", "pma")  # fmt: skip


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


def audited_pairs(model: nn.Module, data: Any = PAIRS, attacks: Any = "fgsm", **options: Any) -> cw.Audit:
    return cw.audit(model, data, BINARY_RADIUS, attacks, batch_size=32, **({"guards": "off"} | options))


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    "logits (N, 1)": (lambda z: z, "binary-logits"),
    "logits (N,)": (lambda z: z[:, 0], "binary-logits"),
    "probabilities": (lambda z: z.sigmoid(), "binary-probabilities"),
}


@pytest.mark.filterwarnings("ignore:the .*difference of logits ratio")
@pytest.mark.parametrize("attack", BINARY_ATTACKS)
def test_every_attack_gives_the_verdicts_of_two_logits(attack: str) -> None:
    made, expected = make(ATTACK_REGISTRY, attack), two_logits()
    predictions = [
        expected(cw.attack(model, PAIRS.x[:40], PAIRS.y[:40], made, threat="Linf:0.06")).argmax(1).tolist()
        for model in (expected, *(cw.load_model(OneOutput(form), outputs=kind) for form, kind in FORMS.values()))
    ]
    assert predictions[1:] == [predictions[0]] * len(FORMS)
    assert predictions[0] != PAIRS.y[:40].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_an_audit_gives_the_verdicts_of_two_logits(form: str) -> None:
    function, kind = FORMS[form]
    expected = audited_pairs(two_logits(), attacks=["pgd:steps=3"])
    for outputs in ("binary", kind):
        result = audited_pairs(cw.load_model(OneOutput(function), outputs=outputs), attacks=["pgd:steps=3"])
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
            hashes[outputs] = audited_pairs(model).outcomes.meta.model_hash
        assert len(caplog.records) == (outputs == "binary")
    assert hashes["binary"] == hashes["binary-probabilities"] != hashes["binary-logits"]


def test_each_audit_decides_on_its_own_images() -> None:
    one = OneOutput(lambda z: z)
    model = cw.load_model(one, outputs="binary")
    near = cw.Images((PAIRS.x - 0.5) * 1e-4 + 0.5, PAIRS.y, PAIRS.class_names)
    shifted = cw.load_model(lambda x: one(x) + 0.5, outputs="binary")
    for net, data, kind in ((model, PAIRS, "logits"), (shifted, near, "probabilities"), (shifted, PAIRS, "logits")):
        notes = audited_pairs(net, data).outcomes.meta.notes
        assert notes == (f"outputs are read as binary-{kind}, decided on the first 32 images",)


def test_images_after_the_first_do_not_change_the_decision() -> None:
    x = PAIRS.x.clone()
    x[40:] = 0.9
    model = cw.load_model(lambda x: x.mean((1, 2, 3)) * 1.2, outputs="binary")  # above 1 from image 40 on
    data = cw.Images(x, PAIRS.y, PAIRS.class_names)
    whole = audited_pairs(model, data)
    assert whole.outcomes.meta.notes[0].startswith("outputs are read as binary-probabilities")
    stream = Stream([(x[at : at + 10], PAIRS.y[at : at + 10]) for at in range(0, 60, 10)], PAIRS.class_names)
    assert audited_pairs(model, stream).by_class.equals(whole.by_class)


def test_shards_resumption_and_exports(tmp_path: Path) -> None:
    model = cw.load_model(OneOutput(lambda z: z), outputs="binary")
    whole = audited_pairs(model, attacks=["pgd:steps=2"], out=tmp_path / "whole", guards="auto")
    for shard in ("1/2", "2/2"):
        number = int(shard[0])
        place = tmp_path / "out" / "shards" / f"{number:03d}-of-002"
        audited_pairs(model, attacks=["pgd:steps=2"], out=place, shard=shard)
    merged = audited_pairs(model, attacks=["pgd:steps=2"], out=tmp_path / "out", shards=2)
    assert merged.by_class.equals(whole.by_class)
    explicit = cw.load_model(OneOutput(lambda z: z), outputs="binary-logits")
    again = audited_pairs(explicit, attacks=["pgd:steps=2"], out=tmp_path / "whole", guards="auto", resume=True)
    assert again.by_class.equals(whole.by_class)
    other = cw.load_model(OneOutput(lambda z: z), outputs="logits")
    with pytest.raises(cw.ClasswiseError, match="one output per image"):
        audited_pairs(other, attacks=["pgd:steps=2"], out=tmp_path / "whole", guards="auto", resume=True)
    assert whole.confusion("pgd").shape == (2, 2)
    assert "binary-logits" in report(whole, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "not-repeatable" not in [warning.name for warning in whole.warnings]


def test_curve_worst_class_and_estimate() -> None:
    model = cw.load_model(OneOutput(lambda z: z), outputs="binary")
    options: dict[str, Any] = {"attacks": ["pgd:steps=3"], "batch_size": 32}
    curves = [
        cw.robustness_curve(net, PAIRS, norm="Linf", highest=0.1, rounds=3, **options) for net in (model, two_logits())
    ]
    assert curves[0].frame["low"].tolist() == curves[1].frame["low"].tolist()
    worst = [cw.find_worst_class(net, PAIRS, BINARY_RADIUS, **options) for net in (model, two_logits())]
    assert worst[0].by_class["estimate"].tolist() == worst[1].by_class["estimate"].tolist()
    assert estimate(model, PAIRS, BINARY_RADIUS, ["fgsm"]).images == 60


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        (torch.arange(60) % 3, None, "the model has 2 classes, the data set .* has 3"),
        (torch.arange(60) % 2, ["a", "b", "c"], "the model has 2 classes, the data set .* has 3"),
        (torch.arange(60) % 2 + 1, None, r"the labels are 1 to 2: load the data with --data-set classes=1\.\.2 "),
    ],
)
def test_other_classes_are_one_line(labels: Tensor, names: list[str] | None, message: str) -> None:
    with pytest.raises(cw.ClasswiseError, match=message):
        audited_pairs(cw.load_model(OneOutput(lambda z: z), outputs="binary"), cw.Images(PAIRS.x, labels, names))


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
        (lambda z: torch.cat([z, z], 1), "binary", r"outputs='binary': .* shape \(8, 2\) for 8 images"),
    ],
)
def test_other_outputs_are_one_line(form: Callable[[Tensor], Tensor], outputs: Any, message: str) -> None:
    with pytest.raises(cw.ClasswiseError, match=message):
        audited_pairs(cw.load_model(OneOutput(form), outputs=outputs))


@pytest.mark.parametrize("shape", [(60,), (60, 1)])
def test_given_probabilities_of_class_1(shape: tuple[int, ...]) -> None:
    z = OneOutput(lambda z: z)(PAIRS.x).flatten().detach()
    predicted = (z > 0).long().requires_grad_(False)
    p = z.sigmoid().requires_grad_()
    pair = torch.stack([1 - p, p], 1).detach()
    tables = [
        cw.Outcomes.from_predictions(PAIRS.y, predicted, confidences={"clean": confidence}, class_names=["a", "b"])
        for confidence in (p.view(shape), pair)
    ]
    for column in ("p_label", "p_predicted", "runner_up"):
        assert tables[0].frame[column].round(6).tolist() == tables[1].frame[column].round(6).tolist()
    with pytest.raises(cw.ClasswiseError, match="predictions of 'clean': a meta tensor"):
        cw.Outcomes.from_predictions(PAIRS.y, predicted.to("meta"))


def test_untrained_networks_are_recognised_whatever_they_return() -> None:
    data = cw.Images(torch.rand(40, 1, 8, 8), torch.arange(40) % 2)
    model = cw.load_model("small-cnn", data=data, width=0.1, outputs="binary-logits")
    names = [warning.name for warning in cw.audit(model, data, BINARY_RADIUS, "fgsm", batch_size=32).warnings]
    assert "untrained" in names


@pytest.mark.parametrize("names", [None, ["only"]])
def test_one_output_is_one_class_only_if_it_is_named(names: list[str] | None) -> None:
    data = cw.Images(PAIRS.x, torch.zeros(60, dtype=torch.int64), names)
    for outputs in ("auto", "logits"):
        model = cw.load_model(OneOutput(lambda z: z), outputs=outputs)
        if names is None and outputs == "auto":
            with pytest.raises(cw.ClasswiseError, match="one output per image"):
                audited_pairs(model, data)
        else:
            assert audited_pairs(model, data).by_class["all"].tolist() == [1.0]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text("name: mine\nobjective: trades\nattack: 'pgd:steps=30'\n")
    torch.manual_seed(0)
    model = build_model("small-cnn", num_classes=3, in_channels=1, width=0.1)
    save_weights(tmp_path / "checkpoints" / "best.safetensors", model)
    return tmp_path


@pytest.mark.slow
def test_a_run_folder_is_audited_with_its_own_weights(run_folder: Path) -> None:
    x = torch.rand(40, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    data = Images(x, torch.arange(40) % 3, name="toy")
    training = training_of(run_folder)
    assert training is not None
    trained_against = training.attack
    assert isinstance(trained_against, PGD)
    assert (trained_against.steps, trained_against.objective) == (30, "kl")
    assert training_of(run_folder / "checkpoints" / "best.safetensors") == training
    result = audit(str(run_folder), data, "Linf:0.01", trained_against, batch_size=32)
    assert result.outcomes.meta.model == str(run_folder)
    assert "training-attack" in {found.name for found in result.warnings}
    assert "train-mode" not in {found.name for found in result.warnings}


def test_a_module_has_no_known_training() -> None:
    assert training_of(toys.model()) is None


def test_a_run_knows_the_images_that_it_was_trained_on_and_selected_with(run_folder: Path) -> None:
    """The names of splits do not matter: a copy of the training data under another name is recognised."""
    x = torch.rand(60, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    used = [Images(part, torch.arange(20) % 3, [*"abc"], split="any") for part in torch.split(x, 20)]
    data = {"fingerprint": used[0].fingerprint(), "validation": used[1].fingerprint(), "classes": [*"abc"]}
    write_json(run_folder / "environment.json", {"schema_version": SCHEMA_VERSIONS["run"], "data": data})
    for images, kind in zip(used, ("training images", "validation images", ""), strict=True):
        audited = audit(run_folder, images, "Linf:0.01", "fgsm", guards="auto")
        text = {found.name: found.sentence for found in audited.warnings}.get("training-images", "")
        assert text == (kind and f"The images are the {kind} of the model's run; audit on test images.")


def test_the_classes_of_a_run_are_compared_with_those_of_the_data(run_folder: Path) -> None:
    """The same names in another order would be audited with wrong labels; without names, those of the run are used."""
    x = torch.rand(12, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    data = {"fingerprint": "0", "classes": ["cat", "dog", "frog"]}
    write_json(run_folder / "environment.json", {"schema_version": SCHEMA_VERSIONS["run"], "data": data})
    for path in (run_folder, run_folder / "checkpoints" / "best.safetensors"):
        names = ("dog", "cat", "frog")
        check_refused("in another order", audit, path, Images(x, torch.arange(12) % 3, names), "Linf:0.01", "fgsm")
    unnamed = audit(run_folder, Images(x, torch.arange(12) % 3), "Linf:0.01", "fgsm", guards="off")
    assert unnamed.outcomes.class_names == ("cat", "dog", "frog")


@pytest.mark.parametrize(
    ("model", "network"),
    [
        (build_model("lenet", num_classes=3, in_channels=1), "lenet"),
        (build_model("small-cnn", num_classes=3, in_channels=1, width=0.1), "small-cnn, width 0.1"),
        (toys.model(), "Linear"),
    ],
)
def test_names_of_models(model: nn.Module, network: str) -> None:
    assert (name_of(model), network_of(model)) == (network.partition(",")[0], network)


def test_the_usual_threat_is_that_of_the_data_set() -> None:
    assert threat_for(load_data("digits"), None) == Threat.parse(DATA_SETS.load("digits").threat)
    check_refused("has no usual threat", threat_for, Stream([(torch.rand(1, 4, 4), 0)], name="digits"), None)


def test_a_stream_can_be_grouped_by_superclass_or_frequency_only() -> None:
    data = toys.images()
    check_refused(
        "a stream can be grouped by superclass or frequency only",
        audit,
        toys.model(),
        Stream(list(zip(data.x, data.y, strict=True))),
        "Linf:0.1",
        group=[0] * 90,
    )


def test_an_attack_that_lacks_the_norm_leaves_no_folder(tmp_path: Path) -> None:
    check_refused(
        "attack 'square' does not support L1; it supports Linf and L2",
        audit,
        toys.model(),
        toys.images(),
        "L1:1",
        ["pgd", "square"],
        out=tmp_path / "new",
    )
    assert not (tmp_path / "new").exists()


class Pooled(nn.Module):
    """Logits that do not depend on the image, beyond a small part: the bias decides."""

    def __init__(self, classes: int, bias: dict[int, float]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, classes)
        with torch.no_grad():
            self.linear.weight.mul_(1e-3)
            self.linear.bias.zero_()
            for number, value in bias.items():
                self.linear.bias[number] = value

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def test_predictions_are_restricted_to_the_classes_of_imagenet_a() -> None:
    known = DATA_SETS.load("imagenet-a")
    x = torch.rand(3, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    data = Images(x, torch.tensor([5, 5, 6]), known.class_names, "imagenet-a", "test")
    other = next(number for number in range(1000) if number not in known.logits)
    model = Pooled(1000, {other: 9.0, known.logits[5]: 5.0, known.logits[6]: 4.0})
    logged = Listener()
    result = audit(model, data, attacks="clean", progress=logged, guards="off")
    assert result.outcomes.class_names == known.class_names
    assert result.outcomes.rows("clean")["prediction"].tolist() == [5, 5, 5]
    assert result.outcomes.meta.model_hash == fingerprint(model)
    assert "restricted to the 200 of 1000 classes that imagenet-a has" in logged.lines[0]
    own = audit(Pooled(200, {6: 4.0}), data, attacks="clean", guards="off")
    assert own.outcomes.rows("clean")["prediction"].tolist() == [6, 6, 6]
    check_refused(
        "the model has 999 classes, the data set 'imagenet-a' has 200", audit, Pooled(999, {}), data, "Linf:0", "fgsm"
    )
    assert load_model(model, data=data) is not None


@pytest.mark.parametrize(
    ("labels", "hint"),
    [
        ([1, 2, 3], r"the labels are 1 to 3: load the data with --data-set classes=1\.\.3 .*, classes='1\.\.3'"),
        ([2, 9, 40], r"the labels are 2 to 40: load the data with --data-set classes=2,9,40 "),
        ([0, 1, 4], r"--data-set classes=0,1,4 "),
        ([1, 2, 4, 5], "the numbers must agree$"),
    ],
)
def test_unusual_labels_are_named(labels: list[int], hint: str) -> None:
    x = torch.rand(len(labels), 3, 4, 4)
    check_refused(hint, audit, Pooled(3, {}), (x, np.array(labels)), "Linf:0.1", "fgsm")
    if len(labels) == 3:
        data = load_data((x, np.array(labels)), classes=labels)
        assert audit(Pooled(3, {}), data, "Linf:0.1", "fgsm", guards="off").outcomes.labels.tolist() == [0, 1, 2]
