"""Model references: where each leads, and one line for each that leads nowhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from classwise.core.errors import ClasswiseError
from classwise.core.settings.registry import load_object
from classwise.models import build_model, load_model
from classwise.models.loading.references import is_stored, parse_reference
from classwise.models.loading.sources import SOURCES
from classwise.models.loading.sources.base import ModelSource

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
    with pytest.raises(ClasswiseError, match=rf'pip install "classwise\[{prefix}\]"'):
        load_model(f"{prefix}:some/thing")


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
    with pytest.raises(ClasswiseError, match=f"timm is installed and cannot be imported {message}$"):
        load_model("timm:resnet18")


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
    with pytest.raises(ClasswiseError, match=message):
        build_model(f"mynet:{name}", num_classes=7, in_channels=3, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("mynet")
def test_an_option_that_the_inner_function_refuses_is_an_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        build_model("mynet:forwarding", num_classes=7, in_channels=3, colour=1)


def test_objects_by_a_dotted_name() -> None:
    assert load_object("collections:OrderedDict.fromkeys")(["a"]) == {"a": None}
    with pytest.raises(ClasswiseError, match="known: ") as caught:
        load_object("textwrap:zzz")
    assert str(caught.value).endswith("known: TextWrapper, dedent, fill, indent, shorten, wrap"), "not its import re"


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
    with pytest.raises(ClasswiseError, match=message):
        load_model(reference)


def test_a_python_file_elsewhere_is_named_with_its_folder(
    mynet: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(ClasswiseError, match=rf"such as mynet:Net, from the folder {mynet.parent}"):
        load_model(str(mynet))
    (mynet.parent / "nets").mkdir()
    (mynet.parent / "nets" / "mine.py").write_text(NET)
    monkeypatch.chdir(mynet.parent)
    with pytest.raises(ClasswiseError, match=r"such as nets\.mine:Net \("):
        load_model("nets/mine.py", weights="w.pt")
