"""How near the curve of each attack is to that of the best attack on every image, by class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from classwise.auditing.curve.result import OVERALL, Curve
from classwise.core.errors import ClasswiseError
from classwise.core.settings.arguments import checked
from classwise.stats.counts import FloatArray


@checked
def optimality(curves: Mapping[str, Curve]) -> pd.DataFrame:
    """Compute the local optimality of attacks on one model, by class.

    The best radius of an image is the smallest one at which any of the attacks found an adversarial example. With the
    largest best radius D of a class, the areas A up to D under the curve of an attack, A* under that of the best radii,
    and A0 under the constant clean accuracy, the optimality is 1 - (A - A*) / (A0 - A*): 1 if the attack found the best
    radius of every image, 0 if it found none below D. It depends on which attacks are compared: a further attack may
    lower it. It describes these images, so it has no interval.

    Cinà et al., "AttackBench: Evaluating Gradient-based Attacks for Adversarial Examples", AAAI 2025 (local
    optimality). The areas here are exact: those of step functions.

    Args:
        curves: the curve of each attack, by its name, with equal images, `Curve.highest` and model.

    Returns:
        A row for each class with images and a last one for ``overall``: ``n``, and a column in [0, 1] for each attack.
        Where all best radii of a class are equal, A0 equals A*, and the optimality is 1.

    Raises:
        ClasswiseError: for fewer than two curves, or if they are not of the same model, images and threat.

    Example:
        >>> import classwise as cw
        >>> data = cw.load_data("digits", subset=40)
        >>> model = cw.load_model("small-cnn", data=data, width=0.1)
        >>> options = {"highest": 0.2, "rounds": 2}
        >>> named = {name: cw.robustness_curve(model, data, "Linf", name, **options) for name in ("fgsm", "pgd")}
        >>> optimality(named).columns.tolist()
        ['n', 'fgsm', 'pgd']
    """
    if len(curves) < 2:
        raise ClasswiseError(f"optimality compares the curves of at least two attacks; got {len(curves)}")
    reference, *others = curves.items()
    for other in others:
        _check_alike(reference, other)
    first = reference[1]
    label = first.frame.sort_values("index")["label"].to_numpy()
    found = np.stack([curve.frame.sort_values("index")["high"].to_numpy() for curve in curves.values()])
    radii = np.minimum(np.where((found == 0).any(axis=0), 0, found), first.highest)
    groups = {name: label == place for place, name in enumerate(first.class_names) if (label == place).any()}
    groups |= {OVERALL: np.ones(len(label), dtype=np.bool_)}
    rows = [dict(zip(curves, _of(radii[:, rows]), strict=True)) for rows in groups.values()]
    counts = pd.Series({name: int(rows.sum()) for name, rows in groups.items()}, name="n")
    frame = pd.DataFrame(rows, index=pd.Index(groups, name="class"))
    frame.insert(0, "n", counts)
    return frame


def _of(radii: FloatArray) -> list[float]:
    """The optimality of each attack, from the radius at which it succeeded on each image, (attacks, N)."""
    best = radii.min(axis=0)
    largest = best.max()
    area = np.minimum(radii, largest).mean(axis=1)
    span = largest * (best > 0).mean() - best.mean()
    if span <= 1e-12 * largest:
        return [1.0] * len(radii)
    values: list[float] = (1 - (area - best.mean()) / span).tolist()
    return values


def _check_alike(one: tuple[str, Curve], other: tuple[str, Curve]) -> None:
    """Check that two curves are of the same model, images and threat.

    Raises:
        ClasswiseError: if they are not.
    """
    (name, first), (other_name, second) = one, other
    rows, others = (curve.frame.sort_values("index")[["index", "label"]].to_numpy() for curve in (first, second))
    differences = {
        "images": not np.array_equal(rows, others) or first.meta.data_hash != second.meta.data_hash,
        "models": first.meta.model_hash != second.meta.model_hash,
        "threats": (first.meta.threat, first.highest) != (second.meta.threat, second.highest),
    }
    for what, differs in differences.items():
        if differs:
            raise ClasswiseError(
                f"the curves {name!r} and {other_name!r} have different {what}; optimality needs equal ones"
            )
