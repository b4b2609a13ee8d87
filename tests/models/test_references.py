"""Model references: where each leads, the spec that builds a model again, and one line for each mistake."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from classwise.core.settings.registry import load_object
from classwise.models import MODELS, build_model, fingerprint, load_model
from classwise.models.loading.references import is_stored, parse_reference
from classwise.models.loading.sources import SOURCES
from classwise.models.loading.sources.base import ModelSource
from classwise.models.logits import LogitsModel
from classwise.models.normalization import Normalized
from tests.refusals import check_refused, refused

X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("reference", "source", "name"),
    [
        ("resnet18", "Zoo", "resnet18"),
        ("hf:google/vit-base", "HuggingFace", "google/vit-base"),
        ("timm:resnet18.a1_in1k", "Timm", "resnet18.a1_in1k"),
        ("torchvision:resnet18", "TorchVision", "resnet18"),
        ("robustbench:Wong2020Fast/cifar10/Linf", "RobustBench", "Wong2020Fast/cifar10/Linf"),
        ("nets/model.onnx", "Onnx", "nets/model.onnx"),
        ("torchvision.models:resnet18", "Function", "torchvision.models:resnet18"),
        ("mine:Net.small", "Function", "mine:Net.small"),
    ],
)
def test_sources_of_references(reference: str, source: str, name: str) -> None:
    found, rest = parse_reference(reference)
    assert (type(found).__name__, rest) == (source, name)
    assert not is_stored(reference)


@pytest.mark.parametrize("prefix", SOURCES)
def test_every_source_describes_itself(prefix: str) -> None:
    source = SOURCES.load(prefix)
    assert issubclass(source, ModelSource)
    assert source.form.startswith(f"{prefix}:") or source.form.endswith(f".{prefix}")
    assert source.__doc__


@pytest.mark.parametrize(
    ("prefix", "package"),
    [
        ("hf", "transformers"),
        ("timm", "timm"),
        ("torchvision", "torchvision"),
        ("robustbench", "robustbench"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(prefix: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    check_refused(rf"run pip install '{package}>=[\d.]+'", load_model, f"{prefix}:some/thing")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise RuntimeError('no nms')", r"\(RuntimeError: no nms\); install the version that matches torch"),
        ("import absent", r"\(ModuleNotFoundError: No module named 'absent'\); install the package of absent"),
    ],
)
def test_a_package_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    (tmp_path / "timm.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    check_refused(f"timm is installed and cannot be imported {message}$", load_model, "timm:resnet18")


@pytest.mark.parametrize("prefix", ["timm", "torchvision"])
@pytest.mark.parametrize("torch", ["2.13.0+cpu", "2.5.1"])
def test_a_torchvision_of_another_torch_is_named_with_its_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, torch: str
) -> None:
    """As by the operators that torchvision registers when it is imported."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    (tmp_path / "timm.py").write_text("import torchvision")
    monkeypatch.syspath_prepend(tmp_path)
    for module in (*sys.modules,):
        if module.partition(".")[0] in ("timm", "torchvision"):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr("importlib.metadata.version", {"torch": torch}.__getitem__)
    build = re.escape(" --index-url https://download.pytorch.org/whl/cpu") if "+" in torch else ""
    number = {"2.13.0+cpu": 28, "2.5.1": 20}[torch]
    command = rf"pip install --force-reinstall --no-deps 'torchvision==0\.{number}\.\*'{build}"
    message = rf"{prefix} is installed and cannot be imported .*torchvision must be built for torch .*: run {command}$"
    check_refused(message, load_model, f"{prefix}:resnet18")


NET = """
import torch
from torch import nn

def _private(): ...

class Net(nn.Module):
    def __init__(self, num_classes, depth):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, num_classes))
        self.depth = depth

    def forward(self, x):
        return self.layers(x)

    @classmethod
    def small(cls, num_classes=3, depth=1):
        return cls(num_classes, depth)

def positional(num_classes, /, *, depth=2):
    return Net(num_classes, depth)

def forwarding(depth=2, **kwargs):
    return Net(depth=depth, **kwargs)

def listed(*layers, **kwargs):
    return Net(depth=0, **kwargs)

def drawing(**kwargs):
    torch.rand(3)
    return Net(depth=0, **kwargs)
"""


@pytest.fixture
def mynet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mynet.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    return tmp_path / "mynet.py"


@pytest.mark.parametrize(
    ("name", "options", "depth"),
    [
        ("Net.small", {}, 1),
        ("Net.small", {"depth": 5}, 5),
        ("positional", {}, 2),
        ("forwarding", {"depth": 4}, 4),
        ("listed", {}, 0),
    ],
)
@pytest.mark.usefixtures("mynet")
def test_a_callable_receives_the_arguments_that_it_accepts(name: str, options: dict[str, Any], depth: int) -> None:
    torch.manual_seed(0)
    model = build_model(f"mynet:{name}", num_classes=7, in_channels=3, **options)
    assert model(X).shape == (2, 7)
    assert model.depth == depth
    torch.manual_seed(0)
    expected = nn.Linear(3 * 8 * 8, 7).weight
    assert torch.equal(model.layers[1].weight, expected)  # type: ignore[index, union-attr]  # no random number was drawn before


@pytest.mark.usefixtures("mynet")
def test_a_refused_argument_leaves_the_random_numbers_unchanged() -> None:
    torch.manual_seed(0)
    model = build_model("mynet:drawing", num_classes=7, in_channels=3)  # called three times, without width and channels
    torch.manual_seed(0)
    torch.rand(3)
    assert torch.equal(model.state_dict()["model.layers.1.weight"], nn.Linear(3 * 8 * 8, 7).weight)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Net", {}, r"missing a required argument: 'depth'; pass it as an option \(--model-set depth=VALUE\)"),
        ("forwarding", {"width": 0.5}, "has no parameter width; omit width = 0.5"),
        ("positional", {"dept": 3}, "model 'mynet:positional' has no option 'dept'; did you mean 'depth'"),
        ("Net.smal", {}, "unknown model in mynet:Net: 'smal'; did you mean 'small'"),
        ("Net.forward", {}, "'mynet:Net.forward' is a method of an instance; give a class method or a function"),
    ],
)
@pytest.mark.usefixtures("mynet")
def test_calls_that_fail(name: str, options: dict[str, float], message: str) -> None:
    check_refused(message, build_model, f"mynet:{name}", num_classes=7, in_channels=3, **options)


@pytest.mark.usefixtures("mynet")
def test_an_option_that_the_inner_function_refuses_is_an_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        build_model("mynet:forwarding", num_classes=7, in_channels=3, colour=1)


def test_objects_by_a_dotted_name() -> None:
    assert load_object("collections:OrderedDict.fromkeys")(["a"]) == {"a": None}
    said = refused(load_object, "textwrap:zzz")
    assert said.endswith("known: TextWrapper, dedent, fill, indent, shorten, wrap"), "not its import re"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "mynet.py",
            r"mynet.py is a Python file; name the model in it, such as mynet:Net \(it defines Net, positional",
        ),
        ("mynet.py:small", "is a Python file; name the model in it, such as mynet:small$"),
        ("nets/other.py", "there is no file nets/other.py"),
        ("bad.py", "bad.py is not valid Python code"),
        ("model.onnx", "there is no file model.onnx"),
        ("hf:misspelt", "there is no such folder; a hub id is ORGANISATION/NAME"),
        ("hf:none/none/none", "there is no such folder; a hub id is ORGANISATION/NAME"),
    ],
)
def test_references_of_files(reference: str, message: str, mynet: Path) -> None:
    mynet.with_name("bad.py").write_text("def (")
    check_refused(message, load_model, reference)


def test_a_python_file_elsewhere_is_named_with_its_folder(
    mynet: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    check_refused(rf"such as mynet:Net, from the folder {mynet.parent}", load_model, str(mynet))
    (mynet.parent / "nets").mkdir()
    (mynet.parent / "nets" / "mine.py").write_text(NET)
    monkeypatch.chdir(mynet.parent)
    assert "such as nets.mine:Net (" in refused(load_model, "nets/mine.py", weights="w.pt")


OWN = "tests.models.samples:Own"


def test_listing_the_models_imports_no_torch() -> None:
    code = "import sys, classwise.models as m; print(len(m.MODELS), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(MODELS)), "False"]


def test_the_spec_builds_the_model_again() -> None:
    torch.manual_seed(3)
    model = build_model("small-cnn", num_classes=3, in_channels=1, width=0.1, mean=[0.3], std=[0.2], hidden=50)
    torch.manual_seed(3)
    again = build_model(**model.spec)  # type: ignore[arg-type]
    assert again.spec == model.spec
    assert fingerprint(again) == fingerprint(model)
    assert isinstance(again, Normalized)
    assert copy.deepcopy(model).spec == model.spec


def test_a_user_s_own_model_receives_only_the_arguments_that_it_accepts() -> None:
    model = build_model(OWN, num_classes=7, in_channels=3, hidden=4)
    assert isinstance(model, LogitsModel)
    assert model(torch.rand(2, 3, 2, 2)).shape == (2, 7)


@pytest.mark.parametrize("name", ["wide", "forwarding"])
def test_a_width_that_nobody_requested_is_not_passed(name: str) -> None:
    """It is a factor for the zoo, and may be a number of channels elsewhere."""
    model = build_model(f"tests.models.samples:{name}", num_classes=3, in_channels=3)
    assert [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)] == [64, 3]
    assert build_model(**model.spec).spec == model.spec  # type: ignore[arg-type]
    model = build_model(f"tests.models.samples:{name}", num_classes=3, in_channels=3, width=32.0)  # as of --width 32
    assert [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)] == [32, 3]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, "unknown model 'resnet81'; did you mean 'resnet18'"),
        ("resnet18", {"block": [1]}, "model 'resnet18' has no option 'block'; did you mean 'blocks'"),
        ("resnet18", {"num_classes": 0}, "num_classes = 0"),
        ("resnet18", {"width": 0.0}, "width = 0.0"),
        ("resnet18", {"width": -1.0}, "width = -1.0"),
        ("wideresnet", {"depth": 30}, r"depth = 30 .* 6n \+ 4"),
        ("resnet18", {"in_channels": -1}, "in_channels = -1"),
        ("resnet18", {"mean": [0.5]}, "mean and std must be given together"),
        ("resnet18", {"mean": [0.5, 0.5], "std": [0.2, 0.2]}, "mean has 2 channels and the images 3"),
        ("resnet18", {"mean": [0.5], "std": [0.0]}, "std = .*: must be positive"),
        (OWN, {"width": 0.5}, "has no parameter width"),
        (
            "tests.models.samples:sized",
            {},
            r"a required argument: 'width'; .* \(--width VALUE\)",
        ),
        (f"{OWN}.grown", {}, "Own.grown' is a method of an instance; give a class method or a function"),
        ("tests.models.samples:Owm", {}, "'Owm'; did you mean 'Own'"),
        ("tests.models.samples:not_a_module", {}, "not a torch.nn.Module"),
    ],
)
def test_mistakes(name: str, options: dict[str, object], message: str) -> None:
    settings: dict[str, object] = {"num_classes": 10, "in_channels": 3, **options}
    check_refused(message, build_model, name, **settings)
