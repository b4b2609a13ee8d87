"""AutoAttack with the interface of the original package: ``AutoAttack(model, ...).run_standard_evaluation(x, y)``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import cast

import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Finished, Job
from classwise.attacks.suites import members
from classwise.core.config import make
from classwise.core.errors import ClasswiseError
from classwise.core.precision import EXACT, Precision
from classwise.core.threat import Norm, Threat
from classwise.models.logits import as_logits


class AutoAttack:
    """AutoAttack (Croce and Hein, ICML 2020) with the constructor and methods of the original package.

    `classwise.audit` with ``attacks="autoattack"`` also reports per-class accuracy, intervals, guards and a row per
    image.

    Args:
        model: a module or function that maps images (N, C, H, W) in [0, 1] to logits (N, classes), or to an output with
            logits. It runs in evaluation mode, and its modes are restored afterwards.
        norm: ``"Linf"``, ``"L2"`` or ``"L1"``.
        eps: the radius.
        version: ``"standard"``, ``"plus"`` or ``"rand"``.
        seed: seed of all random numbers; the global generators are not used.
        precision: how gradients are computed; success is always decided in float32.

    Raises:
        ClasswiseError: for an unknown norm or version, or a negative radius.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[Tensor], object],
        norm: Norm = "Linf",
        eps: float = 8 / 255,
        version: str = "standard",
        seed: int = 0,
        precision: Precision = EXACT,
    ) -> None:
        self.model = as_logits(model)
        self.threat = Threat(norm, eps)
        self.seed = seed
        self.precision = precision
        specs = members("autoattack", {"version": version}, norm)
        self.attacks: dict[str, Attack] = {spec.partition(":")[0]: make(ATTACKS, spec) for spec in specs}

    @torch.inference_mode(mode=False)
    def run_standard_evaluation(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> Tensor:
        """Run the attacks in cascade and return adversarial images.

        Robust images and images that are misclassified without an attack are returned unchanged.

        Args:
            x_orig: images in [0, 1], (N, C, H, W).
            y_orig: labels, int64 (N,).
            bs: batch size.

        Returns:
            Images in [0, 1], (N, C, H, W).
        """
        result = x_orig.clone()
        robust = self._correct(x_orig, y_orig, bs)
        for attack in self.attacks.values():
            for done in self._run(attack, x_orig, y_orig, robust, bs):
                rows = done.index[done.success].to(result.device)
                result[rows] = done.x[done.success].to(result)
                robust[rows.cpu()] = False
        return result

    @torch.inference_mode(mode=False)
    def run_standard_evaluation_individual(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> dict[str, Tensor]:
        """Run each attack on all images separately.

        Args:
            x_orig: images in [0, 1], (N, C, H, W).
            y_orig: labels, int64 (N,).
            bs: batch size.

        Returns:
            Adversarial images, (N, C, H, W), by the name of the attack.
        """
        adversarial = {}
        for name, attack in self.attacks.items():
            adversarial[name] = x_orig.clone()
            for done in self._run(attack, x_orig, y_orig, self._correct(x_orig, y_orig, bs), bs):
                rows = done.index[done.success].to(x_orig.device)
                adversarial[name][rows] = done.x[done.success].to(x_orig)
        return adversarial

    def _engine(self, bs: int) -> Engine:
        return Engine(self.model, precision=self.precision, batch_size=bs, seed=self.seed)

    def _correct(self, x: Tensor, y: Tensor, bs: int) -> Tensor:
        """Mask of the correctly classified clean images, bool (N,), on the CPU."""
        if x.ndim != 4 or y.shape != x.shape[:1]:
            raise ClasswiseError(
                f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; expected images (N, C, H, W) and labels (N,)"
            )
        logits = torch.cat(list(self._engine(bs).predict(torch.split(x, bs))))
        return (logits.argmax(1) == y.to(logits.device)).cpu()

    def _run(self, attack: Attack, x: Tensor, y: Tensor, mask: Tensor, bs: int) -> Iterator[Finished]:
        """Run one attack on the images of a mask; ``index`` is the position in ``x``."""
        rows = mask.nonzero().squeeze(1)
        jobs = (Job(part, x[part.to(x.device)], y[part.to(y.device)]) for part in torch.split(rows, bs) if len(part))
        blocks = self._engine(bs).attack(attack, self.threat, jobs)
        with closing(cast("Generator[Finished, None, None]", blocks)):
            yield from blocks
