"""AutoAttack as people call it, run by our engine: ``AutoAttack(model, ...).run_standard_evaluation(x, y, bs=250)``."""

from __future__ import annotations

from collections.abc import Generator, Iterator
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


class AutoAttack:
    """The suite of Croce and Hein (ICML 2020) behind the calls that scripts for it make.

    An audit tells more (`classwise.audit` with ``attacks="autoattack"``): classes, intervals, guards, a row per image.

    Args:
        model: images (N, C, H, W) in [0, 1] to logits (N, classes). It is evaluated in evaluation mode and left as it
            was.
        norm: ``"Linf"``, ``"L2"`` or ``"L1"``.
        eps: the radius.
        version: ``"standard"``, ``"plus"`` or ``"rand"``.
        seed: of all draws; the global generators are left alone.
        precision: how gradients are computed; success is always decided in float32.

    Raises:
        ClasswiseError: for an unknown norm or version, or a negative radius.
    """

    def __init__(
        self,
        model: nn.Module,
        norm: Norm = "Linf",
        eps: float = 8 / 255,
        version: str = "standard",
        seed: int = 0,
        precision: Precision = EXACT,
    ) -> None:
        self.model = model
        self.threat = Threat(norm, eps)
        self.seed = seed
        self.precision = precision
        specs = members("autoattack", {"version": version}, norm)
        self.attacks: dict[str, Attack] = {spec.partition(":")[0]: make(ATTACKS, spec) for spec in specs}

    @torch.inference_mode(mode=False)
    def run_standard_evaluation(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> Tensor:
        """Adversarial images, shaped like ``x_orig``, of the attacks in cascade.

        An image that no attack breaks comes back as it was, and so does one that is misclassified without attack.

        Args:
            x_orig: images in [0, 1], (N, C, H, W).
            y_orig: labels, int64 (N,).
            bs: images on the device at once.
        """
        result = x_orig.clone()
        robust = self._right(x_orig, y_orig, bs)
        for attack in self.attacks.values():
            for done in self._run(attack, x_orig, y_orig, robust, bs):
                found = done.index[done.success].to(result.device)
                result[found] = done.x[done.success].to(result)
                robust[found.cpu()] = False
        return result

    @torch.inference_mode(mode=False)
    def run_standard_evaluation_individual(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> dict[str, Tensor]:
        """What each attack makes of all images alone, by the attack's name; arguments as above."""
        found = {}
        for name, attack in self.attacks.items():
            found[name] = x_orig.clone()
            for done in self._run(attack, x_orig, y_orig, self._right(x_orig, y_orig, bs), bs):
                rows = done.index[done.success].to(x_orig.device)
                found[name][rows] = done.x[done.success].to(x_orig)
        return found

    def _engine(self, bs: int) -> Engine:
        return Engine(self.model, precision=self.precision, batch_size=bs, seed=self.seed)

    def _right(self, x: Tensor, y: Tensor, bs: int) -> Tensor:
        """Which images are classified as their labels say, bool (N,), on the CPU."""
        if x.ndim != 4 or y.shape != x.shape[:1]:
            raise ClasswiseError(
                f"x is {tuple(x.shape)} and y {tuple(y.shape)}; give images (N, C, H, W) and labels (N,)"
            )
        logits = torch.cat(list(self._engine(bs).predict(torch.split(x, bs))))
        return (logits.argmax(1) == y.to(logits.device)).cpu()

    def _run(self, attack: Attack, x: Tensor, y: Tensor, which: Tensor, bs: int) -> Iterator[Finished]:
        """One attack on some of the images; ``index`` is the place in ``x``."""
        rows = which.nonzero().squeeze(1)
        jobs = (Job(part, x[part.to(x.device)], y[part.to(y.device)]) for part in torch.split(rows, bs) if len(part))
        blocks = self._engine(bs).attack(attack, self.threat, jobs)
        with closing(cast("Generator[Finished, None, None]", blocks)):
            yield from blocks
