"""Sources of models on generated packages; tests/integrations/test_models.py uses the real ones."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.cli import main
from classwise.data import Images
from classwise.models import AdjustedLogits, build_model, load_model, save_weights
from classwise.models.normalization import Normalized
from classwise.models.resizing import Resized
from classwise.run import make
from classwise.sweeps.executors.run import prepare_sweep
from classwise.sweeps.plan import Plan
from tests.models.processors import EFFICIENT, MOBILE, Processor
from tests.refusals import check_refused, refused

X = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
Install = Callable[..., None]


@pytest.fixture
def calls() -> list[dict[str, Any]]:
    """The calls of a package in the place of an installed one."""
    return []


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a package with these attributes, and dotted submodules, in the place of an installed one."""

    def run(name: str, **attributes: Any) -> None:
        package = ModuleType(name)
        vars(package).update(attributes, __path__=[])
        monkeypatch.setitem(sys.modules, name, package)

    return run


class Network(nn.Module):
    """A linear classifier of 8 x 8 images whose output is an object."""

    def __init__(self, num_classes: int = 3, channels: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(channels * 64, num_classes)
        self.config = SimpleNamespace(num_labels=num_classes, id2label={0: "cat", 1: "dog", 2: "frog"})
        self.pretrained_cfg: dict[str, Any] = {"mean": (0.1,) * 3, "std": (0.2,) * 3, "input_size": (3, 8, 8)}
        self.num_classes = num_classes

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.linear(x.flatten(1)))


def network(num_classes: int = 3, channels: int = 3, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network(num_classes, channels).eval()


def transformers(calls: list[dict[str, Any]], missing: tuple[str, ...] = (), model_type: str = "own") -> dict[str, Any]:
    """The classes of transformers that are used."""

    def from_pretrained(path: str, **options: Any) -> tuple[Network, dict[str, Any]]:
        calls.append({"path": path, **options})
        return network(), {"missing_keys": set(missing)}

    def config(path: str, **options: Any) -> SimpleNamespace:
        calls.append({"path": path, **options})
        return SimpleNamespace(model_type=model_type, num_labels=3, num_channels=3, id2label={})

    def from_config(config: SimpleNamespace, **options: Any) -> Network:
        calls.append(options)
        return network(config.num_labels, config.num_channels)

    return {
        "AutoConfig": SimpleNamespace(from_pretrained=config),
        "AutoImageProcessor": Processor,
        "__version__": "5.0",
        "AutoModelForImageClassification": SimpleNamespace(from_pretrained=from_pretrained, from_config=from_config),
    }


def preprocessing(folder: Path, **content: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "preprocessor_config.json").write_text(json.dumps(content))


OFF = {"do_normalize": False}
PREPROCESSING: dict[str, tuple[dict[str, Any], float, float, int]] = {
    "usual": ({"image_mean": [0.4] * 3, "image_std": [0.25] * 3}, 0.4, 0.25, 8),
    "one number": ({"image_mean": 0.4, "image_std": 0.25}, 0.4, 0.25, 8),
    "resized": ({"size": {"height": 4, "width": 4}}, 0.5, 0.5, 4),
    "shortest edge": ({"size": {"shortest_edge": 6}, **OFF}, 0, 1, 6),
    "not resized": ({"size": {"height": 9, "width": 9}, "do_resize": False, **OFF}, 0, 1, 8),
    "not rescaled": ({"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [51.0] * 3}, 0.5, 0.2, 8),
    "to [-1, 1]": (
        {"image_processor_type": EFFICIENT, "rescale_factor": 1 / 127.5, "rescale_offset": True, **OFF},
        0.5,
        0.5,
        8,
    ),
    "twice": ({"image_processor_type": EFFICIENT, "include_top": True}, 0.5, 0.25, 8),
}


def inputs_of(model: nn.Module, images: Tensor) -> Tensor:
    """The input of the linear layer, which may be too large for it."""
    seen: list[Tensor] = []
    assert isinstance(model.linear, nn.Linear)
    handle = model.linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with contextlib.suppress(RuntimeError):
        model(images)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("kind", PREPROCESSING)
def test_preprocessing_of_transformers(
    kind: str, tmp_path: Path, install: Install, calls: list[dict[str, Any]]
) -> None:
    content, mean, std, side = PREPROCESSING[kind]
    install("transformers", **transformers(calls))
    preprocessing(tmp_path / "hf", **content)
    model = load_model(f"hf:{tmp_path / 'hf'}")
    expected = torch.nn.functional.interpolate(X, size=(side, side), mode="bilinear", antialias=True)
    torch.testing.assert_close(inputs_of(model, X), ((expected - mean) / std).flatten(1))
    assert ("resized to" in str(model.loaded)) == content.get("do_resize", True)
    assert model.class_names == ("cat", "dog", "frog")
    assert all(call["trust_remote_code"] is False and call["local_files_only"] is True for call in calls)


def test_crops_and_channel_order_of_transformers(
    tmp_path: Path, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "classwise")
    install("transformers", **transformers([]))
    crop = {"image_processor_type": MOBILE, "size": {"shortest_edge": 8}, "do_center_crop": True, "crop_size": 6}
    preprocessing(tmp_path / "hf", **crop, do_flip_channel_order=True)
    model = load_model(f"hf:{tmp_path / 'hf'}")
    images = torch.rand(2, 3, 8, 10)
    assert torch.equal(inputs_of(model, images), images[:, :, 1:7, 2:8].flip(1).flatten(1))
    assert "resized to 8 on the shorter side (bilinear), cropped to 6 x 6, converted from RGB to BGR" in str(
        model.loaded
    )
    model = load_model(f"hf:{tmp_path / 'hf'}", do_resize=False, do_center_crop=False, mean=[0.5], std=[0.25])
    assert torch.equal(model(X), network()((X.flip(1) - 0.5) / 0.25).logits)
    save_weights(tmp_path / "again.safetensors", model)
    assert torch.equal(load_model(tmp_path / "again.safetensors")(X), model(X))


def test_padding_is_black_before_the_normalisation(tmp_path: Path, install: Install) -> None:
    install("transformers", **transformers([]))
    preprocessing(tmp_path / "hf", do_resize=False, do_center_crop=True, crop_size=12)
    inputs = inputs_of(load_model(f"hf:{tmp_path / 'hf'}"), X).view(-1, 3, 12, 12)
    assert torch.equal(inputs[..., 2:10, 2:10], (X - 0.5) / 0.5)
    assert bool((inputs[..., :2] == -1).all())


def test_unsupported_preprocessing_of_transformers(tmp_path: Path, install: Install) -> None:
    install("transformers", **transformers([]))
    preprocessing(tmp_path / "hf", do_something_new=True)
    check_refused(
        r"model 'hf:.*': the image processor's do_something_new = True changes", load_model, f"hf:{tmp_path / 'hf'}"
    )


def test_transformers_without_a_head_or_of_timm(tmp_path: Path, install: Install) -> None:
    install("transformers", **transformers([], missing=("classifier.weight", "classifier.bias")))
    assert "no weights for classifier.bias, classifier.weight; give a model fine-tuned" in refused(
        load_model, f"hf:{tmp_path}"
    )
    install("transformers", **transformers([], model_type="timm_wrapper"))
    assert "is a model of timm; use timm:" in refused(load_model, f"hf:{tmp_path}")


def test_transformers_is_trained_with_the_shape_of_the_data(tmp_path: Path, install: Install) -> None:
    install("transformers", **transformers([]))
    assert build_model(f"hf:{tmp_path}", num_classes=7, in_channels=1)(X[:, :1]).shape == (5, 7)
    assert "has 3 classes, not 7" in refused(load_model, f"hf:{tmp_path}", num_classes=7)
    assert "have no parameter width" in refused(load_model, f"hf:{tmp_path}", width=0.5)


def timm(calls: list[dict[str, Any]], fixed: bool = False) -> dict[str, Any]:
    def create_model(**options: Any) -> Network:
        calls.append(options)
        if options["pretrained"] and not options["model_name"].startswith("net"):
            raise OSError("no connection")
        made = network(options.get("num_classes", 3), options.get("in_chans", 3), int(options["pretrained"]))
        made.pretrained_cfg |= {"fixed_input_size": fixed, "num_classes": 3, "label_names": ["a", "b", "c"]}
        return made

    return {
        "create_model": create_model,
        "is_model": lambda name: name.split(".")[0] in ("net", "other"),
        "list_models": lambda: ["net", "other"],
    }


def test_timm_loads_its_own_weights_by_default_and_random_ones_on_request(
    install: Install, calls: list[dict[str, Any]]
) -> None:
    install("timm", **timm(calls))
    data = SimpleNamespace(num_classes=9, shape=(1, 8, 8))
    model = load_model("timm:net.tag", data=data)
    assert calls[-1] == {"model_name": "net.tag", "pretrained": True}  # not the classes of the data
    assert isinstance(model, Normalized)
    assert torch.equal(model(X), network(seed=1)((X - 0.1) / 0.2).logits)
    assert "normalisation mean (0.1, 0.1, 0.1) and std (0.2, 0.2, 0.2) of the source" in str(model.loaded)
    model = load_model("timm:net", pretrained=False, data=data, mean=[0.0], std=[1.0])
    assert calls[-1] == {"model_name": "net", "pretrained": False, "num_classes": 9, "in_chans": 1}
    assert torch.equal(model(X[:, :1]), network(9, 1)(X[:, :1]).logits)
    for options, message in (({"name": "timm:nets"}, "unknown model of timm 'nets'; did you mean 'net'"),
                             ({"name": "timm:other"}, r"cannot be loaded: OSError: no connection; give --weights FILE"),
                             ({"name": "timm:net", "num_classes": 5}, "of 'timm:net' have 3 classes, not 5"),
                             ({"name": "timm:net", "width": 0.5}, "have no parameter width")):  # fmt: skip
        check_refused(message, load_model, str(options.pop("name")), **options)


@pytest.mark.parametrize("reference", ["hf", "timm:net"])
def test_adjusted_logits_are_loaded_beside_the_preprocessing_of_the_source(
    reference: str, tmp_path: Path, install: Install
) -> None:
    install("transformers", **transformers([]))
    install("timm", **timm([]))
    preprocessing(tmp_path / "hf", size={"height": 8, "width": 8}, image_mean=[0.4] * 3, image_std=[0.25] * 3)
    reference = f"hf:{tmp_path / 'hf'}" if reference == "hf" else reference
    adjusted, path = AdjustedLogits(load_model(reference), [0.5, -0.5, 1.0]), tmp_path / "adjusted.safetensors"
    save_weights(path, adjusted)
    torch.save(adjusted.state_dict(), tmp_path / "adjusted.pt")
    for again in (load_model(path), load_model(reference, path), load_model(reference, tmp_path / "adjusted.pt")):
        assert isinstance(again, AdjustedLogits)
        assert torch.equal(again(X), adjusted(X))
        assert again.state_dict().keys() == adjusted.state_dict().keys()


def test_weights_of_ones_own_for_timm(tmp_path: Path, install: Install, calls: list[dict[str, Any]]) -> None:
    install("timm", **timm(calls))
    own = network(4, seed=5)
    torch.save({"state_dict": own.state_dict()}, tmp_path / "w.pt")
    model = load_model("timm:net", tmp_path / "w.pt", num_classes=4)
    assert calls[-1]["pretrained"] is False
    assert torch.equal(model(X), own((X - 0.1) / 0.2).logits)
    check_refused(r"size mismatch for linear.weight.*; use num_classes=4", load_model, "timm:net", tmp_path / "w.pt")
    constants = {"mean": torch.full((3,), 0.5), "std": torch.full((3,), 0.25)}
    torch.save({**{f"model.{key}": tensor for key, tensor in own.state_dict().items()}, **constants}, tmp_path / "n.pt")
    model = load_model("timm:net", tmp_path / "n.pt", num_classes=4)
    assert torch.equal(model(X), own((X - 0.5) / 0.25).logits)  # the file's own normalisation


def test_a_trained_model_of_a_source_is_loaded_again_without_its_weights(
    tmp_path: Path, install: Install, calls: list[dict[str, Any]]
) -> None:
    install("timm", **timm(calls))
    trained = build_model("timm:net", num_classes=4, in_channels=3)
    assert calls[-1]["pretrained"] is False
    save_weights(tmp_path / "trained.safetensors", trained)
    again = load_model(tmp_path / "trained.safetensors")
    assert calls[-1]["pretrained"] is False
    assert torch.equal(again(X), trained(X))  # without a normalisation that it was not trained with
    save_weights(tmp_path / "published.safetensors", load_model("timm:net"))
    assert torch.equal(load_model(tmp_path / "published.safetensors")(X), load_model("timm:net")(X))


def test_a_folder_of_timm_is_read_as_data(tmp_path: Path, install: Install, calls: list[dict[str, Any]]) -> None:
    install("timm", **timm(calls, fixed=True))
    assert "has no weights; expected model.safetensors or pytorch_model.bin" in refused(load_model, f"timm:{tmp_path}")
    torch.save(network(seed=5).state_dict(), tmp_path / "pytorch_model.bin")
    model = load_model(f"timm:{tmp_path}")
    assert calls[-1] == {"model_name": f"local-dir:{tmp_path}", "pretrained": False}
    assert torch.equal(model(X), network(seed=5)((X - 0.1) / 0.2).logits)
    assert model.class_names == ("a", "b", "c")
    assert isinstance(model, Resized)
    assert model(torch.rand(2, 3, 20, 30)).shape == (2, 3)


def torchvision(calls: list[dict[str, Any]]) -> dict[str, Any]:
    weights = SimpleNamespace(
        transforms=lambda: SimpleNamespace(mean=[0.1] * 3, std=[0.2] * 3), meta={"categories": ["a", "b", "c"]}
    )
    known = SimpleNamespace(DEFAULT=weights, __members__={"V1": weights})

    def get_model(**options: Any) -> Network:
        calls.append(options)
        return network(options.get("num_classes", 3), seed=int(options["weights"] is weights))

    return {"list_models": lambda module: ["net"], "get_model_weights": lambda name: known, "get_model": get_model}


def test_torchvision(tmp_path: Path, install: Install, calls: list[dict[str, Any]]) -> None:
    install("torchvision")
    install("torchvision.models", **torchvision(calls))
    model = load_model("torchvision:net")
    assert torch.equal(model(X), network(seed=1)((X - 0.1) / 0.2).logits)
    assert model.class_names == ("a", "b", "c")
    torch.save(network(4, seed=5).state_dict(), tmp_path / "w.pt")
    own = load_model("torchvision:net", tmp_path / "w.pt", data=SimpleNamespace(num_classes=4, shape=(3, 8, 8)))
    assert calls[-1] == {"name": "net", "weights": None, "num_classes": 4}
    assert torch.equal(own(X), network(4, seed=5)((X - 0.1) / 0.2).logits)
    assert not hasattr(own, "class_names")
    for reference, options, message in (
        ("torchvision:nett", {}, "did you mean 'net'"),
        ("torchvision:net", {"pretrained": "V2"}, "unknown weights of torchvision's net 'V2'; did you mean 'V1'"),
        ("torchvision:net", {"num_classes": 5}, "the weights of 'torchvision:net' have 3 classes, not 5"),
        ("torchvision:net", {"in_channels": 1}, "has 3 image channels, not 1"),
    ):
        check_refused(message, load_model, reference, **options)


class Normalising(nn.Module):
    """A network of RobustBench, whose constants are not in its file."""

    mu: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(192, 3)
        self.register_buffer("mu", torch.full((1, 3, 1, 1), 0.5))
        self.register_buffer("sigma", torch.full((1, 3, 1, 1), 0.25))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(((x - self.mu) / self.sigma).flatten(1))  # type: ignore[no-any-return, operator]


def test_robustbench(tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(source: str, file: Path) -> None:
        downloads.append(source)
        if source == "none":
            file.write_bytes(b"part")
            raise OSError("no connection")
        torch.save({"best": {}, "last": {f"module.{key}": tensor for key, tensor in state.items()}}, file)

    downloads: list[str] = []
    zoo = {
        "Name2020": {"model": Normalising, "gdrive_id": "id"},
        "Two2020": {"model": Normalising, "gdrive_id": ["a", "b"]},
        "Gone2020": {"model": Normalising, "gdrive_id": "none"},
    }
    install("robustbench")
    install("robustbench.utils", download_gdrive=download)
    install("robustbench.model_zoo")
    install(
        "robustbench.model_zoo.models",
        model_dicts=Keyed({"cifar10": Keyed({"Linf": zoo})}),
    )
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    theirs = Normalising().eval()
    state = {key: tensor for key, tensor in theirs.state_dict().items() if key not in ("mu", "sigma")}
    assert torch.equal(load_model("robustbench:Name2020/cifar10/Linf")(X), theirs(X))
    assert (tmp_path / "models/cifar10/Linf/Name2020.pt").is_file()
    assert torch.equal(load_model("robustbench:Name2020")(X), theirs(X))
    assert downloads == ["id"]  # once
    for reference, options, message in (
        ("robustbench:Two2020", {}, r"several files for Two2020; load it in Python with robustbench.load_model"),
        ("robustbench:Gone2020", {}, r"Gone2020.pt does not exist and cannot be downloaded: OSError: no connection"),
        ("robustbench:Nam2020", {}, "did you mean 'Name2020'"),
        ("robustbench:Name2020/cifar100", {}, "unknown data set of RobustBench 'cifar100'"),
        ("robustbench:Name2020/cifar10/L2", {}, "unknown threat model of RobustBench for cifar10 'L2'"),
        ("robustbench:Name2020", {"depth": 3}, "option 'depth'"),
    ):
        check_refused(message, load_model, reference, **options)
    assert sorted(file.name for file in (tmp_path / "models/cifar10/Linf").iterdir()) == ["Name2020.pt"]


class Keyed(dict[Any, Any]):
    """A mapping whose keys are members of an enumeration."""

    def items(self) -> Any:
        return [(SimpleNamespace(value=key), value) for key, value in super().items()]


class Session:
    """A session of ONNX Runtime whose logits are the sums of the channels."""

    batch: Any = "n"
    outputs = (("label", "tensor(int64)", ["n"]), ("scores", "tensor(float)", ["n", 3]))
    type = "tensor(float)"
    sizes: list[int] = []  # noqa: RUF012  # of every call

    def __init__(self, file: str, settings: Any, providers: list[str]) -> None:
        assert providers == ["CPUExecutionProvider"]
        if Path(file).read_bytes() == b"hello":
            raise RuntimeError("Protobuf parsing failed")

    def get_inputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="x", type=self.type, shape=[self.batch, 3, 8, 8])]

    def get_outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, type=kind, shape=shape) for name, kind, shape in self.outputs]

    def run(self, names: list[str], inputs: dict[str, Any]) -> list[Any]:
        assert names == ["scores"]
        self.sizes.append(len(inputs["x"]))
        return [inputs["x"].sum((2, 3))]


@pytest.mark.parametrize("batch", ["n", 2, 7])
def test_an_onnx_file(batch: Any, tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = {"SessionOptions": SimpleNamespace, "get_available_providers": lambda: ["X", "CPUExecutionProvider"]}
    install("onnxruntime", InferenceSession=Session, **runtime)
    monkeypatch.setattr(Session, "batch", batch)
    monkeypatch.setattr(Session, "sizes", [])
    (tmp_path / "net.onnx").write_bytes(b"whole")
    model = load_model(tmp_path / "net.onnx")
    np.testing.assert_allclose(model(X), X.sum((2, 3)), rtol=1e-6)
    assert Session.sizes == {"n": [5], 2: [2, 2, 2], 7: [7]}[batch]
    assert not model(X.clone().requires_grad_()).requires_grad
    (tmp_path / "net.onnx.data").write_bytes(b"weights")
    assert not torch.equal(load_model(tmp_path / "net.onnx").digest, model.digest)  # type: ignore[arg-type]
    for name, options, message in (
        ("none.onnx", {}, "there is no file .*none.onnx"),
        ("bad.onnx", {}, r"bad.onnx is damaged or not an ONNX model \(RuntimeError: Protobuf parsing failed\)"),
        ("net.onnx", {"weights": "bad.onnx"}, "bad.onnx is an ONNX model, not weights; give it as the model"),
        ("net.onnx", {"depth": 3}, "option 'depth'"),
    ):
        (tmp_path / "bad.onnx").write_bytes(b"hello")
        given = {key: tmp_path / "bad.onnx" if key == "weights" else option for key, option in options.items()}
        check_refused(message, load_model, tmp_path / name, **given)
    assert "the ONNX model has 3 image channels and the images 1" in refused(model, X[:, :1])
    for name, value, message in (
        ("outputs", (("label", "tensor(int64)", ["n"]),), r"has the outputs label tensor\(int64\) \['n'\]; expected"),
        ("type", "tensor(uint8)", r"has the inputs x tensor\(uint8\) .*; expected one of floating-point images"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Session, name, value)
            check_refused(message, load_model, tmp_path / "net.onnx")


def test_onnx_runtime_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "net.onnx").write_bytes(b"whole")
    message = refused(load_model, tmp_path / "net.onnx")
    assert "onnxruntime is not installed; run pip install 'onnxruntime>=1.17'" in message


def test_the_documented_audits_of_the_leaderboard(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan and the commands of the document on digits, with linear models in the place of two of the ten."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "how-to" / "robustbench.md").read_text()
    plan = Plan.read(root / "benchmarks" / "plans" / "robustbench.yaml")
    names = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert [model.model for model in plan.models] == [f"robustbench:{name}" for name in names]
    assert len(plan.cells()) == len(set(names)) == 10

    class StandIn(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def download(source: str, file: Path) -> None:
        torch.manual_seed(names.index(source))
        torch.save(StandIn().state_dict(), file)

    zoo = {name: {"model": StandIn, "gdrive_id": name} for name in names}
    install("robustbench")
    install("robustbench.utils", download_gdrive=download)
    install("robustbench.model_zoo")
    install("robustbench.model_zoo.models", model_dicts=Keyed({"cifar10": Keyed({"Linf": zoo})}))
    monkeypatch.chdir(tmp_path)
    attack = ["pgd:steps=2", "apgd-ce:steps=2", "apgd-t:steps=2,targets=2"]
    (audit,) = plan.audits.values()
    smaller = dataclasses.replace(audit, asked={**audit.asked, "attacks": attack}, subset=20)
    models = (plan.models[0], plan.models[-1])
    small = dataclasses.replace(plan, models=models, data=("digits",), audits={"apgd-t": smaller})
    Path("plan.yaml").write_text(small.yaml())
    assert main(["sweep", "run", "plan.yaml", "--estimate"]) == 0
    assert "2 cells" in capsys.readouterr().out
    folder = prepare_sweep("plan.yaml", "sweeps/robustbench")
    for cell in folder.cells():
        for call in cell.calls(folder.run(cell)):
            make(call)
    rows = [f"{name}-digits" for name in (names[0], names[-1])]
    assert cw.compare([folder.run(cell) for cell in folder.cells()]).names == tuple(rows)
    sweep, collect, board = (
        line.split() for line in re.findall(r"^classwise (.*robustbench.*)$", page, re.MULTILINE)[-3:]
    )
    assert Plan.read(root / sweep[2]) == plan
    assert main(collect) == 0
    assert main(board) == 0
    assert set(pd.read_csv("board/board.csv")["model"]) == set(rows)


TWO_CLASSES = Images(torch.rand(4, 3, 8, 8), torch.arange(4) % 2)


def test_heads_of_transformers_and_timm(tmp_path: Path, install: Install, calls: list[dict[str, Any]]) -> None:
    install("timm", **timm(calls))
    model = load_model("timm:net", pretrained=False, data=TWO_CLASSES, outputs="binary-logits")
    assert calls[-1]["num_classes"] == 1
    assert model(TWO_CLASSES.x).shape == (4, 2)
    install("transformers", **transformers([]))
    model = load_model(f"hf:{tmp_path}", pretrained=False, data=TWO_CLASSES, outputs="binary-logits")
    assert model(TWO_CLASSES.x).shape == (4, 2)
    assert not model(TWO_CLASSES.x)[:, 0].any()
    install("transformers", **transformers([]))
    model = load_model(f"hf:{tmp_path}", data=TWO_CLASSES, outputs="binary")  # trained weights keep their three classes
    check_refused(r"outputs='binary': .* shape \(4, 3\) for 4 images", model, TWO_CLASSES.x)


@pytest.mark.parametrize("shape", [["n"], ["n", 1]])
def test_binary_onnx_files(shape: list[Any], tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    class Binary(Session):
        outputs = (("label", "tensor(int64)", ["n"]), ("scores", "tensor(float)", shape))

        def run(self, names: list[str], inputs: dict[str, Any]) -> list[Any]:
            return [super().run(names, inputs)[0][:, 0].reshape(-1, *shape[1:])]

    install(
        "onnxruntime",
        InferenceSession=Binary,
        SessionOptions=SimpleNamespace,
        get_available_providers=lambda: ["CPUExecutionProvider"],
    )
    (tmp_path / "net.onnx").write_bytes(b"whole")
    model = load_model(tmp_path / "net.onnx", outputs="binary-logits")
    torch.testing.assert_close(model(TWO_CLASSES.x)[:, 1], TWO_CLASSES.x[:, 0].sum((1, 2)))


@pytest.mark.filterwarnings("ignore")  # of TorchScript itself
def test_scripted_modules() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 1), nn.Flatten(0)).eval()
    model = load_model(torch.jit.script(network), outputs="binary-logits")
    assert torch.equal(model(TWO_CLASSES.x)[:, 1], network(TWO_CLASSES.x))
