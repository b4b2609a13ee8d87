"""Checkpoint files of every form: read as data, or refused in one line."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from classwise.core.errors import ClasswiseError
from classwise.models import read_state
from classwise.models.loading.checkpoints import STATE_DICT_KEYS

STATE = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
OTHER = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
RUNS = r"would execute code \((posix|nt|os)\.mkdir\)"


class Evil:
    """Runs a command where a reader trusts it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def saved(folder: Path, value: object) -> Path:
    torch.save(value, folder / "weights.pt")
    return folder / "weights.pt"


def same(found: object) -> bool:
    assert isinstance(found, dict)
    return found.keys() == STATE.keys() and all(torch.equal(found[key], STATE[key]) for key in STATE)


@pytest.mark.parametrize("key", STATE_DICT_KEYS)
def test_every_state_dict_key(tmp_path: Path, key: str) -> None:
    found = read_state(saved(tmp_path, {key: STATE, "epoch": 3, "optimizer": {"state": {}, "lr": 0.1}, "acc": 0.5}))
    assert same(found.tensors)
    assert found.keys == (key,)
    assert repr(key) in found.describe()


@pytest.mark.parametrize("legacy", [False, True])
def test_a_bare_state_dict(tmp_path: Path, legacy: bool) -> None:
    torch.save(STATE, tmp_path / "w.pth", _use_new_zipfile_serialization=not legacy)
    found = read_state(tmp_path / "w.pth")
    assert same(found.tensors)
    assert found.keys == ()


def test_safetensors_whatever_the_name(tmp_path: Path) -> None:
    for name in ("w.safetensors", "w.pt"):
        save_file(STATE, tmp_path / name, {"classwise": "[not ours", "format": "pt"})
        found = read_state(tmp_path / name)
        assert same(found.tensors)
        assert found.metadata["format"] == "pt"


def test_nested_dictionaries(tmp_path: Path) -> None:
    found = read_state(saved(tmp_path, {"model": {"state_dict": STATE}, "epoch": 1}))
    assert same(found.tensors)
    assert found.keys == ("model", "state_dict")


@pytest.mark.parametrize(
    ("preferred", "other"),
    [("state_dict_ema", "state_dict"), ("ema", "model"), ("model_ema", "model"), ("last", "best")],
)
def test_the_preferred_of_two_is_taken_and_said(tmp_path: Path, preferred: str, other: str) -> None:
    path = saved(tmp_path, {other: OTHER, preferred: STATE})
    found = read_state(path)
    assert same(found.tensors)
    assert found.other_keys == (other,)
    assert repr(other) in found.describe()
    assert ("averaged" in found.describe()) == ("ema" in preferred)
    assert not same(read_state(path, state_dict_key=other).tensors)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"epoch": 3, "lr": 0.1}, "no state dict; it contains 'epoch', 'lr'"),
        ({}, "no state dict; it contains nothing"),
        ([1, 2], "no state dict; it contains a list"),
        ({"model": {}, "note": "x"}, "no state dict; it contains 'model', 'note'"),
    ],
)
def test_nothing_to_read(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(ClasswiseError, match=message):
        read_state(saved(tmp_path, value))


def test_a_state_dict_key_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClasswiseError, match="no state dict 'ema'; it contains 'state_dict'"):
        read_state(saved(tmp_path, {"state_dict": STATE}), state_dict_key="ema")


@pytest.mark.parametrize(("protocol", "refusal"), [(None, RUNS), (4, "not written by torch.save")])
def test_a_pickle_that_would_execute_code_is_refused_with_its_reason(
    tmp_path: Path, protocol: int | None, refusal: str
) -> None:
    value = {"state_dict": STATE, "extra": Evil(tmp_path / "ran")}
    path = tmp_path / "weights.pt"
    if protocol is None:
        torch.save(value, path)
    else:
        path.write_bytes(pickle.dumps(value, protocol))
    with pytest.raises(ClasswiseError, match=refusal):
        read_state(path)
    assert not (tmp_path / "ran").exists()


def test_a_whole_pickled_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ClasswiseError, match=r"would execute code \(torch\.nn.*Linear\).* save only model.state_dict\(\)"
    ):
        read_state(saved(tmp_path, nn.Linear(2, 2)))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_cut_short(tmp_path: Path, legacy: bool, share: float) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"state_dict": {"weight": torch.rand(50, 50)}}, path, _use_new_zipfile_serialization=not legacy)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ClasswiseError, match=r"weights.pt is damaged") as error:
        read_state(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.9])
def test_a_safetensors_file_cut_short(tmp_path: Path, share: float) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"weight": torch.rand(50, 50)}, path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ClasswiseError, match=r"w.safetensors is damaged or truncated"):
        read_state(path)


@pytest.mark.parametrize("content", [b"hello", b"\x80\x04.", b"\x00" * 100])
def test_something_else_altogether(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(ClasswiseError, match=r"w.pt (is damaged|has no state dict)"):
        read_state(tmp_path / "w.pt")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClasswiseError, match=r"cannot read the weights .*none.pt: No such file"):
        read_state(tmp_path / "none.pt")


def test_parameters_are_tensors_too(tmp_path: Path) -> None:
    state: dict[str, Tensor] = dict(nn.Linear(2, 2).named_parameters())
    assert read_state(saved(tmp_path, state)).tensors.keys() == {"weight", "bias"}
