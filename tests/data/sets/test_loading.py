from __future__ import annotations

import hashlib
import io
import logging
import sys
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pooch
import pytest

from classwise.core.errors import ClasswiseError
from classwise.data import DATA, FORMATS, Images, load_data, named_set
from classwise.data.sets.base import DataSet, Remote
from classwise.data.sets.loading import data_directories
from tests.data.refusals import refused
from tests.data.writers import write_cifar10, write_mnist


def test_nothing_heavy_is_imported_with_the_package() -> None:
    import subprocess

    code = "import sys, classwise.data as d; d.DATA, d.FORMATS; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"torch", "numpy", "pandas", "pyarrow", "PIL", "scipy", "sklearn", "pooch"})


def test_public_names_exist() -> None:
    import classwise.data

    assert all(hasattr(classwise.data, name) for name in classwise.data.__all__)
    assert set(classwise.data.__all__) == set(dir(classwise.data))
    assert not hasattr(classwise.data, "nothing")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_choosy(name: str, tmp_path: Path) -> None:
    form = FORMATS.load(name)()
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    for path in (tmp_path, tmp_path / "text.txt", tmp_path / "empty", tmp_path / "missing"):
        assert not form.accepts(path)


def test_order_of_places(only_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLASSWISE_DATA", str(only_here / "env"))
    places = [only_here / "root", only_here / "env", Path("data"), only_here / "cache", only_here / "system"]
    assert data_directories(only_here / "root") == places
    for value, place in reversed(list(enumerate(places))):
        write_mnist(place / "mnist", value)
        assert load_data("mnist", root=only_here / "root").x.eq(value).all()


def test_place_is_logged(only_here: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_mnist(only_here / "data" / "mnist")
    with caplog.at_level(logging.INFO):
        load_data("mnist")
    assert "mnist (test) read from data" in caplog.text


def test_unknown_names_and_paths(only_here: Path) -> None:
    for source, message in (
        ("cifar01", "unknown data set 'cifar01'; did you mean 'cifar10'"),
        ("nothing/here", "no file or folder nothing/here"),
        ("nothing.npz", "no file or folder nothing.npz"),
        ("no_such_module:Set", "no module 'no_such_module'"),
    ):
        refused(message, source)
    (only_here / "text.txt").write_text("hello")
    refused(r"text\.txt: unknown format; supported formats: parquet", "text.txt")
    refused("unknown data format 'npy'; did you mean 'npz'", "text.txt", data_format="npy")


def test_named_set_needs_more_than_the_name(only_here: Path) -> None:
    assert named_set(load_data("digits")) is DATA.load("digits")
    np.savez(only_here / "digits.npz", x=np.zeros((10, 1, 8, 8), np.uint8), y=np.arange(10))
    assert named_set(load_data("digits.npz")) is DATA.load("digits")
    np.savez(only_here / "digits.npz", x=np.zeros((10, 3, 8, 8), np.uint8), y=np.arange(10))
    assert named_set(load_data("digits.npz")) is None
    assert named_set(Images(np.zeros((2, 1, 8, 8), np.uint8), np.array([0, 1]), name="digits")) is None
    assert named_set(Images(np.zeros((2, 1, 8, 8), np.uint8), np.array([0, 1]))) is None


def test_subset_by_seed(only_here: Path) -> None:
    np.savez(only_here / "set.npz", x=np.zeros((40, 1, 2, 2), np.uint8), y=np.arange(40) % 4)
    first, again = (load_data("set.npz", subset=8, seed=5) for _ in range(2))
    assert first.class_counts().tolist() == [2] * 4
    assert first.index.tolist() == again.index.tolist()
    assert first.index.tolist() != load_data("set.npz", subset=8, seed=6).index.tolist()
    refused("subset of 41", "set.npz", subset=41)


def test_not_there_and_no_network(only_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> str:
        raise ConnectionError("no network")

    monkeypatch.setattr(pooch, "retrieve", offline)
    with pytest.raises(ClasswiseError) as caught:
        load_data("cifar10", root=only_here / "mine")
    line = str(caught.value)
    assert "\n" not in line
    for part in (
        "cifar10 (test) is not in",
        "mine",
        "cache",
        "system",
        "cifar-10-python.tar.gz",
        "ConnectionError",
        "CLASSWISE_DATA",
    ):
        assert part in line
    refused("copy its files into one of them", "cifar10", download=False)


class Toy(DataSet):
    """A set of a user's own, packed like CIFAR-10."""

    name = "toy"
    class_names = tuple("0123456789")
    shape = (3, 32, 32)
    mean = std = (0.5, 0.5, 0.5)
    threat = "Linf:8/255"
    remote: ClassVar[tuple[Remote, ...]] = ()

    def read(self, root: Path, split: str) -> Any:
        folder = root / "cifar-10-batches-py"
        return load_data(folder, split=split) if folder.is_dir() else None


@pytest.fixture
def on_the_network(only_here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tar file in place of a download; `pooch` checks its hash as it would check one from the network."""
    write_cifar10(only_here / "source" / "cifar-10-batches-py")
    archive = only_here / "source" / "toy.tar.gz"
    with tarfile.open(archive, "w:gz") as content:
        content.add(only_here / "source" / "cifar-10-batches-py", "cifar-10-batches-py")

    class Copy:
        def __init__(self, **_: Any) -> None: ...

        def __call__(self, url: str, output: Any, _: Any) -> None:
            Path(output).write_bytes((only_here / "source" / url.rsplit("/", 1)[1]).read_bytes())

    monkeypatch.setattr(pooch, "HTTPDownloader", Copy)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(Toy, "remote", (Remote("https://example.org/toy.tar.gz", f"sha256:{digest}"),))
    return only_here


TOY = f"{__name__}:Toy"


def test_fetched_unpacked_and_said(on_the_network: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_data(TOY).y.tolist() == [3, 1, 2, 0]
    assert "downloading https://example.org/toy.tar.gz" in caplog.text
    names = {item.name for item in (on_the_network / "cache").iterdir()}
    assert names == {"toy.tar.gz", "cifar-10-batches-py"}, "nothing half-unpacked is left"
    caplog.clear()
    load_data(TOY)
    assert "fetching" not in caplog.text


def test_wrong_hash(on_the_network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "remote", (Remote("https://example.org/toy.tar.gz", "sha256:" + "0" * 64),))
    refused(r"could not be downloaded \(hash mismatch\)", TOY, root=on_the_network / "mine")
    assert not (on_the_network / "mine" / "cifar-10-batches-py").exists()


def test_an_archive_cannot_write_outside(on_the_network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = on_the_network / "source" / "toy.tar.gz"
    with tarfile.open(archive, "w:gz") as content:
        member = tarfile.TarInfo("../../outside")
        member.size = 1
        content.addfile(member, io.BytesIO(b"!"))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(Toy, "remote", (Remote("https://example.org/toy.tar.gz", f"sha256:{digest}"),))
    with pytest.raises((ClasswiseError, tarfile.TarError)):
        load_data(TOY)
    assert not list(on_the_network.rglob("outside"))


def test_a_set_of_ones_own_needs_no_registration() -> None:
    assert TOY not in DATA
