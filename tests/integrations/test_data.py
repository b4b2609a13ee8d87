"""Data sets of other libraries in `audit`, `load_data` and `stream_data`."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader

import classwise as cw
from classwise.data import Stream, as_data
from tests.data.writers import write_cifar10
from tests.integrations.torchvision_operators import declare_operators

Compatibility = Callable[[str, str, str], None]
NAMES = ("cat", "dog", "ship")
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
Y = [0, 1, 2, 1, 1, 0]
X = torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy())


class Fixed(nn.Module):
    """Logits of three classes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) * 5


def check(data: Any, names: tuple[str, ...] | None = NAMES, *, rows: slice = slice(None)) -> None:
    """Check that the images, the labels and the class names are those above, and that an audit accepts the data."""
    source = as_data(data)
    batches = list(source.batches(4))
    assert torch.equal(torch.cat([batch.x for batch in batches]), X[rows].float() / 255)
    assert torch.cat([batch.y for batch in batches]).tolist() == Y[rows]
    assert source.class_names == names
    outcomes = cw.audit(Fixed(), data, "Linf:0.05", "fgsm", guards="off").outcomes
    assert outcomes.labels.tolist() == Y[rows]
    assert outcomes.class_names == (names or ("0", "1", "2"))


@pytest.fixture
def hugging_face() -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed; run make test-integrations")
    logging.getLogger("datasets").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))})
    rows = {"img": [Image.fromarray(image) for image in PIXELS], "label": Y}
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.mark.parametrize("kind", ["rows", "torch", "numpy", "iterable", "loader", "subset", "undecoded"])
def test_rows_of_datasets(kind: str, hugging_face: Any, compatibility: Compatibility) -> None:
    import datasets

    sources: dict[str, Callable[[], Any]] = {
        "rows": lambda: hugging_face,
        "torch": lambda: hugging_face.with_format("torch"),
        "numpy": lambda: hugging_face.with_format("numpy"),
        "iterable": hugging_face.to_iterable_dataset,
        "loader": lambda: DataLoader(hugging_face.with_format("torch"), batch_size=4),
        "subset": lambda: torch.utils.data.Subset(hugging_face, range(6)),
        "undecoded": lambda: hugging_face.cast_column("img", datasets.Image(decode=False)),
    }
    check(sources[kind]())
    compatibility("data", "`Dataset`, `IterableDataset`, and loaders of them", "datasets")


def test_a_dict_of_splits_and_its_folder(hugging_face: Any, tmp_path: Path, compatibility: Compatibility) -> None:
    import datasets

    splits = datasets.DatasetDict(train=hugging_face, test=hugging_face.select([4, 5]))
    splits.save_to_disk(tmp_path / "pets")
    hugging_face.shuffle(seed=0).select([0, 1]).save_to_disk(tmp_path / "chosen", num_shards=2)
    for source in (splits, tmp_path / "pets", datasets.load_from_disk(tmp_path / "pets")):
        check(cw.load_data(source, split="train"))
        images = cw.load_data(source)
        assert (images.split, images.y.tolist(), images.class_names) == ("test", Y[4:], NAMES)
        assert torch.equal(images.x, X[4:])
    chosen = hugging_face.shuffle(seed=0).select([0, 1])
    assert torch.equal(cw.load_data(tmp_path / "chosen").x, cw.load_data(chosen).x)
    compatibility("data", "`DatasetDict`, folders of `save_to_disk`", "datasets")


def test_unusual_columns_of_datasets(hugging_face: Any, tmp_path: Path, compatibility: Compatibility) -> None:
    import datasets

    table = hugging_face.rename_columns({"img": "photo", "label": "species"})
    check(cw.load_data(table))  # the only Pillow image, the only ClassLabel
    table = table.add_column("from one", [label + 1 for label in Y]).add_column("text", [NAMES[label] for label in Y])
    one = cw.load_data(table, image="photo", label="from one", classes=range(1, 4))
    assert (one.y.tolist(), one.class_names) == (Y, ("1", "2", "3"))
    table.save_to_disk(tmp_path / "text")
    for source in (table, tmp_path / "text"):
        assert cw.load_data(source, label="text", image="photo").class_names == NAMES
    arrays = datasets.Features({"image": datasets.Array3D((8, 8, 3), "uint8"), "label": datasets.Value("int64")})
    check(datasets.Dataset.from_dict({"image": PIXELS, "label": Y}, features=arrays), names=None)
    several = hugging_face.remove_columns("label").add_column("label", [[0, 1]] * 6)
    with pytest.raises(cw.ClasswiseError, match="each image must have one class; multi-label data are not supported"):
        cw.load_data(several)
    compatibility("data", "columns by name, labels of text", "datasets")


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)  # of its files
def test_shards_and_pipelines_of_webdataset(tmp_path: Path, compatibility: Compatibility) -> None:
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed; run make test-integrations")
    (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    with wds.ShardWriter(str(tmp_path / "test-%04d.tar"), maxcount=4, verbose=0) as writer:
        for row, label in enumerate(Y):
            writer.write({"__key__": f"{row:04}", "png": PIXELS[row], "cls": label})
    check(cw.load_data(tmp_path))
    check(cw.stream_data(tmp_path))
    shards = [str(path) for path in sorted(tmp_path.glob("*.tar"))]
    for pipeline in (
        wds.WebDataset(shards, shardshuffle=False),
        wds.WebDataset(shards, shardshuffle=False).decode("pil"),
        wds.WebDataset(shards, shardshuffle=False).decode("pil").to_tuple("png", "cls"),
    ):
        check(pipeline, names=None)
    compatibility("data", "shards of `ShardWriter`, pipelines", "webdataset")


def test_data_sets_of_torchvision(tmp_path: Path, compatibility: Compatibility) -> None:
    declare_operators()
    vision = pytest.importorskip("torchvision", reason="torchvision is not installed; run make test-integrations")
    for row, label in enumerate(sorted(Y)):
        file = tmp_path / "photos" / NAMES[label] / f"{row}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS[row]).save(file)
    folder = vision.datasets.ImageFolder(tmp_path / "photos")
    ours = cw.load_data(tmp_path / "photos")
    to_tensor = vision.datasets.ImageFolder(tmp_path / "photos", transform=vision.transforms.ToTensor())
    for data in (folder, to_tensor, DataLoader(to_tensor, batch_size=4), torch.utils.data.Subset(folder, range(6))):
        loaded = cw.load_data(data)
        assert loaded.class_names == ours.class_names == NAMES
        assert torch.equal(loaded.pixels(), ours.pixels())
        assert torch.equal(loaded.y, ours.y)
    written = write_cifar10(tmp_path / "cifar-10-batches-py")
    cifar = vision.datasets.CIFAR10.__new__(vision.datasets.CIFAR10)  # its constructor checks the official hashes
    batch = pickle.loads((written / "test_batch").read_bytes(), encoding="bytes")
    cifar.data, cifar.targets = batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), batch[b"labels"]
    cifar.classes, cifar.transform, cifar.target_transform = [f"c{label}" for label in range(10)], None, None
    loaded, known = cw.load_data(cifar), cw.load_data("cifar10", root=tmp_path)
    assert torch.equal(loaded.x, known.x)
    assert torch.equal(loaded.y, known.y)
    assert loaded.class_names[:2] == ("c0", "c1")
    fake = vision.datasets.FakeData(size=5, image_size=(3, 8, 8), num_classes=3)
    assert isinstance(as_data(fake), Stream)
    assert len(cw.load_data(fake)) == 5
    compatibility("data", "`ImageFolder`, `CIFAR10`, `FakeData`, with and without transforms", "torchvision")
