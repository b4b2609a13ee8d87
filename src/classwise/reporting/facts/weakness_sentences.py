"""Sentences on how a class of an audit fails, from the facts of `classwise.auditing.weakness`."""

from __future__ import annotations

from classwise.auditing.weakness import Failure, Weakness
from classwise.reporting import formatting
from classwise.reporting.figures.radii import LEVELS, MAX_LEVELS

FEW_IMAGES = 30
"""Fewer images of a class are called few: the 95 % interval of a share of one half is then wider than 0.37."""
MOST_PREDICTED = 3
"""Number of predicted classes that are named, or one more, if that is all."""
NOTE = (
    "An image fails if at least one attack misclassifies it, or the model does so without an attack. These numbers "
    "describe the outcomes; they do not show a cause."
)


def weakness_title(facts: Weakness) -> str:
    """The heading of the section about the class of lowest accuracy; empty if no image of it fails."""
    if not facts.failures.part:
        return ""
    if facts.classes == 1:
        return f"How {facts.name} fails"
    if facts.tied:
        return f"Why is {facts.name} among the weakest {formatting.plural(facts.kind)}?"
    return f"Why is {facts.name} the weakest {formatting.singular(facts.kind)}?"


def weakness_sentences(facts: Weakness) -> list[str]:
    """What is known of the failures of a class, but for the clearest ones; a sentence each."""
    sentences = [_ties(facts), _failures(facts), _few_images(facts)]
    if facts.failures.part:
        sentences += [_clean_errors(facts), _small_margins(facts), _training(facts), _half_radius(facts)]
    return [sentence for sentence in sentences if sentence]


def weakness_line(facts: Weakness) -> str:
    """The failures of a class in one line of a terminal; empty without failures."""
    if not facts.failures.part:
        return ""
    parts = [f"{facts.failures} images {_verb(facts)}{_predicted(facts)}"]
    if facts.clean_errors is not None:
        parts.append(f"{facts.clean_errors} without an attack")
    if facts.small_margins is not None:
        of_class, of_all, _ = facts.small_margins
        parts.append(f"clean margins below the lower quartile: {of_class} correct images, {of_all} of all classes")
    return f"failures of {facts.name}: {'; '.join(parts)}"


def clearest_heading(facts: Weakness) -> str:
    """What precedes the clearest failures; empty if there are none."""
    return f"Failures of {facts.name} with the largest clean margins:" if facts.clearest else ""


def failure_text(failure: Failure) -> str:
    """A failure: the image, its clean margin and its prediction."""
    predicted = "without a prediction" if failure.predicted is None else f"misclassified as {failure.predicted}"
    name = f" ({failure.image_name})" if failure.image_name else ""
    return f"image {failure.image}{name}, clean margin {failure.margin:.2f}, {predicted}"


def _verb(facts: Weakness) -> str:
    return "fail" if facts.attacked else "are misclassified without an attack"


def _predicted(facts: Weakness) -> str:
    """The predicted classes of the failures, most frequent first, as a continuation of a sentence."""
    if not facts.failures.part:
        return ""
    # One more name is as short as "1 other class".
    named = len(facts.predicted) if len(facts.predicted) <= MOST_PREDICTED + 1 else MOST_PREDICTED
    shown = [f"{name} ({formatting.count(number)})" for name, number in facts.predicted[:named]]
    others = [number for _, number in facts.predicted[named:]]
    if others:
        shown.append(f"{len(others)} other classes ({sum(others):,})")
    unknown = facts.failures.part - sum(number for _, number in facts.predicted)
    verb = "first misclassified as" if facts.attacked else "as"
    text = f", {verb} {formatting.listed(shown)}" if shown else ""
    return text + (f", {unknown:,} of them without a prediction" if unknown else "")


def _ties(facts: Weakness) -> str:
    if not facts.tied:
        return ""
    many = formatting.plural(facts.kind)
    names = formatting.listed(facts.tied)
    return f"{len(facts.tied)} {many} tie for the lowest accuracy ({names}); this is about the first, {facts.name}."


def _failures(facts: Weakness) -> str:
    return f"{facts.failures} images of {facts.name} {_verb(facts)}{_predicted(facts)}."


def _few_images(facts: Weakness) -> str:
    images = facts.failures.whole
    return f"{facts.name} has few images ({images}), so each share is uncertain." if images < FEW_IMAGES else ""


def _clean_errors(facts: Weakness) -> str:
    if facts.clean_errors is None:
        return ""
    verb = "is" if facts.clean_errors.part == 1 else "are"
    return f"{facts.clean_errors} failures {verb} misclassified without an attack."


def _small_margins(facts: Weakness) -> str:
    if facts.small_margins is None:
        return ""
    of_class, of_all, threshold = facts.small_margins
    return (
        f"{of_class} images of {facts.name} that are correct without an attack have a small margin there: one below "
        f"{threshold:.3g}, the lower quartile of the correct images of all classes ({of_all})."
    )


def _training(facts: Weakness) -> str:
    if facts.training is None:
        return ""
    ratio = facts.training.part * facts.training_classes / facts.training.whole
    return (
        f"{facts.training} training images are of {facts.name}, {ratio:.2f} times the mean of "
        f"{facts.training_classes} classes."
    )


def _half_radius(facts: Weakness) -> str:
    if not facts.attacked:
        return ""
    if facts.half_radius is None:
        if facts.kind != "class":  # a curve has no groupings
            return ""
        if facts.too_short:
            return f"Fewer than half of the images of {facts.name} fail within the radii of curve {facts.too_short}."
        return (
            f"The radius at which half of the images of {facts.name} fail is not in this audit; classwise curve "
            "computes it (median)."
        )
    radius, norm, source = facts.half_radius
    if not radius:
        return f"At least half of the images of {facts.name} fail without an attack."
    levels = f", which is {LEVELS * radius:.3g}/{LEVELS}" if norm == "Linf" and radius * LEVELS <= MAX_LEVELS else ""
    return f"Half of the images of {facts.name} fail within the {norm} radius {radius:.3g}{levels} ({source})."
