"""`prepare`: read the model and the images of an evaluation, and check that they fit each other and the plan."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.engine import NARROWEST, SMALLEST_BATCH
from classwise.attacks.gradient.ascent import step_size_problem, suitable_step
from classwise.auditing.evaluation.evaluation import STORED, Evaluation
from classwise.auditing.evaluation.option import Decides
from classwise.auditing.evaluation.shard import Shard
from classwise.auditing.outcomes.files import check_groupings, taken_columns
from classwise.auditing.outcomes.meta import CHANGED_NOTE, FREQUENCY, FREQUENCY_UNKNOWN, Meta, identity_of
from classwise.auditing.outcomes.table import CLEAN
from classwise.auditing.run.audit_folder import RecordedCode
from classwise.auditing.run.batch_sizes import SMALL_PIXELS, fitting_batch
from classwise.auditing.run.chosen_precision import in_float32_if_faster, in_float32_if_needed
from classwise.auditing.run.inputs import (
    Model,
    as_classifier,
    check_one_output,
    class_names_for,
    classes_note,
    classes_of,
    group_name,
    grouped,
    logits_on,
    name_of,
    named,
    pieces_of,
    read_outputs,
    restricted,
    stored,
    threat_for,
    training_counts_of,
    unfinished_training,
)
from classwise.auditing.run.partition import pieces_of_shard, rows_of, shard_of
from classwise.auditing.run.plan import Plan
from classwise.auditing.run.requirements import checked_policy, refuse_lacking
from classwise.auditing.run.suite import Suite, require_applicable, split_suite
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import ResultFolder
from classwise.core.progress.listener import Progress
from classwise.core.settings.code_identity import check_unchanged, without_empty
from classwise.data.duplicates import content_hashes, first_rows
from classwise.data.images import Images
from classwise.data.sets.loading import named_set
from classwise.data.stream import Stream, as_data
from classwise.models.base import Classifier, bare, device_of
from classwise.models.functions import model_of
from classwise.models.loading.loader import load_model
from classwise.models.logits import LogitsModel, check_logits, logits_model_of
from classwise.models.modes import evaluating
from classwise.models.state import Buffers, changes_text
from classwise.models.structure import code_of
from classwise.models.weights import fingerprint
from classwise.stats.registry import all_metrics
from classwise.threat.ball import NORM_BALLS, Threat, ThreatLike, large_radius_text

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Inputs:
    """The inputs of an evaluation: the model and the images as they were read, with the plan for them.

    Attributes:
        model: maps images to logits, one for each class of the data.
        plan: how images are attacked; its suite has only the attacks that are applicable to the model.
        meta: the metadata of the outcomes.
        pieces: the images, an iterator that can be read once.
        source: the data that the pieces come from.
        was_training: whether a module of the model was in training mode.
        untrained: whether the weights are the initial ones of a network of the zoo.
        no_gradient: why the model has no gradient with respect to its input; empty if it has one.
        note: notes on the batch size and the classes for the user; may be empty.
        large_radius: why the radius is implausibly large; empty if it is not.
        code: digests of the user's code of the model and of each attack, also empty ones; those in ``meta`` are of the
            audit in the folder.
        settings: every setting that decides rows, as JSON values (`settings_of`).
    """

    model: nn.Module
    plan: Plan
    meta: Meta
    pieces: Iterator[Images]
    source: Images | Stream
    was_training: bool
    untrained: bool | None
    no_gradient: str = ""
    note: str = ""
    large_radius: str = ""
    code: dict[str, dict[str, str]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def class_labels(self) -> tuple[str, ...] | None:
        """The labels of the classes in the data, empty if unknown; None for a data set by name: its order is fixed."""
        return None if named_set(self.source) else tuple(self.source.class_names or ())

    def log_notes(self, progress: Progress) -> None:
        """Log the notes for the user, and a warning of an implausible radius."""
        for note in filter(None, (self.note, self.large_radius and f"warning: {self.large_radius}")):
            progress.log(note)


def prepare(model: Model, data: Any, suite: Suite, threat: ThreatLike | None, options: Evaluation) -> Inputs:
    """Read the data and the model, check that they fit each other, and build the plan.

    Args:
        model: see `classwise.auditing.run.audit.audit`.
        data: the images.
        suite: the attacks.
        threat: the ball; None: the usual one of the data.
        options: what is asked. Of a shard, the plan has no trace and no guards, and the metadata are those of all
            images.

    Raises:
        ClasswiseError: if the data and the model do not fit each other, or one of them cannot be read.
    """
    all_metrics()  # refused now if one is not valid, not after the attacks
    group, shard, policy = options.get("group"), shard_of(options), options.get("policy")
    source = grouped(as_data(data), group)
    grouping = group_name(group)
    if grouping not in (None, "superclass"):
        check_groupings([grouping], suite.attacks)
    no_threat = Threat("Linf", 0.0) if not suite.attacks and threat is None else None
    ball = no_threat or threat_for(source, threat)
    if options.get("unique"):
        source, ball = _unique(source, ball)
    traced = {*options.get("trace", ())}
    if traced and isinstance(source, Images) and (unknown := sorted(traced - {*source.index.tolist()})):
        raise ClasswiseError(
            f"trace: the {len(source)} images of {source.name} include none with the index {unknown[0]}; give "
            f"indices of these images, such as {int(source.index[0])}"
        )
    device = options.get("device")
    if isinstance(model, str | os.PathLike):
        classifier = load_model(model, data=source, device=device or "cpu")
    else:
        model = model_of(model)  # once: a function may return another model each time
        classifier = as_classifier(model, device)
    plan = Plan.of(suite, ball, options, device_of(classifier))
    pieces = pieces_of(source, plan.batch_size)
    if plan.asked["grid"] is not None:
        pieces = (stored(piece) for piece in pieces)
    first = next(pieces)
    if "features" in plan.asked["save"] and not hasattr(classifier, "features"):
        raise ClasswiseError(f"{name_of(model)} has no method features(x), so its features cannot be saved")
    _check_indices(first.index)
    own = classes_of(model, classifier)
    with evaluating(classifier) as was_training:
        tried = _tried(classifier, plan, source, first, own, is_shard=shard is not None)
        network = _network_of(classifier)
        parameters = fingerprint(network)
    code = code_of(network, **{f"attack {label}": attack for label, attack in suite.attacks.items()})
    plan = tried.plan
    model_hash = _hash_of(parameters, classifier)
    meta = replace(tried.meta, model=name_of(model), model_hash=model_hash, code=without_empty(code))
    meta = replace(meta, training_counts=training_counts_of(model, meta.class_names))
    if grouping == FREQUENCY and not meta.names_of(grouping):
        raise ClasswiseError(FREQUENCY_UNKNOWN)
    settings = settings_of(plan, meta)
    if policy is not None:
        stated = checked_policy(policy, meta, grouping)
        refuse_lacking(stated, meta, grouping, plan.asked["guards"], str(policy))
        plan, meta = plan.with_options(guards="full"), meta.stating(policy=stated.digest)
    pieces = (named(piece, meta.class_names) for piece in itertools.chain([first], pieces))
    if shard is not None:
        plan, settings = _plan_of(plan, shard, source), settings | {"shard": str(shard)}
        pieces = pieces_of_shard(shard, pieces)
    return Inputs(
        model=tried.model,
        plan=plan,
        meta=meta,
        pieces=pieces,
        source=source,
        was_training=was_training,
        untrained=getattr(classifier, "fresh", None) == parameters
        if isinstance(bare(classifier), Classifier)
        else None,
        no_gradient=tried.no_gradient,
        note="; ".join(filter(None, (unfinished_training(model), tried.note))),
        large_radius=large_radius_text(ball, first.shape),
        code=code,
        settings=settings,
    )


def with_recorded_code(ready: Inputs, folder: ResultFolder, *, finished: bool) -> Inputs:
    """The inputs of an evaluation with the code that its folder records, once that was compared with the present code.

    Args:
        ready: the inputs.
        folder: the folder, which contains the evaluation.
        finished: whether nothing of it is left to do.

    Raises:
        ClasswiseError: naming what has changed, if the evaluation is not finished.
    """
    recorded = folder.read(RecordedCode).get("code")
    if warning := check_unchanged(recorded, ready.code, folder.path, finished=finished):
        logger.warning("%s", warning)
    return replace(ready, meta=replace(ready.meta, code=recorded))


def _unique(source: Images | Stream, ball: Threat) -> tuple[Images | Stream, Threat]:
    """The data without duplicates, and the radii of the images that remain."""
    if not isinstance(source, Images):
        return source.unique(), ball
    rows = torch.from_numpy(first_rows(content_hashes(source.x, source.y)))
    return source.unique(), ball.of(rows)


def settings_of(plan: Plan, meta: Meta) -> dict[str, Any]:
    """Every setting that decides rows, as JSON values; a resumed audit must have the same."""
    epsilon = plan.threat.epsilon
    radii = hashlib.sha256(epsilon.cpu().numpy().tobytes()).hexdigest() if isinstance(epsilon, Tensor) else None
    about = json.loads(meta.to_json())
    about["attacks"] = {label: identity_of(spec) for label, spec in about["attacks"].items()}
    free = (name for name, option in STORED.items() if option.decides in (Decides.ESTIMATE, Decides.RECORD))
    about.pop("code", None)  # compared by `with_recorded_code`
    for key in ("images", "sizes", "notes", "model", "training_counts", *free):
        about.pop(key, None)
    if meta.repeats == 1:  # audits written before there were repeats have no such entries
        about |= {"repeats": None, "repeat_rule": None}
    return {**about, "radii": radii, **{name: [*plan.asked[name]] for name in ("save", "trace")}}


def _plan_of(plan: Plan, shard: Shard, source: Images | Stream) -> Plan:
    """The plan of a shard: the radii of its images, no trace and no guards, which follow the merge."""
    threat = plan.threat.of(rows_of(shard, source.y.cpu())) if isinstance(source, Images) else plan.threat
    return replace(plan.with_options(trace=(), guards="off"), threat=threat)


def model_identity(model: nn.Module) -> tuple[str, dict[str, str]]:
    """The digest of a model's weights, and those of its structure and of the user's code by module.

    The first is another one if the outputs of the model are converted to logits.
    """
    classifier = as_classifier(model, None)
    with evaluating(classifier):
        network = _network_of(classifier)
        return _hash_of(fingerprint(network), classifier), without_empty(code_of(network)).get("model", {})


def _network_of(classifier: nn.Module) -> nn.Module:
    """The network itself; `LogitsModel` would put a prefix before the names of the parameters."""
    return classifier.model if isinstance(classifier, LogitsModel) else classifier


def _hash_of(parameters: str, classifier: nn.Module) -> str:
    """The fingerprint of the parameters; another one if the outputs of the model are converted to logits."""
    inner = logits_model_of(classifier)
    if inner is None or inner.kind in ("auto", "logits"):
        return parameters
    return hashlib.sha256(f"{parameters} {inner.kind}".encode()).hexdigest()


def _step_notes(attacks: Mapping[str, Attack], threat: Threat) -> list[str]:
    """Notes on step sizes that do not suit one radius of a norm."""
    if threat.norm not in NORM_BALLS or not isinstance(threat.epsilon, float):
        return []
    return [
        f"{label}: {problem}; use step_size={suitable_step(attack)}"
        for label, attack in attacks.items()
        if (problem := step_size_problem(attack, threat.epsilon))
    ]


class _Tried(NamedTuple):
    """What passing a few images through the model has shown.

    Attributes:
        model: the model, restricted to the classes of the data if these are a part of its own.
        plan: with the attacks that are applicable to the model, and the batch size.
        meta: the metadata, without those of the model.
        no_gradient: why the model has no gradient; empty if it has one.
        note: notes for the user; may be empty.
    """

    model: nn.Module
    plan: Plan
    meta: Meta
    no_gradient: str
    note: str


def _tried(
    classifier: nn.Module, plan: Plan, source: Images | Stream, first: Images, own: Sequence[str], *, is_shard: bool
) -> _Tried:
    """Pass a few of the first images through the model, and complete the plan and the metadata.

    Args:
        classifier: the model.
        plan: the plan.
        source: the data.
        first: the first images.
        own: the model's own names of its classes, or none.
        is_shard: whether this is a shard of an audit.

    Raises:
        ClasswiseError: if the model does not accept the images, has other classes, does not fit into memory, or has no
            gradient and no attack works without.
    """
    one = first.batch(slice(0, 1))
    few = NARROWEST if one.x.shape[-2] * one.x.shape[-1] <= SMALL_PIXELS else 1
    whole = small = plan.engine(classifier, few)
    few_images = first.batch(slice(0, SMALLEST_BATCH)).x
    (logits, outputs_note), note = read_outputs(small, one, few_images), ""
    buffers = Buffers(classifier)  # without those that only the first pass changes
    check_one_output(classifier, logits, first)
    model = restricted(classifier, source, logits)
    if model is not classifier:
        small = plan.engine(model, few)
        note = f"predictions are restricted to the {first.num_classes} of {logits} classes that {source.name} has"
        logits = logits_on(small, one.x).shape[1]
    if empty := classes_note(source, first, logits):
        logger.warning("%s: %s", source.name, empty)
    names = class_names_for(source, first, logits, own)
    images = len(source) if isinstance(source, Images) else source.expected
    try:
        check_logits(whole.model, whole.predict(torch.split(few_images, whole.batch_size)))
        plan, precision_note = in_float32_if_needed(plan, model, one.x.to(small.device))
        if precision_note:
            small = plan.engine(model, few)
        applicable, no_gradient = split_suite(plan.suite, small, first.batch(slice(0, few)), plan.threat)
        require_applicable(applicable, plan.suite, no_gradient)
        if not (precision_note or no_gradient or is_shard):  # each shard could choose another precision
            timed = few_images[: SMALLEST_BATCH if few > 1 else NARROWEST].to(small.device)
            plan, precision_note = in_float32_if_faster(plan, model, timed, applicable.attacks.values(), images)
        fit = fitting_batch(model, one.x.to(small.device), plan.asked["batch_size"], images=images)
    except torch.OutOfMemoryError as error:
        raise ClasswiseError(
            f"the device has not enough memory for {few} images of shape {tuple(one.x.shape[1:])}; "
            "use smaller images, or another device"
        ) from error
    changed = changes_text(buffers.changed())
    changed_note = changed and f"{CHANGED_NOTE}by its own passes ({changed}), on whose order results depend"
    small_note = f"batch size {fit.batch_size}, limited by memory, is below {SMALLEST_BATCH}"
    notes = outputs_note, empty, precision_note, changed_note, small_note if fit.batch_size < SMALLEST_BATCH else ""
    plan = replace(plan, batch_size=fit.batch_size)
    taken = taken_columns(plan.suite.attacks)
    meta = Meta(
        class_names=names,
        attacks={CLEAN: None, **plan.suite.specs()},
        not_applicable=tuple(label for label in plan.suite.attacks if label not in applicable.attacks),
        families=plan.suite.families,
        groups={key: column.names for key, column in first.columns.items() if key not in taken},
        superclasses=source.superclasses if source.superclasses and len(source.superclasses) == len(names) else None,
        superclass_names=source.superclass_names,
        data=source.name,
        split=source.split,
        data_hash=source.fingerprint(),
        images=images,
        sizes=_sizes(first, len(names)) if isinstance(source, Images) else {},
        threat=str(plan.threat),
        norm=plan.threat.norm,
        notes=tuple(filter(None, notes)),
        settings=plan.settings(device_of(model)),
    )
    about = "; ".join(filter(None, (note, fit.note, *_step_notes(applicable.attacks, plan.threat))))
    return _Tried(model, replace(plan, suite=applicable), meta, no_gradient, about)


def _check_indices(index: Tensor) -> None:
    """Check that every image has an index of its own.

    Raises:
        ClasswiseError: if two images have the same.
    """
    indices, times = torch.unique(index, return_counts=True)
    if bool((times > 1).any()):
        most = times.argmax()
        raise ClasswiseError(f"image index {int(indices[most])} occurs {int(times[most])} times; it must be unique")


def _sizes(images: Images, classes: int) -> dict[str, tuple[int, ...]]:
    """Number of images of each class, and of each group of their columns."""
    ids = {"class": (images.y, classes)}
    ids |= {name: (column.ids, len(column.names)) for name, column in images.columns.items()}
    return {name: tuple(torch.bincount(labels.cpu(), minlength=size).tolist()) for name, (labels, size) in ids.items()}
