"""`attack`: attack a batch and return the images, as the functions of other attack libraries do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from classwise.attacks.engine import SMALLEST_BATCH, Engine
from classwise.auditing.run.inputs import logits_on
from classwise.auditing.run.suite import Attacks, norm_of, parse_attacks
from classwise.core.compute.determinism import deterministic_algorithms
from classwise.core.compute.precision import EXACT, Dtype, Precision, precision_of
from classwise.core.compute.tensors import as_tensor
from classwise.core.settings.arguments import BatchSize, checked
from classwise.core.settings.config import Seed
from classwise.data.images import as_labels, check_labels, float_pixels
from classwise.models.logits import as_logits, check_logits
from classwise.threat.ball import Threat, ThreatLike


@checked
def attack(
    model: nn.Module | Callable[..., Any],
    x: Any,
    y: Any,
    attacks: Attacks,
    *,
    threat: ThreatLike,
    targets: Any = None,
    index: Any = None,
    early_stop: bool = True,
    precision: Precision | Dtype | None = None,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
) -> Tensor:
    """Attack a batch and return adversarial images.

    Several attacks, such as those of ``"autoattack"``, run in cascade, each on the images that survive the previous
    ones.

    Args:
        model: a module or function that maps images to logits (N, C); it runs in evaluation mode, and its modes are
            restored afterwards.
        x: images in [0, 1], floating-point, (N, C, H, W).
        y: labels, integers (N,).
        attacks: as of `classwise.audit`: a spec such as ``"pgd:steps=20"``, an `Attack`, a named suite, an attack of
            another library, or several of these.
        threat: the ball, such as ``"Linf:8/255"``; its radius is a number or a tensor (N,).
        targets: the target class of each image, integers (N,), for attacks that take one; -1 for none.
        index: the number of each image in the random numbers, integers (N,); None: its position in the batch.
        early_stop: return the first misclassified iterate of an image, else the one of lowest margin. False: the last
            iterate.
        precision: of the gradients; success is always decided in float32. None: float32, on the model itself.
        batch_size: images on the device at once, at least 32; None: all.
        seed: the seed of the attacks' random numbers.

    Returns:
        Images in [0, 1] and in the ball, (N, C, H, W), on the device and in the type of ``x``, or float32 for a half
        type, whose rounding would leave the ball: adversarial where an attack succeeded, else as the last attack
        returned them.

    Raises:
        ClasswiseError: for images, labels or attacks that `classwise.audit` rejects, too, and for integer images.

    Example:
        >>> import torch
        >>> import classwise as cw
        >>> model = cw.load_model("small-cnn", num_classes=10, in_channels=3, width=0.25)
        >>> images, labels = torch.rand(4, 3, 32, 32), torch.arange(4)
        >>> adversarial = cw.attack(model, images, labels, "pgd:steps=5", threat="Linf:8/255")
        >>> adversarial.shape, bool((adversarial - images).abs().max() < 8.001 / 255)
        (torch.Size([4, 3, 32, 32]), True)
    """
    given = as_tensor(x, "images")
    images = float_pixels(given, "images")
    labels = as_labels(y, len(images), "labels")
    index = None if index is None else as_labels(index, len(images), "index")
    targets = None if targets is None else as_labels(targets, len(images), "targets")
    ball = Threat.parse(threat).validated().of_images(len(images))
    members = parse_attacks(attacks, norm_of(threat)).attacks.values()
    for member in members:
        member.supported(ball)
    chosen = precision_of(precision) or EXACT
    engine = Engine(
        as_logits(model), precision=chosen, batch_size=batch_size or len(images), early_stop=early_stop, seed=seed
    )
    logits = logits_on(engine, images[:SMALLEST_BATCH])
    check_logits(engine.model, [logits])
    classes = range(logits.shape[1])
    check_labels(labels, classes, "labels")
    if targets is not None:
        check_labels(targets.clamp_min(0), classes, "targets")
    exact = torch.float64 if given.dtype == torch.float64 else torch.float32
    with deterministic_algorithms(enabled=chosen.deterministic):
        return engine.perturb(members, images, labels, ball, index=index, target=targets).to(exact)
