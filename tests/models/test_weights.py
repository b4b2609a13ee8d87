"""Weights written by us: whole, the same bytes for the same weights, and read by others."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.models import fingerprint, load_model, save_weights
from classwise.models.weights import METADATA_KEY
from tests.models.samples import tiny
from tests.refusals import refused


def test_a_file_names_its_model_and_gives_the_same_logits(tmp_path: Path) -> None:
    model = tiny(mean=[0.4, 0.5, 0.6], std=[0.2, 0.25, 0.3], final_norm=False)
    save_weights(tmp_path / "a.safetensors", model, {"epoch": 3, "note": "text"})
    again = load_model(tmp_path / "a.safetensors")
    x = torch.rand(4, 3, 8, 8)
    assert torch.equal(again(x), model(x))
    assert fingerprint(again) == fingerprint(model)
    assert again.spec == model.spec
    assert not any(module.training for module in again.modules())


def test_the_metadata_is_text_that_others_can_read(tmp_path: Path) -> None:
    save_weights(tmp_path / "a.safetensors", tiny(), {"epoch": 3, "note": "text"})
    with safe_open(tmp_path / "a.safetensors", framework="pt") as opened:
        about = json.loads(opened.metadata()[METADATA_KEY])
    assert about["note"] == "text"
    assert json.loads(about["epoch"]) == 3
    assert json.loads(about["model"])["name"] == "preactresnet18"


def test_equal_weights_leave_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_weights(tmp_path / name, tiny(), {"one": 1, "two": 2, "three": 3})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_half_the_bytes_in_half_the_precision(tmp_path: Path) -> None:
    model = tiny()
    save_weights(tmp_path / "full", model)
    save_weights(tmp_path / "half", model, dtype=torch.float16)
    assert (tmp_path / "half").stat().st_size < 0.7 * (tmp_path / "full").stat().st_size
    again = load_model(tmp_path / "half")
    for (key, ours), theirs in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        expected = ours.half().float() if ours.is_floating_point() else ours
        assert theirs.dtype == ours.dtype
        assert torch.equal(theirs, expected), key


def test_a_number_too_large_for_the_precision_is_not_made_infinite(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 1e5)
    assert "weight: value 1e+05 is out of the range of torch.float16" in refused(
        save_weights, tmp_path / "a.safetensors", model, dtype=torch.float16
    )
    assert list(tmp_path.iterdir()) == []


def test_shared_and_permuted_memory_can_be_saved(tmp_path: Path) -> None:
    model = tiny().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    tied = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    tied[1].weight = tied[0].weight
    save_weights(tmp_path / "permuted", model)
    save_weights(tmp_path / "tied", tied)
    assert fingerprint(load_model(tmp_path / "permuted")) == fingerprint(model)


def test_a_fingerprint_is_of_names_values_types_and_buffers() -> None:
    model = tiny()
    first = fingerprint(model)
    assert fingerprint(tiny().train().to(memory_format=torch.channels_last)) == first  # type: ignore[call-overload]
    assert fingerprint(tiny().double()) != first
    model.get_buffer("bn.running_mean")[0] += 1e-3
    assert fingerprint(model) != first
    assert fingerprint(nn.Sequential(nn.ReLU(), tiny())) != first


def test_a_newer_file_is_refused_by_its_version(tmp_path: Path) -> None:
    save_weights(tmp_path / "a.safetensors", tiny(), {"schema_version": SCHEMA_VERSIONS["weights"] + 1})
    assert f"schema_version {SCHEMA_VERSIONS['weights'] + 1} is newer" in refused(
        load_model, tmp_path / "a.safetensors"
    )
