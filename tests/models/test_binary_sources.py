"""Binary models with one output from transformers, timm, ONNX files and functions of one's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from classwise.core.errors import ClasswiseError
from classwise.data import Images
from classwise.models import load_model
from tests.models import test_sources as sources

install = sources.install
DATA = Images(torch.rand(4, 3, 8, 8), torch.arange(4) % 2)


def test_heads_of_transformers_and_timm(tmp_path: Path, install: sources.Install) -> None:
    calls: list[dict[str, Any]] = []
    install("timm", **sources.timm(calls))
    model = load_model("timm:net", pretrained=False, data=DATA, outputs="binary-logits")
    assert calls[-1]["num_classes"] == 1
    assert model(DATA.x).shape == (4, 2)
    install("transformers", **sources.transformers([]))
    model = load_model(f"hf:{tmp_path}", pretrained=False, data=DATA, outputs="binary-logits")
    assert model(DATA.x).shape == (4, 2)
    assert not model(DATA.x)[:, 0].any()
    install("transformers", **sources.transformers([]))
    model = load_model(f"hf:{tmp_path}", data=DATA, outputs="binary")  # trained weights keep their three classes
    with pytest.raises(ClasswiseError, match=r"outputs='binary': .* shape \(4, 3\) for 4 images"):
        model(DATA.x)


@pytest.mark.parametrize("shape", [["n"], ["n", 1]])
def test_onnx_files(
    shape: list[Any], tmp_path: Path, install: sources.Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Binary(sources.Session):
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
    torch.testing.assert_close(model(DATA.x)[:, 1], DATA.x[:, 0].sum((1, 2)))


@pytest.mark.filterwarnings("ignore")  # of TorchScript itself
def test_scripted_modules() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 1), nn.Flatten(0)).eval()
    scripted = torch.jit.script(network)
    model = load_model(scripted, outputs="binary-logits")
    assert torch.equal(model(DATA.x)[:, 1], network(DATA.x))
