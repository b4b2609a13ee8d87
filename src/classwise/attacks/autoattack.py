"""AutoAttack with the interface of the original package: ``AutoAttack(model, ...).run_standard_evaluation(x, y)``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Literal, overload

import torch
from torch import Tensor, nn

from classwise.attacks import ATTACKS
from classwise.attacks.base import Attack
from classwise.attacks.engine import Engine, Job
from classwise.attacks.suites import members
from classwise.core.compute.determinism import deterministic_algorithms
from classwise.core.compute.precision import EXACT, Precision, fastest
from classwise.core.compute.tensors import as_tensor
from classwise.core.errors import ClasswiseError, unknown
from classwise.core.settings.ambient_state import in_known_state
from classwise.core.settings.config import make
from classwise.data.images import as_labels, check_labels, float_pixels
from classwise.models.base import device_of
from classwise.models.logits import as_logits, check_logits, predicts
from classwise.threat.ball import Norm, Threat


class AutoAttack:
    """AutoAttack (Croce and Hein, ICML 2020) with the constructor and methods of the original package.

    `classwise.audit` with ``attacks="autoattack"`` also reports per-class accuracy, intervals, guards and a row per
    image.

    Args:
        model: a module or function that maps images (N, C, H, W) in [0, 1] to logits (N, classes), or to an output with
            logits. It runs in evaluation mode, and its modes are restored afterwards.
        norm: ``"Linf"``, ``"L2"`` or ``"L1"``.
        eps: the radius.
        seed: seed of all random numbers, by default 0; the global generators are not used.
        verbose: whether the accuracy is printed after each attack.
        attacks_to_run: for ``version="custom"``, names of attacks of ``"plus"``, such as ``["apgd-ce", "square"]``,
            with its settings.
        version: ``"standard"``, ``"plus"``, ``"rand"`` or ``"custom"``.
        is_tf_model: must be False.
        device: not used; the attacks run on the device of the model.
        log_path: file to which the printed lines are appended.
        precision: how gradients are computed; success is always decided in float32. By default as fast as a GPU can
            (`classwise.core.compute.precision.fastest`), and in float32 on a CPU.

    Raises:
        ClasswiseError: for an unknown norm, version or attack, a norm that an attack does not support, a negative
            radius, or a model of TensorFlow.
    """

    @in_known_state
    def __init__(
        self,
        model: nn.Module | Callable[..., object],
        norm: Norm = "Linf",
        eps: float = 8 / 255,
        seed: int | None = None,
        verbose: bool = True,
        attacks_to_run: Sequence[str] = (),
        version: str = "standard",
        is_tf_model: bool = False,
        device: str | torch.device | None = None,
        log_path: str | os.PathLike[str] | None = None,
        *,
        precision: Precision | None = None,
    ) -> None:
        del device
        if is_tf_model:
            raise ClasswiseError("AutoAttack: is_tf_model = True: models of TensorFlow are not supported")
        custom = version == "custom"
        if custom != bool(attacks_to_run):
            raise ClasswiseError(
                f"AutoAttack: version = {version!r} with attacks_to_run = {list(attacks_to_run)}: "
                "attacks_to_run is for version='custom', which needs it"
            )
        self.model = as_logits(model)
        self.threat = Threat(norm, _radius(eps))
        self.seed = 0 if seed is None else seed
        self.precision = precision
        self.verbose, self.log_path = verbose, log_path
        specs = {
            spec.partition(":")[0]: spec
            for spec in members("autoattack", {"version": "plus" if custom else version}, norm)
        }
        for name in attacks_to_run:
            if name not in specs:
                raise unknown(f"attack of AutoAttack under {norm}", name, specs)
        self.attacks: dict[str, Attack] = {name: make(ATTACKS, specs[name]) for name in attacks_to_run or specs}
        for attack in self.attacks.values():
            attack.supported(self.threat)

    @property
    def attacks_to_run(self) -> list[str]:
        """The names of the attacks, in order; they are an argument of the constructor."""
        return list(self.attacks)

    @overload
    def run_standard_evaluation(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = ..., return_labels: Literal[False] = ..., state_path: None = ...
    ) -> Tensor: ...
    @overload
    def run_standard_evaluation(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = ..., *, return_labels: Literal[True], state_path: None = ...
    ) -> tuple[Tensor, Tensor]: ...
    @in_known_state
    def run_standard_evaluation(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False, state_path: object = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Run the attacks in cascade and return adversarial images.

        Robust images and images that are misclassified without an attack are returned unchanged.

        Args:
            x_orig: images in [0, 1], (N, C, H, W).
            y_orig: labels, int64 (N,).
            bs: batch size.
            return_labels: whether the predictions for the returned images are returned, too.
            state_path: must be None; `classwise.audit` resumes.

        Returns:
            Images in [0, 1], (N, C, H, W); with ``return_labels`` also the predictions, int64 (N,).

        Raises:
            ClasswiseError: for images, labels or outputs of the model that `classwise.attack` rejects, or a
                ``state_path``.
        """
        if state_path is not None:
            raise ClasswiseError(
                "AutoAttack: state_path is not supported; audit(model, data, attacks='autoattack', out=FOLDER, "
                "resume=True) continues an interrupted evaluation"
            )
        result, x_orig, y_orig = as_tensor(x_orig, "x_orig").clone(), *_checked(x_orig, y_orig)
        with self._arithmetic():
            robust = self._correct(x_orig, y_orig, bs)
            self._print("initial accuracy", robust)
            for name, attack in self.attacks.items():
                robust = self._run(attack, x_orig, y_orig, robust, bs, result)
                self._print(f"robust accuracy after {name.upper()}", robust)
            return (result, self._logits(result.to(x_orig), bs).argmax(1).to(y_orig)) if return_labels else result

    @in_known_state
    def run_standard_evaluation_individual(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> dict[str, Tensor]:
        """Run each attack on all images separately.

        Args:
            x_orig: images in [0, 1], (N, C, H, W).
            y_orig: labels, int64 (N,).
            bs: batch size.

        Returns:
            Adversarial images, (N, C, H, W), by the name of the attack.
        """
        given, x_orig, y_orig = as_tensor(x_orig, "x_orig"), *_checked(x_orig, y_orig)
        adversarial = {}
        with self._arithmetic():
            correct = self._correct(x_orig, y_orig, bs)
            for name, attack in self.attacks.items():
                adversarial[name] = given.clone()
                robust = self._run(attack, x_orig, y_orig, correct, bs, adversarial[name])
                self._print(f"robust accuracy by {name.upper()}", robust)
            return adversarial

    def _arithmetic(self) -> AbstractContextManager[None]:
        return deterministic_algorithms(enabled=self.precision is not None and self.precision.deterministic)

    def _print(self, what: str, correct: Tensor) -> None:
        line = f"{what}: {100 * correct.double().mean():.2f}%"
        if self.verbose:
            print(line)
        if self.log_path is not None:
            with Path(self.log_path).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def _engine(self, bs: int) -> Engine:
        device = device_of(self.model)
        precision = self.precision or (fastest(device) if device.type == "cuda" else EXACT)
        return Engine(self.model, precision=precision, batch_size=bs, seed=self.seed)

    def _correct(self, x: Tensor, y: Tensor, bs: int) -> Tensor:
        """Mask of the correctly classified clean images, bool (N,), on the CPU."""
        logits = self._logits(x, bs)
        check_logits(self.model, [logits])
        check_labels(y, range(logits.shape[1]), "y_orig")
        return predicts(logits, y.cpu())

    def _logits(self, x: Tensor, bs: int) -> Tensor:
        """Logits (N, classes), on the CPU."""
        return torch.cat(list(self._engine(bs).predict(torch.split(x, bs)))).cpu()

    def _run(self, attack: Attack, x: Tensor, y: Tensor, mask: Tensor, bs: int, result: Tensor) -> Tensor:
        """Attack the images of a mask, and write adversarial examples into ``result``; the mask of the other images."""
        rows, robust = mask.nonzero().squeeze(1), mask.clone()
        jobs = (Job(part, x[part.to(x.device)], y[part.to(y.device)]) for part in torch.split(rows, bs) if len(part))
        with closing(self._engine(bs).attack(attack, self.threat, jobs, images=len(rows))) as blocks:
            for done in blocks:
                found = done.index[done.success]
                result[found.to(result.device)] = done.x[done.success].to(result)
                robust[found.cpu()] = False
        return robust


def _checked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Images in [0, 1], float32 (N, C, H, W), and labels, int64 (N,)."""
    images = float_pixels(x, "x_orig")
    return images, as_labels(y, len(images), "y_orig")


def _radius(eps: object) -> float:
    """The radius, which the callers of the authors' code may give as a tensor of one number."""
    if isinstance(eps, Tensor) and eps.ndim:
        raise ClasswiseError("AutoAttack: eps has a radius for each image; classwise.attack accepts them")
    return float(eps)  # type: ignore[arg-type]
