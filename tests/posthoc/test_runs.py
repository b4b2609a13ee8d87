"""Logit adjustment and weight interpolation of runs: their rules, the saved models, and the errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from classwise.core.files.storage import write_text
from classwise.data import Images, load_data
from classwise.models import load_model, save_weights
from classwise.models.base import last_linear
from classwise.models.logits import AdjustedLogits
from classwise.posthoc.equal_norms import equalise_norms
from classwise.posthoc.fitting import FitInputs
from classwise.posthoc.logit_adjustment import adjust_logits
from classwise.posthoc.weight_interpolation import interpolate_weights
from classwise.stats.counts import ClassCounts
from classwise.training.folder import Run
from classwise.training.train import train

from ..refusals import refused
from ..training.test_trainer import SMALL

STAGE = SMALL | {"model": {"name": "preactresnet18", "width": 0.0625}}  # a zoo model, whose last layer is known
ATTACK = "pgd:steps=2,step_size=0.5eps"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    overrides = STAGE | {"data.subset": 200, "epochs": 2, "batch_size": 32}
    return train(
        "at", budget="short", out=tmp_path_factory.mktemp("adjusted") / "run", data="digits", overrides=overrides
    )


def test_a_round_changes_each_constant_by_the_distance_from_the_mean(run: Run, tmp_path: Path) -> None:
    found = adjust_logits(run, which="last", attack=ATTACK, rates=[0.3], folds=0, out=tmp_path / "one.safetensors")
    before = found.rounds.query("round == 0")
    assert before["adjustment"].eq(0).all()
    robust = torch.tensor(before["robust"].to_numpy())
    assert torch.allclose(found.constants.double(), 0.3 * (robust.mean() - robust), atol=1e-6)
    assert found.rounds.query("round == 1")["adjustment"].to_numpy() == pytest.approx(found.constants.numpy())


def test_the_constants_are_the_sum_over_rounds(run: Run, tmp_path: Path) -> None:
    rates = [0.5, 0.25, 0.125]
    found = adjust_logits(run, which="last", attack=ATTACK, rates=rates, folds=0, out=tmp_path / "three.safetensors")
    expected = torch.zeros(10, dtype=torch.float64)
    for turn, rate in enumerate(rates):
        robust = torch.tensor(found.rounds.query(f"round == {turn}")["robust"].to_numpy())
        expected += rate * (robust.mean() - robust)
    assert torch.allclose(found.constants.double(), expected, atol=1e-6)
    assert abs(float(found.constants.sum())) < 1e-5  # the mean is over classes


@pytest.mark.slow
def test_the_saved_model_is_the_original_plus_the_constants(run: Run) -> None:
    before = {name: value.clone() for name, value in run.model("last").state_dict().items()}
    found = adjust_logits(run, which="last", attack=ATTACK, rates=[0.3], folds=0)
    assert found.path == run.path / "checkpoints" / "adjusted.safetensors"
    assert "adjusted" in run.saved_weights()
    assert run.default_weights() != "adjusted"
    x = load_data("digits", split="test").pixels(slice(0, 50))
    with torch.no_grad():
        assert torch.allclose(load_model(found.path)(x), run.model("last")(x) + found.constants, atol=1e-5)
        assert torch.allclose(run.model("adjusted")(x), load_model(found.path)(x))
    assert all(torch.equal(value, before[name]) for name, value in run.model("last").state_dict().items())
    again = found.path.read_bytes()
    adjust_logits(run, which="last", attack=ATTACK, rates=[0.3], folds=0)
    assert found.path.read_bytes() == again


def test_images_passed_to_the_run_and_classes_without_validation_images(tmp_path: Path) -> None:
    images = load_data("digits", split="train", subset=200, seed=0)
    few = images.take((images.y < 3).nonzero().squeeze(1))  # ten names, three of them with images
    own = train("at", budget="short", out=tmp_path / "run", data=few, overrides=STAGE | {"epochs": 1})
    found = adjust_logits(own, data=few, attack=ATTACK, rates=[0.3], folds=2)
    assert found.constants[3:].eq(0).all()
    assert found.rounds.query("label >= 3")["robust"].isna().all()
    assert bool(found.constants.isfinite().all())
    assert "was trained on other images" in refused(adjust_logits, own, data=images)


def test_cross_fitting_attacks_no_image_under_constants_that_it_chose(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked: list[tuple[frozenset[int], Tensor, Tensor]] = []

    def counted(self: FitInputs, model: nn.Module, images: Images) -> ClassCounts:
        assert isinstance(model, AdjustedLogits)
        counts = robust_counts(self, model, images)
        accuracy = torch.tensor(counts.accuracy, dtype=torch.float32)
        attacked.append((frozenset(images.index.tolist()), model.logit_adjustment.clone(), accuracy))
        return counts

    robust_counts = FitInputs.robust_counts
    monkeypatch.setattr(FitInputs, "robust_counts", counted)
    found = adjust_logits(
        run, which="last", attack=ATTACK, rates=[0.3, 0.2], folds=3, out=tmp_path / "folds.safetensors"
    )
    *folds, first, second, last = attacked
    split = first[0]
    assert second[0] == last[0] == split
    assert torch.allclose(last[1], found.constants, atol=1e-6)
    held = folds[2::3]  # two rounds on the other folds, then the fold under the constants of the last of them
    assert frozenset().union(*(images for images, _, _ in held)) == split
    assert sum(len(images) for images, _, _ in held) == len(split)
    for (others, before, robust), (images, constants, _) in zip(folds[1::3], held, strict=True):
        assert others == split - images
        assert torch.allclose(constants, before + 0.2 * (robust.mean() - robust), atol=1e-6)


def test_accuracies_by_class_are_those_of_the_rounds_and_have_simultaneous_intervals(run: Run, tmp_path: Path) -> None:
    found = adjust_logits(run, which="last", attack=ATTACK, rates=[0.3], folds=0, out=tmp_path / "none.safetensors")
    classes = found.classes.set_index("class")
    for column, turn in {"before": 0, "fitted": 1}.items():
        expected = found.rounds[found.rounds["round"] == turn].set_index("class")["robust"]
        assert (classes[column] - expected).abs().max() == 0
    assert classes["robust"].isna().all()
    level = 1 - 0.95 ** (1 / classes["n"].gt(0).sum())
    for _, row in classes.iterrows():
        exact = scipy.stats.binomtest(round(row["before"] * row["n"]), int(row["n"])).proportion_ci(1 - level)
        assert (row["before_low"], row["before_high"]) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_impossible_requests_raise_errors(run: Run, tmp_path: Path) -> None:
    assert "has no weights 'average'" in refused(adjust_logits, run, which="average")
    assert "rates = []" in refused(adjust_logits, run, rates=[])
    assert "rates = [0.3, -1.0]" in refused(adjust_logits, run, rates=[0.3, -1])
    assert "folds = 1 must be 2 or more" in refused(adjust_logits, run, folds=1)
    assert "no device 'gpu7'" in refused(adjust_logits, run, device="gpu7")
    assert "contains no run" in refused(adjust_logits, tmp_path)
    shutil.copytree(run.path, tmp_path / "bare")
    write_text(tmp_path / "bare" / "validation.json", '{"index": []}', checksum=True)
    assert "has no validation split" in refused(adjust_logits, tmp_path / "bare")


def test_a_model_whose_logits_overflow_is_refused(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    huge = Run(tmp_path / "run")
    model = huge.model("last")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e30)
    save_weights(huge.weights_file("last"), model, checksum=True)
    assert "the logits of the model are NaN or infinite" in refused(adjust_logits, huge, which="last", folds=0)


STAGES = STAGE | {"data.subset": 200, "batch_size": 32, "averaging.decay": 0.9}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("stages") / "first"
    return train("at-ema-step", budget="short", out=out, data="digits", overrides=STAGES | {"epochs": 2})


@pytest.fixture(scope="module")
def tuned(first: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    overrides = STAGES | {"epochs": 1, "model.weights": str(first.weights_file("average"))}
    out = tmp_path_factory.mktemp("stages") / "tuned"
    return train("at-ema-step", budget="short", out=out, data="digits", overrides=overrides)


@pytest.mark.slow
def test_the_interpolated_weights_are_between_the_two(first: Run, tuned: Run, tmp_path: Path) -> None:
    before, after = first.model("average").state_dict(), tuned.model("average").state_dict()
    for share in (0.0, 0.25, 1.0):
        found = interpolate_weights(
            tuned, which="average", shares=[share], attack=ATTACK, out=tmp_path / f"{share}.safetensors"
        )
        assert found.share == share
        assert found.path is not None
        for name, value in load_model(found.path).state_dict().items():
            if value.is_floating_point():
                assert torch.allclose(value, share * after[name] + (1 - share) * before[name], atol=1e-6), name


@pytest.mark.slow
def test_the_first_of_ties_is_selected(tuned: Run) -> None:
    found = interpolate_weights(tuned, shares=[0.5, 0.3, 0.3, 1], attack=ATTACK)
    assert found.path == tuned.path / "checkpoints" / "interpolated.safetensors"
    assert "interpolated" in tuned.saved_weights()
    assert tuned.default_weights() != "interpolated"
    scores = found.tried.groupby("share", sort=False)["score"].first()
    assert found.share == scores.idxmax()
    each = found.tried[found.tried["share"] == found.share]
    assert scores.max() == pytest.approx(each["robust"].mean() + each["robust"].min(), abs=0.05)  # nearly even classes
    again = found.path.read_bytes()
    interpolate_weights(tuned, shares=[0.5, 0.3, 0.3, 1], attack=ATTACK)
    assert found.path.read_bytes() == again


def test_logit_adjustment_continues_from_the_interpolated_weights(tuned: Run) -> None:
    mixed = interpolate_weights(tuned, shares=[0.5], attack=ATTACK)
    found = adjust_logits(tuned, which="interpolated", attack=ATTACK, rates=[0.3], folds=0)
    x = torch.rand(8, 1, 8, 8)
    assert mixed.path is not None
    assert found.path is not None
    with torch.no_grad():
        assert torch.allclose(load_model(found.path)(x), load_model(mixed.path)(x) + found.constants, atol=1e-5)


def test_impossible_interpolations_raise_errors(first: Run, tuned: Run, tmp_path: Path) -> None:
    assert "started from random weights" in refused(interpolate_weights, first)
    assert "shares = [0.3, 1.5]" in refused(interpolate_weights, tuned, shares=[0.3, 1.5])
    assert "shares = []" in refused(interpolate_weights, tuned, shares=[])
    assert "no device 'gpu7'" in refused(interpolate_weights, tuned, device="gpu7")
    assert "has no weights 'adjusted'" in refused(interpolate_weights, first, which="adjusted", start=tuned.path)
    assert "nowhere" in refused(interpolate_weights, tuned, start=tmp_path / "nowhere")
    shutil.copytree(tuned.path, tmp_path / "bare")
    write_text(tmp_path / "bare" / "validation.json", '{"index": []}', checksum=True)
    assert "has no validation split" in refused(interpolate_weights, tmp_path / "bare")


def own_network(num_classes: int, hidden: int = 8, **_: object) -> nn.Module:
    """A network of a user, whose last linear layer has no known name."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, num_classes, bias=False))


def run_of_own_network(out: Path, hidden: int = 8) -> Run:
    model = {"name": f"{__name__}:own_network", "options": {"hidden": hidden}}
    return train("at", data="digits", out=out, overrides=SMALL | {"model": model, "epochs": 1, "data.subset": 100})


def test_equal_norms_of_a_network_of_ones_own(tmp_path: Path) -> None:
    run = run_of_own_network(tmp_path / "run")
    x = load_data("digits", split="test").pixels(slice(0, 20))
    before = run.model("last")
    norms = last_linear(before).weight.norm(dim=1)
    after = load_model(equalise_norms(run, "last"))
    with torch.no_grad():
        assert torch.allclose(after(x), before(x) * norms.mean() / norms, atol=1e-5)
    assert torch.allclose(last_linear(after).weight.norm(dim=1), norms.mean().expand(10))


def test_the_last_linear_layer_must_be_unique(tmp_path: Path) -> None:
    assert "Sequential has 2 linear layers of 10 outputs; name its last layer 'classifier'" in refused(
        equalise_norms, run_of_own_network(tmp_path / "run", hidden=10)
    )
    assert "Sequential has no linear layer" in refused(last_linear, nn.Sequential(nn.Conv2d(1, 2, 3)))
