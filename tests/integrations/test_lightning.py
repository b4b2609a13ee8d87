"""The loss of a recipe in Lightning's loop, which validates without gradients, or in inference mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import classwise as cw
from classwise.attacks.gradient.ascent import PGD
from classwise.training.class_wise_loss import ClassWiseLoss

STEPS = 4


def parts() -> tuple[Any, ClassWiseLoss, cw.Images, TensorDataset]:
    """A network, the loss of CFA, validation images, and training images with their indices."""
    train, valid = cw.load_data("digits", split="train", subset=128), cw.load_data("digits", subset=60)
    fields = {"epochs": 2, "attack.steps": 2, "validation_attack.steps": 2, "averaging.start_fraction": 0.0}
    recipe = cw.Recipe.read("cfa-at", fields | {"averaging.gate": "relative", "threat": "Linf:0.1"})
    loss = ClassWiseLoss(recipe, train.class_counts(), steps_per_epoch=STEPS)
    torch.manual_seed(0)
    model = cw.load_model("small-cnn", num_classes=10, in_channels=1, width=0.1)
    return model, loss, valid, TensorDataset(train.pixels(), train.y, train.index)


@pytest.mark.filterwarnings("ignore")  # of Lightning, about loggers, workers and short epochs
def test_lightning_gives_the_bits_of_a_plain_loop(
    tmp_path: Path, compatibility: Callable[[str, str, str], None]
) -> None:
    lightning: Any = pytest.importorskip(
        "pytorch_lightning", reason="pytorch-lightning is not installed; run make test-integrations"
    )
    model, loss, valid, data = parts()
    in_lightning, own = copy.deepcopy(model), copy.deepcopy(loss)

    class Robust(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss = in_lightning, own
            self.modes: list[tuple[bool, bool]] = []

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            x, y, index = batch
            value: Tensor = self.loss(self.model, x, y, index)
            return value

        def validation_step(self, batch: list[Tensor], _: int) -> None:
            self.modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
            robust = cw.attack(self.model, batch[0], batch[1], PGD(steps=1), threat="Linf:0.1")
            assert not torch.equal(robust, batch[0])

        def on_validation_epoch_end(self) -> None:
            self.modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
            self.loss.end_epoch(self.model, valid)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    module = Robust()
    trainer = lightning.Trainer(
        max_epochs=2,
        num_sanity_val_steps=0,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    few = DataLoader(TensorDataset(valid.pixels()[:32], valid.y[:32]), batch_size=32)
    trainer.fit(module, DataLoader(data, batch_size=32), few)
    assert module.modes == [(False, False)] * 4

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for x, y, index in DataLoader(data, batch_size=32):
            optimizer.zero_grad()
            loss(model, x, y, index).backward()
            optimizer.step()
        loss.end_epoch(model, valid)
    expected = model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in in_lightning.state_dict().items())
    assert all(torch.equal(value, loss.average[name]) for name, value in own.average.items())
    assert loss.average.keys() == own.average.keys() != set()

    saved = torch.load(next(tmp_path.rglob("*.ckpt")), weights_only=True)["state_dict"]
    restored = Robust()
    restored.load_state_dict(saved)
    assert restored.loss.epoch == 2
    assert all(torch.equal(value, loss.average[name]) for name, value in restored.loss.average.items())
    trainer.validate(restored, few, verbose=False)
    assert restored.modes == [(False, True)] * 2
    assert restored.loss.epoch == 3
    compatibility("training", "`ClassWiseLoss` in a `LightningModule`, attacks in validation", "pytorch-lightning")
