"""The package maite: its protocols, its workflow, its types, and a data set of maite-datasets."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import classwise as cw
from classwise.maite import AttackAugmentation, ClassAccuracy, to_dataset, to_model
from tests.documents import DOCS, blocks

maite = pytest.importorskip("maite", reason="maite is not installed; run make test-integrations")

Compatibility = Callable[[str, str, str], None]
EXAMPLE = next(block.text for block in blocks(DOCS / "how-to" / "maite.md") if block.file == "evaluate_digits.py")
SETTINGS = """
[mypy]
strict = true
follow_imports = silent
[mypy-classwise,classwise.*,torch.*,pydantic.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-classwise.maite,classwise.core.settings.arguments]
follow_imports = silent
"""


def test_objects_have_the_protocols(compatibility: Compatibility) -> None:
    from maite.protocols import image_classification as ic

    images = cw.load_data("digits", subset=20)
    module = cw.load_model("small-cnn", data=images, width=0.1)
    made = {
        "Dataset": to_dataset(images),
        "FieldwiseDataset": to_dataset(images),
        "Model": to_model(module),
        "Augmentation": AttackAugmentation(module, "fgsm", "Linf:0.1"),
        "Metric": ClassAccuracy(),
    }
    for name, value in made.items():
        assert isinstance(value, getattr(ic, name)), name
    assert not isinstance(made["Metric"], ic.Dataset)
    compatibility("maite", "the protocols of data sets, models, augmentations and metrics", "maite")


def test_the_workflow_of_the_guide_counts_what_an_audit_counts(tmp_path: Path, compatibility: Compatibility) -> None:
    (tmp_path / "evaluate_digits.py").write_text(EXAMPLE, encoding="utf-8")
    space = runpy.run_path(str(tmp_path / "evaluate_digits.py"))
    attacks = ["pgd:steps=5", "fgsm"]
    audit = cw.audit(space["module"], space["images"], "Linf:0.1", attacks, guards="off", batch_size=64)
    assert space["results"]["class_accuracy"] == audit.by_class["all"].to_dict()
    assert space["results"]["lowest_accuracy"] == audit.worst_class("all").accuracy
    again = cw.audit(space["model"], space["dataset"], "Linf:0.1", "square:steps=2", guards="off")
    assert again.outcomes.correct("clean").tolist() == audit.outcomes.correct("clean").tolist()
    compatibility("maite", "`evaluate` with an attack, on digits", "maite")


@pytest.mark.slow
def test_the_types_of_the_guide(tmp_path: Path, compatibility: Compatibility) -> None:
    """Each object of the example has the type of its protocol, for mypy in strict mode; a wrong one has not."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    file, settings = tmp_path / "example.py", tmp_path / "mypy.ini"
    file.write_text(f"{EXAMPLE}wrong: ic.Model = to_dataset(images)\n", encoding="utf-8")
    settings.write_text(SETTINGS, encoding="utf-8")
    (tmp_path / "types").mkdir()
    (tmp_path / "types" / "maite").symlink_to(Path(maite.__file__).parent)
    sources = os.pathsep.join([str(Path(cw.__file__).parents[1]), str(tmp_path / "types")])
    command = [
        sys.executable,
        "-m",
        "mypy",
        f"--config-file={settings}",
        f"--cache-dir={tmp_path / 'cache'}",
        str(file),
    ]
    done = subprocess.run(
        command, env={**os.environ, "MYPYPATH": sources}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    last = EXAMPLE.count("\n") + 1
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.partition(": error: ")[0] for line in errors] == [f"example.py:{last}"], done.stdout + done.stderr
    compatibility("maite", "types of the example of the guide, by mypy in strict mode", "maite")


class Raw:
    """A model of pixels up to 255 in the protocol of MAITE."""

    def __init__(self, module: Any) -> None:
        self.module, self.metadata = module, {"id": "raw"}

    def __call__(self, batch: Any) -> Any:
        with torch.no_grad():
            return list(self.module(torch.from_numpy(np.stack(batch) / np.float32(255))).numpy())


def test_a_model_of_pixels_up_to_255_from_a_function(compatibility: Compatibility) -> None:
    """The workflow of MAITE with images of bytes, the model of a function, and the scale of the model."""
    from maite.protocols import image_classification as ic
    from maite.tasks import evaluate

    images = cw.load_data("digits", split="test", subset=60)
    means = torch.stack([images.pixels()[images.y == digit].mean(0).flatten() for digit in range(10)])
    linear = torch.nn.Linear(64, 10)
    linear.weight.data, linear.bias.data = 2 * means, -means.square().sum(1)
    module = torch.nn.Sequential(torch.nn.Flatten(), linear)

    def build() -> ic.Model:
        return Raw(module)

    with pytest.raises(cw.ClasswiseError, match="a normalisation of pixels up to 255, and images are in"):
        cw.load_model(build, mean=0, std=255)
    model = cw.load_model(build, mean=0, std=1 / 255)
    audit = cw.audit(model, images, "Linf:0.1", "square:steps=5", guards="off", batch_size=64)
    wanted = cw.audit(module, images, "Linf:0.1", "square:steps=5", guards="off", batch_size=64)
    assert audit.by_class.to_dict() == wanted.by_class.to_dict()
    report = cw.audit(build, images, "Linf:0.1", "square:steps=300")
    assert any("load_model(..., mean=[0], std=[1 / 255])" in warning.sentence for warning in report.warnings)

    dataset = to_dataset(images)
    raw = [(dataset[row][0] * 255).round().astype(np.uint8) for row in range(len(dataset))]
    parts: Any = raw, [dataset[row][1] for row in range(60)], [dataset[row][2] for row in range(60)]
    inputs, *_ = AttackAugmentation(lambda: module, "square:steps=5", "Linf:0.1")(parts)
    assert float(np.abs(np.stack(inputs) - np.stack(raw) / 255).max()) < 0.1001
    results, *_ = evaluate(
        model=to_model(model),
        dataset=dataset,
        augmentation=AttackAugmentation(lambda: model, "square:steps=5", "Linf:0.1"),
        metric=ClassAccuracy(images.class_names),
        batch_size=60,
    )
    assert results["class_accuracy"] == wanted.by_class["all"].to_dict()
    compatibility("maite", "a model of pixels up to 255, returned by a function", "maite")


def test_a_data_set_of_maite_datasets(tmp_path: Path, compatibility: Compatibility) -> None:
    sets = pytest.importorskip("maite_datasets.image_classification", reason="maite-datasets is not installed")
    folder = tmp_path / "ships" / "shipsnet"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 80, 80, 3), dtype=np.uint8)
    for row, image in enumerate(pixels):
        label, scene = row // 6, ("harbour", "sea")[row % 2]
        Image.fromarray(image).save(folder / f"{label}__{scene}__{row}.5_-{row}.25.png")
    ships: Any = sets.Ships(tmp_path)
    images = cw.load_data(ships)
    assert (images.name, images.split, images.class_names) == ("Ships_base", "base", ("no ship", "ship"))
    assert images.index.tolist() == list(range(12))
    assert images.class_counts().tolist() == [6, 6]
    order = [int(np.where((pixels == image.transpose(1, 2, 0)).all((1, 2, 3)))[0][0]) for image in images.x.numpy()]
    assert sorted(order) == list(range(12))
    column = images.columns["scene_id"]
    assert [column.names[int(number)] for number in column.ids] == [("harbour", "sea")[row % 2] for row in order]
    module = cw.load_model("small-cnn", data=images, width=0.1)
    lazy: Any = sets.Ships(tmp_path, lazy=True)
    audit = cw.audit(module, lazy, "Linf:1/255", "fgsm", group="scene_id", guards="off")
    assert audit.by_class["n"].to_dict() == {"harbour": 6, "sea": 6}
    compatibility("maite", "`Ships`, on generated files", "maite-datasets")
