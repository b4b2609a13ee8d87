"""Audits of models whose robustness is known in closed form, and the fused copy that computes their gradients."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from classwise.attacks.engine import AttackInputs
from classwise.attacks.gradient.ascent import PGD, Ascent
from classwise.auditing.outcomes.table import Outcomes
from classwise.auditing.run.audit import audit
from classwise.auditing.run.result import Audit
from classwise.core.compute.precision import EXACT, FAST, Precision
from classwise.core.errors import ClasswiseError
from classwise.core.settings.config import configurable
from classwise.data.images import Column, Images
from classwise.data.stream import Stream
from classwise.reporting.facts.provenance import settings_of
from classwise.stats.metrics import confidence_variance
from tests.auditing import toys
from tests.auditing.toys import Listener
from tests.models.networks import PreActResNet
from tests.models.samples import trained
from tests.refusals import check_refused

EPSILON = 0.05
THREAT = f"Linf:{EPSILON}"


def run(**more: Any) -> Audit:
    chosen: dict[str, Any] = {
        "model": toys.model(),
        "data": toys.images(),
        "threat": THREAT,
        "attacks": ["pgd:steps=5", "pgd:steps=5,objective=margin"],
        "precision": EXACT,
        "batch_size": 32,
        "guards": "off",
    }
    return audit(**(chosen | more))


def test_robust_accuracy_of_a_linear_model_is_exact() -> None:
    data, net = toys.images(120, classes=2), toys.model(classes=2)
    truth = toys.margins(data, net, EPSILON)
    assert 15 < int((truth <= 0).sum()) < 105, "the radius should split the images"
    assert float(truth.abs().min()) > 1e-3
    result = run(model=net, data=data, attacks="pgd:steps=20,step_size=0.1eps")
    assert result.outcomes.correct("pgd").tolist() == (truth > 0).tolist()
    robust = result.outcomes.rows("pgd").query("correct")
    assert robust["margin"].to_numpy() == pytest.approx(truth[truth > 0].numpy(), abs=1e-5)


def test_columns_of_clean_and_attacked_rows() -> None:
    data, net = toys.images(), toys.model()
    result = run(model=net, data=data)
    clean, attacked = result.outcomes.rows("clean"), result.outcomes.rows("pgd")
    logits = net(data.pixels()).detach()
    confidence = logits.double().softmax(1).numpy()
    assert clean["prediction"].tolist() == logits.argmax(1).tolist()
    assert clean["p_label"].to_numpy() == pytest.approx(confidence[np.arange(len(data)), data.y], rel=1e-6)
    assert clean["confidence_variance"].to_numpy() == pytest.approx(confidence_variance(confidence), rel=1e-5)
    assert clean["runner_up"].tolist() == logits.argsort(1, descending=True)[:, 1].tolist()
    assert set(clean["forwards"]) == {1}
    assert set(clean["epsilon"]) == {0.0}
    assert (attacked["distance"] <= EPSILON + 1e-6).all()
    assert set(attacked["epsilon"]) == {EPSILON}
    robust = attacked[attacked["correct"]]
    assert set(robust["backwards"]) == {5}
    assert robust["first_success"].isna().all()
    assert set(attacked[~attacked["correct"]]["first_success"]) <= {"pgd", "clean"}


def test_images_misclassified_without_attack_take_no_step() -> None:
    data = toys.images(strength=(0.0, 0.06, 0.06))
    result = run(data=data)
    wrong = result.outcomes.rows("clean").query("~correct")
    assert len(wrong)
    rows = result.outcomes.rows("pgd").set_index("index").loc[wrong["index"]]
    assert set(rows["first_success"]) == {"clean"}
    assert set(rows["iterations"]) == set(rows["backwards"]) == {0}
    assert rows["prediction"].tolist() == wrong["prediction"].tolist()


def test_without_early_stop_every_image_takes_every_step() -> None:
    data = toys.images(strength=(0.0, 0.06, 0.06))
    result = run(data=data, early_stop=False, attacks="pgd:steps=5")
    rows = result.outcomes.rows("pgd")
    assert set(rows["iterations"]) == set(rows["backwards"]) == {5}
    assert set(rows[~rows["correct"]]["first_success"]) == {"pgd"}
    assert "last iterate" in result.confusion("pgd").attrs["shows"]


@pytest.mark.slow
def test_a_cascade_attacks_survivors_only() -> None:
    side_by_side, cascade = run(), run(cascade=True)
    first = side_by_side.outcomes.rows("pgd")
    second = cascade.outcomes.rows("pgd-margin")
    skipped = second[second["status"] == "skipped"]
    success = first[first["first_success"] == "pgd"]
    assert len(success)
    assert skipped["index"].tolist() == success["index"].tolist()
    assert set(skipped["first_success"]) == {"pgd"}
    assert skipped["prediction"].isna().all()
    assert not skipped["correct"].any()
    assert cascade.outcomes.correct("all").tolist() == side_by_side.outcomes.correct("all").tolist()
    assert int(cascade.confusion("pgd-margin").to_numpy().sum()) == len(second), "cumulative, as the accuracies"


def test_the_grid_of_temperatures_is_a_family() -> None:
    result = run(attacks="tpgd:steps=2")
    assert result.names == (
        "clean",
        "tpgd[2]",
        "tpgd[5]",
        "tpgd[10]",
        "tpgd[50]",
        "tpgd-best",
        "tpgd-union",
        "all",
    )
    overall = result.by_attack["overall"]
    assert overall["tpgd-best"] == overall[["tpgd[2]", "tpgd[5]", "tpgd[10]", "tpgd[50]"]].min()
    assert overall["tpgd-union"] <= overall["tpgd-best"]
    assert overall["tpgd-union"] == overall["all"]


@pytest.mark.slow
@pytest.mark.parametrize("net", [toys.model(scale=0.05), toys.model(scale=1.0)])
def test_a_permuted_data_set_gives_the_same_rows(net: toys.Linear) -> None:
    data = toys.images(100)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(3))
    attacks = ["pgd:steps=4,restarts=2", "tpgd:steps=3"]
    plain = audit(net, data, THREAT, attacks, batch_size=32)
    permuted = audit(net, data.take(order), THREAT, attacks, batch_size=32)
    pd.testing.assert_frame_equal(plain.outcomes.frame, permuted.outcomes.frame, check_exact=True)
    single = audit(net, data.take(order[:20]), THREAT, attacks, batch_size=32)
    same = plain.outcomes.frame[plain.outcomes.frame["index"].isin(order[:20].numpy())].reset_index(drop=True)
    pd.testing.assert_frame_equal(single.outcomes.frame, same, check_exact=True)


@pytest.mark.slow
def test_a_stream_gives_the_rows_of_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    data = toys.images()
    plain = run(data=data)
    monkeypatch.setattr("classwise.auditing.run.inputs.PIECE_BYTES", 10_000)  # several pieces
    names = data.class_names
    loader = DataLoader(TensorDataset(data.x, data.y), batch_size=7)
    for source in (Stream(loader, names), Stream(iter(zip(data.x, data.y, strict=True)), names)):
        streamed = run(data=source)
        pd.testing.assert_frame_equal(streamed.outcomes.frame, plain.outcomes.frame, check_exact=True)
    assert streamed.outcomes.meta.data_hash
    unnamed = run(data=(data.x, data.y))
    pd.testing.assert_frame_equal(unnamed.outcomes.frame, plain.outcomes.frame, check_exact=True)
    assert unnamed.outcomes.class_names == ("0", "1", "2")


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_modes_of_the_model_are_restored(interrupted: bool) -> None:
    net = toys.model().train()
    net.head.eval()
    flags = [module.training for module in net.modules()]
    with pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
        run(model=net, progress=Listener(100) if interrupted else None)
    assert [module.training for module in net.modules()] == flags
    assert all(parameter.requires_grad and parameter.grad is None for parameter in net.parameters())


def test_progress_sums_to_the_announced_total() -> None:
    lines = Listener()
    run(progress=lines)
    assert list(lines.totals) == ["clean", "pgd", "pgd-margin"]
    assert lines.done == lines.totals
    assert lines.totals["clean"] == 90


@pytest.mark.slow
def test_a_radius_for_each_image() -> None:
    data = toys.images()
    epsilon = torch.where(data.y == 1, 0.0, EPSILON)
    from classwise.threat.ball import Threat

    result = run(data=data, threat=Threat("Linf", epsilon))
    rows = result.outcomes.rows("pgd")
    assert rows["epsilon"].to_numpy() == pytest.approx(epsilon.numpy())
    assert (rows["distance"] <= rows["epsilon"] + 1e-6).all()
    uniform = run(data=data).outcomes
    others = uniform.labels != 1
    assert np.array_equal(result.outcomes.correct("pgd")[others], uniform.correct("pgd")[others])
    assert np.array_equal(result.outcomes.correct("pgd")[~others], uniform.correct("clean")[~others])
    check_refused(
        r"radii have shape \(3,\); expected one number, or shape \(90,\)",
        run,
        data=data,
        threat=Threat("Linf", epsilon[:3]),
    )


@pytest.mark.slow
def test_grouping_by_column_superclass_and_values() -> None:
    data = toys.images()
    site = Column(torch.arange(90) % 2, ("north", "south"))
    rich = Images(
        data.x, data.y, data.class_names, superclasses=(0, 0, 1), superclass_names=("A", "B"), columns={"site": site}
    )
    by_site = run(data=rich, group="site")
    assert by_site.by_class.index.tolist() == ["north", "south"]
    assert by_site.by_class["n"].tolist() == [45, 45]
    assert run(data=rich, group="superclass").by_class["n"].tolist() == [60, 30]
    values = run(data=data, group=["left"] * 30 + ["right"] * 60)
    assert values.by_class["n"].to_dict() == {"left": 30, "right": 60}
    plain = run(data=data)
    expected = [plain.outcomes.correct("all")[:30].mean(), plain.outcomes.correct("all")[30:].mean()]
    assert values.by_class["all"].tolist() == pytest.approx(expected)
    check_refused("unknown grouping of the data", run, data=data, group="sight")


def test_saved_tensors_match_the_rows() -> None:
    data, net = toys.images(), toys.model()
    result = run(model=net, data=data, save=["logits", "features", "images"])
    index, images = result.artifacts.get("images", "pgd")
    _, logits = result.artifacts.get("logits", "pgd")
    _, features = result.artifacts.get("features", "pgd")
    attacked = result.outcomes.rows("pgd").set_index("index").loc[index]
    again = net(torch.from_numpy(images)).detach()
    assert logits == pytest.approx(again.numpy(), abs=1e-5)
    assert features == pytest.approx(images.reshape(len(index), -1))
    assert logits.argmax(1).tolist() == attacked["prediction"].tolist()
    distance = np.abs(images - data.pixels(torch.from_numpy(index)).numpy()).reshape(len(index), -1).max(1)
    assert distance == pytest.approx(attacked["distance"].to_numpy(), abs=1e-6)
    check_refused("save = 'logit': must be 'logits'", run, save="logit")
    check_refused(r"no images of 'clean' were saved", result.artifacts.get, "images", "clean")


def test_examples_of_each_class_are_saved_for_the_page() -> None:
    data = toys.images()
    result = run(data=data)
    index, clean = result.artifacts.get("examples", "clean")
    examples, images = result.artifacts.get("examples", "pgd")
    assert index.tolist() == examples.tolist()
    assert np.bincount(data.y[index]).tolist() == [8, 8, 8]
    assert clean.shape == images.shape == (24, 1, toys.SIDE, toys.SIDE)
    assert clean == pytest.approx(data.pixels(torch.from_numpy(index)).numpy(), abs=1e-3)
    assert 0 < np.abs(images.astype(np.float32) - clean).max() <= EPSILON + 1e-3


def test_an_index_to_trace_that_the_data_lack_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    reason = rf"include none with the index 99999; give indices of these images, such as {toys.images().index[0]}$"
    check_refused(reason, run, trace=[4, 99999])
    images = toys.images()
    source = [(x, int(y)) for x, y in zip(images.pixels(), images.y, strict=True)]
    assert run(data=Stream(source), trace=[4, 99999]).trace is not None  # how many images there are is known at the end
    assert "no image with the index 99999" in caplog.text


@pytest.mark.slow
def test_traces_follow_the_attack(tmp_path: Path) -> None:
    data, net = toys.images(), toys.model()
    result = run(model=net, data=data, trace=[4, 80], early_stop=False, out=tmp_path / "a")
    trace = result.trace
    assert trace is not None
    assert list(trace.columns) == ["index", "attack", "iteration", "class", "confidence"]
    assert sorted(set(trace["index"])) == [4, 80]
    assert trace.groupby(["index", "attack", "iteration"])["confidence"].sum().to_numpy() == pytest.approx(1.0)
    last = trace[(trace["attack"] == "pgd") & (trace["iteration"] == 5) & (trace["index"] == 80)]
    own = last[last["class"] == int(data.y[80])]["confidence"].item()
    assert own == pytest.approx(result.outcomes.rows("pgd").set_index("index").loc[80, "p_label"], rel=1e-6)
    loaded = Audit.load(tmp_path / "a").trace
    assert loaded is not None
    pd.testing.assert_frame_equal(loaded, trace)


class Pair(nn.Module):
    """Returns its logits in a tuple, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = toys.model()

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return self.inner(x), "more"


@pytest.mark.slow
def test_logits_are_selected_from_the_output_of_a_model() -> None:
    pd.testing.assert_frame_equal(run(model=Pair()).outcomes.frame, run().outcomes.frame)


class Small(toys.Linear):
    """A model that runs out of memory above 40 images."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 40:
            raise torch.OutOfMemoryError
        return super().forward(x)


@pytest.mark.slow
def test_a_batch_size_too_large_for_the_device_is_halved_and_logged() -> None:
    small = Small(toys.patterns(3), 0.2).eval()
    result = run(model=small, batch_size=128, guards="auto")
    assert result.outcomes.correct("all").tolist() == run().outcomes.correct("all").tolist()
    assert result.outcomes.meta.notes == (
        "batch size halved from 128 to 64 for lack of memory",
        "batch size halved from 64 to 32 for lack of memory",
    )
    assert "not-repeatable" in {warning.name for warning in result.warnings}


@configurable
class Towards(Ascent):
    """A user-defined attack: the loss is minus the logit of the label."""

    def loss(self, logits: Tensor, y: Tensor, inputs: AttackInputs) -> Tensor:
        return -logits.gather(1, y[:, None]).squeeze(1)


def test_an_attack_of_a_users_own_needs_no_registration() -> None:
    result = run(attacks=[Towards(steps=3), "tests.auditing.test_audit:Towards:steps=3", PGD(steps=3)])
    assert result.attacks == ("clean", "Towards", "Towards-2", "pgd")
    assert result.outcomes.correct("Towards").tolist() == result.outcomes.correct("Towards-2").tolist()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": toys.model(classes=4)}, "the model has 4 classes, the data set 'toy' has 3; the numbers must agree"),
        (
            {
                "model": nn.Sequential(nn.Flatten(), nn.Linear(36, 3)),
                "data": Images(torch.rand(4, 3, 6, 6), torch.tensor([0, 1, 2, 0])),
            },
            "the model does not accept images of shape .3, 6, 6",
        ),
        ({"threat": None}, "data set 'toy' has no usual threat; give one, such as Linf:8/255"),
        ({"threat": "Linf:-1"}, "epsilon = -1.0"),
        ({"attacks": "pdg"}, "did you mean 'pgd'"),
        ({"batch_size": 8}, "batch_size = 8: must be an integer from 32"),
        ({"cascade": True, "early_stop": False}, "cascade requires early_stop=True"),
        ({"max_time": 0.0}, "max_time = 0.0"),
        ({"batchsize": 32}, r"unknown argument of audit\(\): 'batchsize'; did you mean 'batch_size'"),
        ({"treat": "Linf:0.1"}, "did you mean 'threat'"),
        ({"data": "digits"}, "is a string; use load_data"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), "save": "features"}, "has no method features"),
    ],
)
def test_mistakes_are_one_line_before_any_work(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ClasswiseError, match=message) as caught:
        run(out=tmp_path / "a", **more)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_images_without_names_may_lack_the_last_classes() -> None:
    data = toys.images()
    few = Images(data.x[data.y < 2], data.y[data.y < 2])
    result = run(data=few)
    assert result.outcomes.class_names == ("0", "1", "2")
    assert len(result.by_class) == 2


def test_image_indices_must_be_unique() -> None:
    data = toys.images()
    check_refused("image index 0 occurs 2 times; it must be unique", run, data=data.take(torch.tensor([0, 0, 1])))


@pytest.mark.slow
def test_metadata_record_the_settings(tmp_path: Path) -> None:
    data, net = toys.images(), toys.model()
    result = run(model=net, data=data, out=tmp_path / "a")
    meta = Outcomes.load(tmp_path / "a").meta
    assert meta == result.outcomes.meta
    assert meta.data_hash == data.fingerprint()
    assert (meta.threat, meta.norm, meta.early_stop, meta.seed, meta.batch_size) == (THREAT, "Linf", True, 0, 32)
    attacks = meta.attacks["pgd"]
    assert attacks is not None
    assert attacks["steps"] == 5
    assert meta.model == "Linear"
    assert result.environment["seconds"] > 0


def run_residual(progress: Listener, *, hooked: bool, precision: Precision = FAST) -> Audit:
    torch.manual_seed(0)
    network = PreActResNet(3)
    network.conv1 = nn.Conv2d(1, 8, kernel_size=3, padding=1, bias=False)
    model = trained(network)
    if hooked:
        network.bn.register_forward_hook(lambda *_: None)
    return audit(
        model,
        toys.images(40),
        threat="Linf:0.05",
        attacks=["pgd:steps=3", "fab:steps=2"],
        batch_size=32,
        precision=precision,
        progress=progress,
    )


@pytest.mark.slow
def test_a_model_that_is_not_fused_is_reported_once_with_the_reason() -> None:
    progress = Listener()
    result = run_residual(progress, hooked=True)
    reason = "its layer 'bn' has hooks"
    assert result.environment["not_fused"] == reason
    assert [line for line in progress.lines if "fused" in line] == [
        f"the model is not fused, so gradients take longer: {reason}"
    ]
    assert ("Not fused", reason) in settings_of(result)
    assert result.outcomes.meta.notes == ()  # the bits can be repeated all the same


@pytest.mark.parametrize(
    ("threat", "attack", "problem"),
    [
        ("Linf:25/255", "pgd:steps=5,step_size=2/255", "5 steps of 0.00784 reach 0.0392, less than the radius 0.098"),
        ("L2:1/255", "pgd:steps=5,step_size=2/255", "steps of 0.00784 are more than half of the radius 0.00392"),
        ("Linf:8/255", "pgd:steps=5,step_size=2/255", ""),
        ("Linf:25/255", "pgd:steps=5", ""),
        ("Linf:25/255", "fgsm", ""),
    ],
)
def test_a_step_size_that_does_not_suit_the_radius_is_logged(threat: str, attack: str, problem: str) -> None:
    progress = Listener()
    run(threat=threat, attacks=[attack], progress=progress)
    logged = [line for line in progress.lines if "radius" in line]
    assert logged == ([f"pgd: {problem}; use step_size=0.25eps"] if problem else [])


@pytest.mark.slow
@pytest.mark.parametrize("precision", [FAST, EXACT], ids=["bfloat16", "float32"])
def test_a_fused_model_needs_no_note(precision: Precision) -> None:
    progress = Listener()
    result = run_residual(progress, hooked=False, precision=precision)
    assert "not_fused" not in result.environment
    assert not any("fused" in line for line in progress.lines)
    pd.testing.assert_frame_equal(
        result.outcomes.frame, run_residual(Listener(), hooked=False, precision=precision).outcomes.frame
    )
