"""Models of other libraries are loaded and audited by their references."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import classwise as cw
from classwise.attacks.autoattack import AutoAttack
from classwise.cli import main
from tests.cli.test_documents import PRINTED, write_photos

Record = Callable[[str, str, str], None]
NAMES = ["cat", "dog", "frog"]
X = torch.rand(36, 3, 32, 32, generator=torch.Generator().manual_seed(1))
DECLARED = "; Python part only, its binary does not load beside the CPU build of torch"
MISSING = "is not installed or cannot be imported; run make test-integrations"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations in other packages
        return pytest.importorskip(name, reason=f"{name} {MISSING}")


def data(names: list[str] | None = None) -> cw.Images:
    return cw.Images(X, torch.arange(len(X)) % 3, names, name="toy")


def audited(model: Any, images: cw.Images, attack: Any = "fgsm") -> cw.Audit:
    return cw.audit(model, images, "Linf:0.05", attack, batch_size=36, guards="off")


def save_huggingface(folder: Path, names: list[str]) -> Path:
    transformers = imported("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8],
        depths=[1, 1],
        layer_type="basic",
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForImageClassification.from_config(config)
    model.save_pretrained(folder)
    about = {
        "image_processor_type": "ViTImageProcessor",
        "image_mean": [0.5] * 3,
        "image_std": [0.25] * 3,
        "size": {"height": 24, "width": 24},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return folder


@pytest.fixture
def huggingface(tmp_path: Path) -> Path:
    return save_huggingface(tmp_path / "hf", NAMES)


def documented(source: str) -> list[list[str]]:
    """The audits that the documents print of models of a source."""
    audits = {command.words for command in PRINTED if command.words[0] == "audit" and len(command.words) > 1}
    return [list(words) for words in sorted(audits) if words[1].startswith(source)]


def check_documented(source: str) -> None:
    """Run them on a folder of photos of two classes."""
    write_photos(Path("photos"))
    assert documented(source)
    for words in documented(source):
        assert main([*words, "--data-set=size=32", "--attack=pgd:steps=1", "--subset=4"]) == 0


def test_the_documented_commands_with_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in documented("hf:"):
        save_huggingface(Path(words[1].removeprefix("hf:")), ["cat", "dog"])
    check_documented("hf:")


def test_the_documented_commands_with_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = imported("timm")
    monkeypatch.chdir(tmp_path)
    for words in documented("timm:"):
        torch.manual_seed(0)
        network = timm.create_model(words[1].removeprefix("timm:"), num_classes=2)
        torch.save(network.state_dict(), words[words.index("--weights") + 1])
    check_documented("timm:")


@pytest.mark.parametrize("package", ["transformers", "timm"])
def test_adjusted_logits(package: str, tmp_path: Path) -> None:
    imported(package)
    folder = save_huggingface(tmp_path / "hf", NAMES) if package == "transformers" else None
    model = cw.load_model("timm:resnet10t", data=data(), pretrained=False) if folder is None else f"hf:{folder}"
    options: dict[str, Any] = {"attack": "fgsm", "rates": [0.3], "folds": 0, "out": tmp_path / "adjusted.safetensors"}
    found = cw.adjust_logits(model, data(NAMES), "Linf:0.05", **options)
    with torch.no_grad():
        assert torch.equal(cw.load_model(tmp_path / "adjusted.safetensors")(X), found.model(X))


def test_a_folder_of_transformers(huggingface: Path, compatibility: Record) -> None:
    transformers = imported("transformers")
    model = cw.load_model(f"hf:{huggingface}")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(huggingface).eval()
    resized = nn.functional.interpolate(X, size=(24, 24), mode="bilinear", antialias=True)
    with torch.no_grad():
        torch.testing.assert_close(model(X), theirs((resized - 0.5) / 0.25).logits)
    assert "resized to 24 x 24 (bilinear)" in str(model.loaded)
    assert model.class_names == tuple(NAMES)
    result = audited(f"hf:{huggingface}", data())
    assert list(result.by_class.index) == NAMES
    with pytest.raises(
        cw.ClasswiseError, match="same classes in another order: label 0 is 'cat' in the model and 'dog'"
    ):
        audited(f"hf:{huggingface}", data(["dog", "cat", "frog"]))
    compatibility("models", "`hf:FOLDER` (`save_pretrained`: weights, class names, preprocessing)", "transformers")


def test_weights_of_a_folder_of_transformers_are_weights_too(huggingface: Path, compatibility: Record) -> None:
    model = cw.load_model(f"hf:{huggingface}", weights=huggingface / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(model(X), cw.load_model(f"hf:{huggingface}")(X))
    compatibility("checkpoints", "`hf:FOLDER`, `--weights model.safetensors`", "transformers")


def test_autoattack_of_a_model_with_an_output_object(huggingface: Path, compatibility: Record) -> None:
    transformers = imported("transformers")
    model = transformers.AutoModelForImageClassification.from_pretrained(huggingface).eval()
    attack = AutoAttack(model, eps=0.1)
    attack.attacks = {"apgd-ce": attack.attacks["apgd-ce"]}
    with torch.no_grad():
        y = model(X).logits.argmax(1)
    adversarial = attack.run_standard_evaluation(X, y, bs=36)
    assert float((adversarial - X).abs().max()) <= 0.1 + 1e-6
    assert not torch.equal(adversarial, X)
    compatibility("attacks", "`AutoAttack(model)` on a model that returns `.logits`", "transformers")


def test_mistakes_with_transformers(tmp_path: Path, huggingface: Path) -> None:
    with pytest.raises(cw.ClasswiseError, match="cannot be loaded"):
        cw.load_model("hf:organisation/none")
    with pytest.raises(cw.ClasswiseError, match="there is no such folder"):
        cw.load_model(f"hf:{tmp_path}/no folder")
    (huggingface / "config.json").write_text("{")
    with pytest.raises(cw.ClasswiseError, match="cannot be loaded") as error:
        cw.load_model(f"hf:{huggingface}")
    assert "\n" not in str(error.value)


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    transformers = imported("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic")
    transformers.ResNetModel(config).save_pretrained(tmp_path / "bare")
    with pytest.raises(cw.ClasswiseError, match=r"has no weights for classifier.* fine-tuned as a classifier"):
        cw.load_model(f"hf:{tmp_path / 'bare'}")


def test_a_model_of_timm(tmp_path: Path, compatibility: Record) -> None:
    timm = imported("timm")
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", num_classes=3).eval()
    torch.save(
        {"state_dict_ema": {f"module.{key}": tensor for key, tensor in network.state_dict().items()}}, tmp_path / "w"
    )
    model = cw.load_model("timm:resnet10t", weights=tmp_path / "w", data=data())
    mean, std = (torch.tensor(network.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        assert torch.equal(model(X), network((X - mean) / std))
    with pytest.raises(cw.ClasswiseError, match=r"size mismatch for fc.weight.*; use num_classes=3"):
        cw.load_model("timm:resnet10t", weights=tmp_path / "w")
    compatibility("checkpoints", "`timm:NAME --weights FILE` with `state_dict_ema`", "timm")


def test_a_folder_of_timm(tmp_path: Path, compatibility: Record) -> None:
    timm = imported("timm")
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", num_classes=3, in_chans=3).eval()
    timm.models.save_for_hf(network, tmp_path / "timm", model_config={"label_names": NAMES})
    model = cw.load_model(f"timm:{tmp_path / 'timm'}")
    mean, std = (torch.tensor(network.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        assert torch.equal(model(X), network((X - mean) / std))
    assert list(audited(f"timm:{tmp_path / 'timm'}", data()).by_class.index) == NAMES
    compatibility("models", "`timm:FOLDER` (`save_for_hf`: weights, class names, normalisation)", "timm")


def test_a_vision_transformer_of_timm_resizes(compatibility: Record) -> None:
    imported("timm")
    model = cw.load_model("timm:vit_tiny_patch16_224", num_classes=3, pretrained=False, depth=1)
    with torch.no_grad():
        assert model(X[:2]).shape == (2, 3)
    assert "resized to 224 x 224" in str(model.loaded)
    compatibility("models", "`timm:NAME` with a fixed image size", "timm")


def test_mistakes_with_timm() -> None:
    imported("timm")
    with pytest.raises(cw.ClasswiseError, match="unknown model of timm 'resnet10'; did you mean 'resnet1"):
        cw.load_model("timm:resnet10")
    with pytest.raises(cw.ClasswiseError, match="give --weights FILE, or --model-set pretrained=false"):
        cw.load_model("timm:resnet10t")
    with pytest.raises(cw.ClasswiseError, match="cannot be built with the options foo"):
        cw.load_model("timm:resnet10t", pretrained=False, foo=1)


def test_a_model_of_torchvision(tmp_path: Path, compatibility: Record) -> None:
    models = imported("torchvision.models")
    torch.manual_seed(0)
    network = models.resnet18(num_classes=3).eval()
    torch.save(network.state_dict(), tmp_path / "w.pt")
    mean, std = (torch.tensor(channels).view(3, 1, 1) for channels in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        expected = network((X - mean) / std)
        assert torch.equal(cw.load_model("torchvision:resnet18", weights=tmp_path / "w.pt", data=data())(X), expected)
        own = cw.load_model("torchvision.models:resnet18", weights=tmp_path / "w.pt", data=data())
        assert torch.equal(own(X), network(X))
    compatibility("models", f"`torchvision:NAME --weights FILE`{DECLARED}", "torchvision")
    compatibility("models", f"`torchvision.models:resnet18` (a function with `**kwargs`){DECLARED}", "torchvision")


def test_mistakes_with_torchvision() -> None:
    imported("torchvision.models")
    with pytest.raises(cw.ClasswiseError, match="unknown model of torchvision 'resnet19'; did you mean 'resnet1"):
        cw.load_model("torchvision:resnet19")
    with pytest.raises(cw.ClasswiseError, match="unknown weights of torchvision's resnet18 'V9'"):
        cw.load_model("torchvision:resnet18", pretrained="V9")


def test_published_weights_of_torchvision(monkeypatch: pytest.MonkeyPatch, compatibility: Record) -> None:
    models = imported("torchvision.models")
    torch.manual_seed(0)
    state = models.resnet18().state_dict()
    monkeypatch.setattr(models.ResNet18_Weights, "get_state_dict", lambda *_, **__: state)
    model = cw.load_model("torchvision:resnet18", pretrained="IMAGENET1K_V1")
    names: Any = model.class_names
    assert names[:2] == ("tench", "goldfish")
    assert torch.equal(model.state_dict()["model.model.fc.weight"], state["fc.weight"])
    compatibility("models", f"`torchvision:NAME`, published weights (the download replaced){DECLARED}", "torchvision")


def test_a_model_of_robustbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compatibility: Record) -> None:
    declared = ""
    if importlib.util.find_spec("pkg_resources") is None:  # robustbench reads a list of ImageNet files with it
        monkeypatch.setitem(sys.modules, "pkg_resources", ModuleType("pkg_resources"))
        declared = "; `pkg_resources`, which its import needs, replaced by an empty module"
    imported("robustbench")
    enums, zoo = imported("robustbench.model_zoo.enums"), imported("robustbench.model_zoo.models")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    network = zoo.model_dicts[enums.BenchmarkDataset.cifar_10][enums.ThreatModel.Linf]["Wong2020Fast"]["model"]().eval()
    state = {f"module.{key}": tensor for key, tensor in network.state_dict().items() if key not in ("mu", "sigma")}
    (tmp_path / "models/cifar10/Linf").mkdir(parents=True)
    torch.save({"state_dict": state}, tmp_path / "models/cifar10/Linf/Wong2020Fast.pt")
    model = cw.load_model("robustbench:Wong2020Fast/cifar10/Linf")
    with torch.no_grad():
        assert torch.equal(model(X), network(X))
        assert torch.equal(cw.load_model("robustbench:Wong2020Fast")(X), model(X))
    for reference, message in {
        "robustbench:Wong2020Fas": "did you mean 'Wong2020Fast'",
        "robustbench:Wong2020Fast/cifar11/Linf": "unknown data set of RobustBench 'cifar11'",
        "robustbench:Wong2020Fast/cifar10/L3": "unknown threat model of RobustBench for cifar10 'L3'",
    }.items():
        with pytest.raises(cw.ClasswiseError, match=message):
            cw.load_model(reference)
    compatibility("models", f"`robustbench:NAME/DATA/THREAT`, weights in `models/`{declared}", "robustbench")


def test_an_onnx_file(tmp_path: Path, compatibility: Record) -> None:
    imported("onnxruntime")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 3)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, axes in (("free", {"x": {0: "n"}}), ("fixed", None)):
            arguments: dict[str, Any] = {"dynamo": False, "input_names": ["x"], "dynamic_axes": axes}
            torch.onnx.export(network, (X[:8],), tmp_path / f"{name}.onnx", **arguments)
    for name in ("free", "fixed"):
        model = cw.load_model(tmp_path / f"{name}.onnx")
        with torch.no_grad():
            torch.testing.assert_close(model(X), network(X), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        labels = network(X).argmax(1)
    images = cw.Images(X, labels, name="toy")
    result = cw.audit(tmp_path / "free.onnx", images, "Linf:0.3", ["pgd:steps=2", "square:steps=20"], batch_size=36)
    assert result.names == ("clean", "square", "all")
    assert result.by_class["square"].min() < 1
    warning = next(warning for warning in result.warnings if warning.name == "no-gradient")
    assert "ONNX Runtime computes no gradients" in warning.sentence
    (tmp_path / "bad.onnx").write_bytes(b"hello")
    with pytest.raises(cw.ClasswiseError, match=r"bad\.onnx is damaged or not an ONNX model"):
        cw.load_model(tmp_path / "bad.onnx")
    compatibility("models", "`FILE.onnx`", "onnxruntime")


def test_a_lightning_module_and_its_checkpoint(tmp_path: Path, compatibility: Record) -> None:
    lightning = imported("pytorch_lightning")

    class Mine(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, width: int = 3) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, width))
            self.loss = nn.CrossEntropyLoss(weight=torch.ones(width))

        def forward(self, x: Tensor) -> Tensor:
            return self.classifier(x)  # type: ignore[no-any-return]

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return self.loss(self(batch[0]), batch[1])  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    module = Mine()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, torch.arange(36) % 3), batch_size=36)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, loader)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
    result = audited(module, data())
    assert result.outcomes.meta.model == "Mine"
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
    again = cw.load_model(network, weights=tmp_path / "last.ckpt")
    with torch.no_grad():
        assert torch.equal(again(X), module.eval()(X))
    assert "ignored keys: loss.weight" in str(again.loaded)
    compatibility("models", "a `LightningModule`", "pytorch-lightning")
    compatibility("checkpoints", "a Lightning checkpoint (`.ckpt`) for one of its modules", "pytorch-lightning")


def test_an_attack_of_torchattacks(compatibility: Record) -> None:
    torchattacks = imported("torchattacks")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3)).eval()
    result = audited(model, data(), torchattacks.FGSM(model, eps=0.05))
    assert result.names[:2] == ("clean", "external")
    with pytest.raises(cw.ClasswiseError, match=r"PGD is a class; give an attack of it, such as PGD\(\.\.\.\)"):
        audited(model, data(), torchattacks.PGD)
    compatibility("attacks", "an attack object in `audit(attacks=...)`", "torchattacks")
