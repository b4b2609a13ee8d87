"""Anybody's checkpoint in any network: prefixes, duplicates, normalisation, and the first thing that does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from classwise.models import Normalized, build_model, load_model, save_weights
from classwise.models.logits import LogitsModel
from classwise.training.folder import Run
from tests.models.samples import Own, tiny
from tests.refusals import check_refused, refused

State = dict[str, Tensor]
X = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
CONSTANTS = {"mean": torch.tensor(MEAN).reshape(3, 1, 1), "std": torch.tensor(STD).reshape(3, 1, 1)}


def under(prefix: str, state: State) -> State:
    return {prefix + key: tensor for key, tensor in state.items()}


def loaded(folder: Path, state: object, **options: object) -> nn.Module:
    torch.save(state, folder / "w.pt")
    return load_model("preactresnet18", folder / "w.pt", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "module.",
        "_orig_mod.",
        "module._orig_mod.",
        "_orig_mod.module.",
        "model.module.",
        "module.0.",
        "attacker.model.",
    ],
)
def test_true_prefixes_are_taken_off_as_often_as_they_come(tmp_path: Path, prefix: str) -> None:
    model = tiny()
    again = loaded(tmp_path, {"state_dict": under(prefix, model.state_dict())})
    assert torch.equal(again(X), model(X))
    assert (repr(prefix) in str(again.loaded)) == bool(prefix)


def with_duplicates(state: State) -> State:
    normaliser = {"new_mean": CONSTANTS["mean"], "new_std": CONSTANTS["std"]}
    copies = under("attacker.model.", state) | under("attacker.normalize.", normaliser)
    return under("module.", under("model.", state) | copies | under("normalizer.", normaliser))


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: under("module.1.", state) | under("module.0.", CONSTANTS),
        lambda state: under("model.module.", state) | CONSTANTS | {"n_classes": torch.tensor(5)},
        lambda state: under("model.", state) | {"mu": CONSTANTS["mean"], "sigma": CONSTANTS["std"]},
        lambda state: under("module.", state) | under("module.normalize.", CONSTANTS),
        with_duplicates,
    ],
    ids=["sequential", "mair", "mu-sigma", "normalize", "madry"],
)
def test_a_normalisation_in_the_file_is_put_in_front(tmp_path: Path, wrap: Callable[[State], State]) -> None:
    model = tiny()
    again = loaded(tmp_path, wrap(model.state_dict()))
    assert isinstance(again, Normalized)
    assert torch.equal(again(X), Normalized(model, MEAN, STD)(X))
    assert "found in the file" in str(again.loaded)
    assert build_model(**again.spec).state_dict().keys() == again.state_dict().keys()


def test_a_normalisation_that_is_given_wins_and_is_said(tmp_path: Path) -> None:
    again = loaded(tmp_path, under("model.", tiny().state_dict()) | CONSTANTS, mean=[0.5] * 3, std=[0.25] * 3)
    assert torch.equal(again(X), Normalized(tiny(), [0.5] * 3, [0.25] * 3)(X))
    assert "as given, in place of the file's mean (0.4, 0.5, 0.6)" in str(again.loaded)


def test_a_normalisation_for_pixels_up_to_255_is_refused(tmp_path: Path) -> None:
    constants = {key: 255 * tensor for key, tensor in CONSTANTS.items()}
    assert "is for pixels up to 255" in refused(loaded, tmp_path, under("model.", tiny().state_dict()) | constants)


def test_keys_that_are_left_out_are_stated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    averaged = under("module.", tiny().state_dict()) | {"n_averaged": torch.tensor(3)}
    again = loaded(tmp_path, {"ema": averaged})
    assert torch.equal(again(X), tiny()(X))
    assert "ignored keys: n_averaged" in str(again.loaded)
    assert not caplog.messages  # a counter is no loss
    loaded(tmp_path, {"ema": averaged | {"head.weight": torch.ones(3)}})
    assert [message.partition(": ")[2] for message in caplog.messages] == ["ignored keys: n_averaged, head.weight"]


def test_a_key_that_merely_contains_a_prefix_is_left_alone(tmp_path: Path) -> None:
    own = Own(3)
    for prefix in ("", "module.", "model."):
        torch.save(under(prefix, own.state_dict()), tmp_path / "w.pt")
        again = load_model(Own(3), tmp_path / "w.pt")
        assert torch.equal(again(X[:, :, :2, :2]), own(X[:, :, :2, :2])[0])


def test_keys_that_share_a_prefix_by_right_keep_it(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))  # every key begins with "1."
    torch.save(network.state_dict(), tmp_path / "w.pt")
    again = load_model(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), tmp_path / "w.pt")
    assert torch.equal(again(X[:, :, :2, :2]), network(X[:, :, :2, :2]))


def test_a_network_keeps_buffers_that_only_look_like_a_normalisation(tmp_path: Path) -> None:
    inner = Normalized(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), [0.1] * 3, [0.9] * 3)
    network = nn.Sequential(inner)
    torch.save(network.state_dict(), tmp_path / "w.pt")
    other = Normalized(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), [0.0] * 3, [1.0] * 3)
    again = load_model(nn.Sequential(other), tmp_path / "w.pt")
    assert torch.equal(again(X[:, :, :2, :2]), network(X[:, :, :2, :2]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small-cnn", "wrn-28-10"])
def test_the_public_code_s_other_names(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    width = 0.1 if name == "small-cnn" else 1 / 40
    model = build_model(name, num_classes=4, in_channels=3, width=width).eval()
    theirs: State = {}
    for key, tensor in model.state_dict().items():
        if name == "small-cnn":
            theirs[("feature_extractor." if key.startswith("conv") else "classifier.") + key] = tensor
        else:
            block, dot, rest = key.partition(".")
            inner = f"{block}.layer.{rest}" if block.startswith("block") else block + dot + rest
            theirs[inner.replace(".shortcut.0.", ".convShortcut.")] = tensor
    if name == "wrn-28-10":
        theirs["sub_block1.layer.0.bn1.weight"] = torch.ones(1)
    assert not theirs.keys() & model.state_dict().keys() or name == "wrn-28-10"
    torch.save({"state_dict": under("module.", theirs)}, tmp_path / "w.pt")
    again = load_model(name, tmp_path / "w.pt")
    x = torch.rand(2, 3, 28, 28)
    assert torch.equal(again(x), model(x))


def test_width_channels_and_classes_are_inferred_from_the_weights(tmp_path: Path) -> None:
    again = loaded(tmp_path, tiny(num_classes=7, in_channels=1, width=1 / 16).state_dict())
    assert again.spec == {"name": "preactresnet18", "num_classes": 7, "in_channels": 1, "width": 1 / 16}


def test_batch_counters_may_be_missing(tmp_path: Path) -> None:
    state = {key: tensor for key, tensor in tiny().state_dict().items() if not key.endswith("num_batches_tracked")}
    assert torch.equal(loaded(tmp_path, state)(X), tiny()(X))


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    again = loaded(tmp_path, {key: tensor.half() for key, tensor in tiny().state_dict().items()})
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}


def without(key: str) -> Callable[[State], State]:
    return lambda state: {name: tensor for name, tensor in state.items() if name != key}


def with_nan(state: State) -> State:
    state["layer2.0.bn1.weight"] = torch.full_like(state["layer2.0.bn1.weight"], torch.nan)
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            dict,
            {"num_classes": 9},
            r"size mismatch for linear.weight: \(5, 16\) in the file and \(9, 16\) in .*; use num_classes=5",
        ),
        (
            dict,
            {"in_channels": 1},
            r"size mismatch for conv1.weight: \(2, 3, .* in the file and \(2, 1, .*; use in_channels=3",
        ),
        (dict, {"width": 0.125}, r"conv1.weight: \(2, .* in the file and \(8, .*; use width=0.03125"),
        (without("bn.weight"), {}, r"missing key bn.weight \(16,\).*architecture and options \(blocks, final_norm\)"),
        (without("conv1.weight"), {"num_classes": 5, "width": 1 / 32}, r"missing key conv1.weight \(2, 3, 3, 3\)"),
        (lambda state: state | {"extra.weight": X}, {}, r"unexpected key extra.weight \(4, 3, 8, 8\); use"),
        (dict, {"blocks": (1, 1, 1, 1)}, r"unexpected key layer1.1.bn1.weight"),
        (with_nan, {}, "layer2.0.bn1.weight contains NaN or infinity"),
    ],
)
def test_the_first_mismatch_is_reported_with_a_suggestion(
    tmp_path: Path, change: Callable[[State], State], options: dict[str, object], message: str
) -> None:
    check_refused(message, loaded, tmp_path, change(tiny().state_dict()), **options)


def test_another_architecture(tmp_path: Path) -> None:
    torch.save(under("module.", tiny().state_dict()), tmp_path / "w.pt")
    check_refused(r"w.pt: missing key bn1.weight .*use the architecture", load_model, "resnet18", tmp_path / "w.pt")


def test_a_network_is_not_half_filled_by_weights_that_do_not_fit(tmp_path: Path) -> None:
    torch.save(with_nan(tiny().state_dict()), tmp_path / "w.pt")
    torch.manual_seed(5)
    target = build_model("preactresnet18", num_classes=5, in_channels=3, width=1 / 32)
    before = {key: tensor.clone() for key, tensor in target.state_dict().items()}
    assert "NaN" in refused(load_model, target, tmp_path / "w.pt")
    assert all(torch.equal(tensor, before[key]) for key, tensor in target.state_dict().items())


def test_the_best_average_of_a_run_folder_is_loaded(tmp_path: Path) -> None:
    for name, seed in (("last", 1), ("best", 2), ("best-average", 3)):
        torch.manual_seed(seed)
        model = build_model("lenet", num_classes=3, in_channels=1, width=0.5)
        save_weights(tmp_path / "run" / "checkpoints" / f"{name}.safetensors", model)
        again = load_model(tmp_path / "run")
        assert f"{name}.safetensors" in str(again.loaded)
        assert torch.equal(again.classifier.weight, model.classifier.weight)  # type: ignore[union-attr,arg-type]


def test_the_weights_of_best_score_of_a_run_folder_are_loaded(tmp_path: Path) -> None:
    for name, score in (("best", 1.2), ("best-average", 0.9), ("last", None)):
        model = build_model("lenet", num_classes=3, in_channels=1, width=0.5)
        about = {} if score is None else {"score": score}
        save_weights(tmp_path / "run" / "checkpoints" / f"{name}.safetensors", model, about)
    assert "best.safetensors" in str(load_model(tmp_path / "run").loaded)


def test_a_user_s_own_model_by_path_comes_back_by_its_file_alone(tmp_path: Path) -> None:
    model = load_model("tests.models.samples:Own", num_classes=3, mean=MEAN, std=STD)
    save_weights(tmp_path / "own.safetensors", model)
    again = load_model(tmp_path / "own.safetensors")
    x = X[:, :, :2, :2]
    assert torch.equal(again(x), model(x))
    assert again(x).shape == (4, 3)


def test_a_module_of_the_user_s(tmp_path: Path) -> None:
    own = Own(3).train()
    model = load_model(own, mean=MEAN, std=STD)
    assert isinstance(model.model, LogitsModel)
    assert not own.training
    assert model.loaded == "unmodified"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (SimpleNamespace(num_classes=7, shape=(3, 8, 8)), "the model has 5 classes and the data 7"),
        (SimpleNamespace(num_classes=5, shape=(1, 8, 8)), "the model has 3 image channels and the data 1"),
    ],
)
def test_data_that_the_model_cannot_classify(tmp_path: Path, data: object, message: str) -> None:
    check_refused(message, loaded, tmp_path, tiny().state_dict(), data=data)


def test_data_say_what_fresh_weights_are_for() -> None:
    model = load_model("lenet", data=SimpleNamespace(num_classes=7, shape=(2, 8, 8)))
    assert model(torch.rand(1, 2, 8, 8)).shape == (1, 7)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "unknown model 'resnet81'; did you mean 'resnet18'"),
        ("runs/nothing", {}, "there is no file or folder runs/nothing"),
        ("nothing.safetensors", {}, "there is no file or folder nothing.safetensors"),
        ("resnet18", {}, "num_classes is unknown; give it, or weights, or data with class names"),
        ("tests.models.samples:Own", {}, "missing a required argument: 'num_classes'"),
        ("resnet18", {"num_classes": 3, "weights": "missing.pt"}, "cannot read the weights missing.pt"),
        (nn.ReLU(), {"num_classes": 3}, "num_classes, width, in_channels and options do not apply to a module"),
        (nn.ReLU(), {"mean": [0.5]}, "mean and std must be given together"),
        (nn.ReLU(), {"state_dict_key": "ema"}, "state_dict_key = 'ema' needs a file of weights"),
        ("lenet", {"num_classes": 3, "in_channels": 1, "state_dict_key": "ema"}, "needs a file of weights"),
    ],
)
def test_mistakes(name: str, options: dict[str, object], message: str) -> None:
    check_refused(message, load_model, name, **options)


@pytest.mark.parametrize("half", ["mean", "std"])
def test_half_a_normalisation_does_not_replace_half_of_the_files(tmp_path: Path, half: str) -> None:
    save_weights(tmp_path / "w.safetensors", build_model("lenet", num_classes=3, in_channels=1, mean=[0.1], std=[0.2]))
    assert "mean and std must be given together" in refused(load_model, tmp_path / "w.safetensors", **{half: [0.5]})


def test_mistakes_with_files(tmp_path: Path) -> None:
    torch.save(tiny().state_dict(), tmp_path / "w.pt")
    check_refused(r"w.pt does not name its model; .*resnet18 --weights .*w\.pt", load_model, tmp_path / "w.pt")
    assert "is a file of weights; give the name of the model of " in refused(
        load_model, tmp_path / "w.pt", tmp_path / "w.pt"
    )
    assert "is not a run folder with weights" in refused(load_model, tmp_path)
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "recipe.yaml").touch()
    for read in (load_model, Run.open):
        assert "contains one run per seed; give one of them" in refused(read, tmp_path)
