"""The setup of a run: checks of the folder and the settings, the data, the model, the batches and the first files."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from classwise.attacks.base import Attack
from classwise.attacks.gradient.ascent import step_size_problem, suitable_step
from classwise.core.compute.distributed import ProcessGroup
from classwise.core.compute.environment import continued, environment
from classwise.core.compute.rng import CounterRNG, seed_generators
from classwise.core.errors import ClasswiseError
from classwise.core.files.schema import SCHEMA_VERSIONS
from classwise.core.files.storage import ResultFolder, write_json, write_text
from classwise.core.settings.code_identity import CodeRecord, check_unchanged, without_empty
from classwise.data import Images, load_data, long_tailed, named_set, stratified_split
from classwise.data.duplicates import content_hashes
from classwise.models import build_model, load_model
from classwise.models.base import device_of
from classwise.models.loading.builder import options_for_size
from classwise.models.logits import AdjustedLogits
from classwise.models.provenance import model_facts
from classwise.models.structure import code_of
from classwise.models.weights import check_storable
from classwise.threat.ball import Threat, large_radius_text
from classwise.training import SCHEDULES
from classwise.training.averaging import EMA, FAWA
from classwise.training.batches import Batches, steps_of
from classwise.training.folder import Run
from classwise.training.objectives.adversarial import Standard
from classwise.training.recipe import Parts, Recipe
from classwise.training.recipe_settings import DataSettings
from classwise.training.selection import AtFraction, overall_plus_worst_fifth
from classwise.training.teacher import save_pseudo_labels

logger = logging.getLogger(__name__)

MOST_KEPT = 0.001
"""Weight of the first weights in an average above which a training states it; with 0.05, averages were at chance."""


def check_folder(run: Run, *, resume: bool) -> None:
    """Check that a run can be written into its folder.

    Raises:
        ClasswiseError: if it is a file, contains a run (unless ``resume``) or other files, or is not writable.
    """
    folder = ResultFolder(run.path, "run")
    folder.check("checkpoints/state.pt")
    if not folder.marker.is_file():
        # written before the recipe
        folder.check_unused((run.environment_file.name, "validation.json", run.pseudo_labels_file.name))
    elif not resume:
        raise ClasswiseError(f"{run.path} contains a run; add --resume to load or continue it, or use another folder")


def training_images(settings: DataSettings, *, download: bool = True) -> Images:
    """Load the training images of a recipe; a named data set that is not found is downloaded if allowed."""
    images = load_data(
        settings.name,
        split="train",
        root=settings.root,
        subset=settings.subset,
        seed=settings.subset_seed,
        download=download,
        **settings.options,
    )
    return images if settings.imbalance is None else long_tailed(images, settings.imbalance, settings.subset_seed)


def validation_images(settings: DataSettings, run: Run) -> Images:
    """Load the split of validation images that a recipe names.

    Raises:
        ClasswiseError: if the data have no such split, or the run was started with other images in it.
    """
    name = str(settings.validation)
    images = load_data(settings.name, split=name, root=settings.root, **settings.options)
    if run.environment_file.is_file() and run.data.get("validation") != images.fingerprint():
        raise ClasswiseError(f"{run.path} was validated on other images in the split {name!r}; restore them")
    return images


def default_threat(images: Images) -> Threat:
    """Return the usual threat model of a data set of the package.

    Raises:
        ClasswiseError: for other data.
    """
    known = named_set(images)
    if known is not None:
        return Threat.parse(known.threat)
    raise ClasswiseError(f"{images.name!r} has no default threat; set one, such as threat = 'Linf:8/255'")


def setup_notes(recipe: Recipe, images: Images, threat: Threat, *, resumed: bool) -> list[str]:
    """Return notes on settings that are valid but unusual, one line each.

    Args:
        recipe: the complete recipe.
        images: the training images.
        threat: the threat model of training.
        resumed: whether the run is resumed.
    """
    parts = recipe.parts
    steps = steps_per_epoch(recipe, images)
    notes = worst_fifth_notes(parts, images) + schedule_notes(recipe)
    notes += start_notes(recipe, steps) + averaging_notes(recipe, steps)
    if recipe.model.weights is None and not resumed:
        advice = "is designed to fine-tune a robust model; set its weights, as in --set model.weights=runs/at"
        notes += [f"{name!r} {advice}" for name in recipe.fine_tuning()]
    if not isinstance(parts.objective, Standard):
        attacks = {"attack": parts.attack, "validation_attack": parts.validation_attack}
        return notes + threat_notes(images, threat, attacks)
    if recipe.selection != "last" and not isinstance(parts.selection, AtFraction):
        notes.append(
            f"selection {recipe.selection!r} uses robust accuracy, near 0 for standard training; set selection = last"
        )
    return notes


def worst_fifth_notes(parts: Parts, images: Images) -> list[str]:
    """Return a note if the selection or FAWA uses the worst fifth of the classes instead of the worst class.

    Args:
        parts: the parts of the complete recipe.
        images: the training images.
    """
    averaging, users, limit = parts.averaging, [], ""
    if getattr(averaging, "worst", None) == "fifth":
        users.append("FAWA")
        if isinstance(averaging, FAWA):
            limit = f", threshold {averaging.threshold:g}" + " of the best so far" * (averaging.gate == "relative")
    if parts.selection is overall_plus_worst_fifth:
        users.append("the selection")
    if not users:
        return []
    classes = int((images.class_counts() > 0).sum())
    verb = "use" if len(users) > 1 else "uses"
    return [f"{classes} classes: {' and '.join(users)} {verb} the mean of the worst 20 % of classes{limit}"]


def start_notes(recipe: Recipe, steps: int) -> list[str]:
    """Return a note for each part whose ``start_fraction`` no epoch or step of the training reaches.

    Args:
        recipe: the complete recipe.
        steps: number of steps of an epoch.
    """
    parts, notes = recipe.parts, []
    for field in ("objective", "update", "averaging"):
        start = getattr(getattr(parts, field), "start_fraction", 0.0)
        by_epoch = field == "averaging" and not parts.averaging.averages_steps
        last = 1 - (1 if by_epoch else 0.5 / max(1, steps)) / recipe.epochs
        if start > last:
            unit = "epoch" if by_epoch else "step"
            notes.append(
                f"{field} does not begin: start_fraction is {start:.4g}, and the last {unit} is at {last:.4g} of the "
                f"training; set {field}.start_fraction, or train longer"
            )
    return notes


def averaging_notes(recipe: Recipe, steps: int) -> list[str]:
    """Return a note on an average over steps that keeps much of the weights that it begins with.

    Args:
        recipe: the complete recipe.
        steps: number of steps of an epoch.
    """
    average = recipe.parts.averaging
    if not isinstance(average, EMA) or average.every != "step":
        return []
    averaged = recipe.epochs * (1 - average.start_fraction) * steps
    kept = average.decay**averaged
    if kept <= MOST_KEPT or averaged < 1:
        return []
    highest = math.floor(1e4 * MOST_KEPT ** (1 / averaged)) / 1e4
    note = (
        f"after about {averaged:.0f} steps the average still has {100 * kept:.2g} % of the weights that it began with, "
        "so it may be far less accurate than the last weights; train longer, or set averaging.decay to at most "
    )
    return [f"{note}{highest}"]


def schedule_notes(recipe: Recipe) -> list[str]:
    """Return a note for each schedule that does not begin, or does not end, in the epochs of the training."""
    notes = []
    for number, schedule in enumerate(recipe.parts.schedules):
        name = SCHEDULES.name_of(type(schedule))
        epochs, start = getattr(schedule, "epochs", 0), getattr(schedule, "start_epoch", 0)
        for field, too_late, what in (
            ("epochs", isinstance(epochs, int) and epochs > recipe.epochs, f"changes over {epochs} epochs"),
            ("start_epoch", start >= recipe.epochs, f"begins after {start} epochs"),
        ):
            if too_late:
                notes.append(
                    f"schedule {name!r} {what}, and the training has {recipe.epochs}; set schedules.{number}.{field}"
                )
    return notes


def threat_notes(images: Images, threat: Threat, attacks: Mapping[str, Attack]) -> list[str]:
    """Return notes on unusual radii and on step sizes that do not suit the radius, one line each.

    Args:
        images: the training images.
        threat: the threat model of training.
        attacks: the attacks of training and validation, by recipe field.
    """
    assert isinstance(threat.epsilon, float)
    known, notes = named_set(images), []
    if large := large_radius_text(threat, images.shape):
        notes.append(large)
    elif known is not None and Threat.parse(known.threat) != threat:
        notes.append(
            f"the threat is {threat}; the usual one for {images.name} is {known.threat} (--set threat={known.threat})"
        )
    for field, attack in attacks.items():
        if problem := step_size_problem(attack, threat.epsilon):
            notes.append(f"{field}: {problem}; set {field}.step_size={suitable_step(attack)}")
    return notes


def check_resumable(run: Run, recipe: Recipe, images: Images, processes: ProcessGroup) -> None:
    """Check that a resumed run has the same recipe and the same data.

    Raises:
        ClasswiseError: if they differ.
    """
    if run.recipe.digest() != recipe.digest():
        before, now = dataclasses.asdict(run.recipe), dataclasses.asdict(recipe)
        field = next(key for key in now if _decides(key, run.recipe, recipe))
        suggestion = "use the same recipe, or another folder"
        if field == "batch_size":
            each, rest = divmod(before[field], processes.world_size)
            if processes.world_size > 1 and not rest:
                suggestion += f"; for {processes.world_size} processes, --set batch_size={each}"
        raise ClasswiseError(
            f"{run.path} was started with another recipe: {field} was {json.dumps(before[field])}, "
            f"now {json.dumps(now[field])}; {suggestion}"
        )
    if run.environment_file.is_file() and run.data["fingerprint"] != images.fingerprint():
        raise ClasswiseError(f"{run.path} was started with other images; use another folder")


def _decides(field: str, before: Recipe, now: Recipe) -> bool:
    """Whether a field of another recipe changes the digest of a recipe."""
    return dataclasses.replace(now, **{field: getattr(before, field)}).digest() != now.digest()


def code_of_run(recipe: Recipe, model: nn.Module, teacher: nn.Module | None = None) -> dict[str, dict[str, str]]:
    """Digests of the user's code of a run's model, teacher and parts; empty for parts without code of the user."""
    parts = dict[str, object]()
    for field in dataclasses.fields(recipe.parts):
        value = getattr(recipe.parts, field.name)
        numbered = enumerate(value) if field.name == "schedules" else ()
        parts |= {f"{field.name}.{number}": part for number, part in numbered} or {field.name: value}
    return code_of(model, **parts, **({} if teacher is None else {"teacher": teacher}))


def check_code(run: Run, code: CodeRecord) -> None:
    """Compare the code that a resumed run records with the present code; log a warning if it is finished.

    Raises:
        ClasswiseError: naming what has changed, if the run is not finished.
    """
    if not run.environment_file.is_file():
        return
    finished = run.complete and run.best_epoch() is not None
    if warning := check_unchanged(run.environment.get("code"), code, run.path, finished=finished):
        logger.warning("%s", warning)


def split_rows(recipe: Recipe, images: Images) -> tuple[Tensor, Tensor]:
    """Return the rows of the training and of the held-out images, int64, by the recipe's fraction and seed.

    Splits of the same images and seed are nested: a smaller fraction holds out a subset of a larger one. None is held
    out if the recipe names a split of validation images.
    """
    share = recipe.data.validation
    if isinstance(share, str) or share == 0:
        return torch.arange(len(images)), torch.arange(0)
    return stratified_split(images.y.cpu(), share, recipe.seed, class_names=images.class_names)


def split_images(recipe: Recipe, images: Images, run: Run, device: torch.device) -> tuple[Images, Images | None]:
    """Return the training and the validation images, on the device; see `split_rows` and `validation_images`.

    Raises:
        ClasswiseError: as `validation_images`, or if the named split has other classes or shapes than the training
            images, or only images of them.
    """
    if recipe.data.validation == 0:
        return images.to(device), None
    if not isinstance(recipe.data.validation, str):
        train, valid = split_rows(recipe, images)
        return images.take(train).to(device), images.take(valid).to(device)
    other, where = validation_images(recipe.data, run), f"data.validation = {recipe.data.validation!r}"
    for what in ("class_names", "shape"):
        here, there = getattr(other, what), getattr(images, what)
        if here != there:
            raise ClasswiseError(f"{where}: {what} = {here}, and {there} of the training images")
    hashes, known = (set(content_hashes(part.x, part.y).tolist()) for part in (other, images))
    if hashes <= known:
        raise ClasswiseError(f"{where}: all images are training images; the data need a split of that name")
    if seen := len(hashes & known):
        logger.warning("%s: %d of the %d images are training images", where, seen, len(other))
    return images.to(device), other.to(device)


def steps_per_epoch(recipe: Recipe, images: Images) -> int:
    """Return the number of steps of an epoch, given the training images before the validation split."""
    extra = recipe.data.unlabelled
    labelled = recipe.batch_size - (0 if extra is None else extra.of(recipe.batch_size))
    return steps_of(len(split_rows(recipe, images)[0]), labelled)


def build_batches(recipe: Recipe, images: Images, extra: Images | None, rng: CounterRNG) -> Batches:
    """Build the batches of a run.

    Args:
        recipe: the complete recipe.
        images: the training split, on the device.
        extra: the pseudo-labelled images, or None.
        rng: the random numbers of the run.
    """
    parts, settings = recipe.parts, recipe.data.unlabelled
    assert parts.threat is not None
    unlabelled = 0 if settings is None else settings.of(recipe.batch_size)
    extra = None if extra is None else extra.to(images.device)
    labelled = recipe.batch_size - unlabelled
    return Batches(images, extra, labelled, unlabelled, parts.augment, parts.threat, rng)


def initial_model(recipe: Recipe, images: Images, run: Run, processes: ProcessGroup, device: torch.device) -> nn.Module:
    """Build the model before the first step: ``model.weights``, or random weights with the recipe's seed."""
    seed_generators(recipe.seed, device)
    model = build_model(**model_spec(recipe, images))
    weights = recipe.model.weights
    if weights is not None and not run.state_file.is_file():
        model = load_model(model, weights=weights)
        if isinstance(model, AdjustedLogits):
            raise ClasswiseError(
                f"model.weights {weights}: has a logit adjustment, which fits these weights only; start from those "
                "that were adjusted, and adjust the trained model again"
            )
    if recipe.model.sync_batch_norm and processes.world_size > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model, processes.group(device))  # type: ignore[no-untyped-call]
    check_storable(model.state_dict())
    recipe.precision.prepare(model)
    return model.to(device)


def model_spec(recipe: Recipe, images: Images) -> dict[str, Any]:
    """Return the arguments of `build_model`: the recipe's model, and the shape, classes and statistics of the data."""
    settings = recipe.model
    mean, std = data_constants(images) if settings.normalization in ("auto", "data") else (None, None)
    if settings.mean is not None and settings.std is not None:
        mean, std = list(settings.mean), list(settings.std)
    return {**network_spec(recipe, images), "mean": mean, "std": std}


def network_spec(recipe: Recipe, images: Images) -> dict[str, Any]:
    """Return the arguments of `build_model` without the normalisation."""
    for key in recipe.model.options:
        if key in ("name", "num_classes", "in_channels", "width", "mean", "std"):
            where = f"set model.{key}" if key in ("name", "width", "mean", "std") else "the data set it"
            raise ClasswiseError(f"model.options must not contain {key!r}; {where}")
    return {
        "name": recipe.model.name,
        "num_classes": images.num_classes,
        "in_channels": images.shape[0],
        "width": recipe.model.width,
        **options_for_size(recipe.model.name, images.shape),
        **recipe.model.options,
    }


def data_constants(images: Images) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation per channel: of a named set, or of at most 10,000 evenly spaced images."""
    known = named_set(images)
    if known is not None:
        return list(known.mean), list(known.std)
    part = images.pixels(torch.arange(0, len(images), -(-len(images) // 10_000))).cpu()  # folders are sorted by class
    std = part.std((0, 2, 3)).clamp_min(1e-3)
    return [round(value, 4) for value in part.mean((0, 2, 3)).tolist()], [round(value, 4) for value in std.tolist()]


def environment_of(model: nn.Module, processes: int) -> dict[str, Any]:
    """Return the environment of a run: command, versions, machine, initial weights, normalisation and processes."""
    several = {"processes": processes} if processes > 1 else {}
    return {**environment(device_of(model)), **model_facts(model), **several}


def note_resumed(run: Run, model: nn.Module, processes: int) -> None:
    """Note in the environment of an unfinished run that this process continues it."""
    if not run.complete:
        run.note_environment(**continued(run.environment, environment_of(model, processes)))


def write_first_files(
    run: Run,
    recipe: Recipe,
    batches: Batches,
    valid: Images | None,
    fingerprint: str,
    model: nn.Module,
    teacher: nn.Module | None,
    processes: int,
) -> None:
    """Write the environment, the validation split, the pseudo-labels and the recipe into a new run folder.

    Args:
        run: the run folder.
        recipe: the complete recipe; it is written last, since it marks the folder as a run.
        batches: the batches of the run.
        valid: the validation images, or None.
        fingerprint: the hash of the data before the split.
        model: the initial model.
        teacher: the teacher, or None.
        processes: the number of processes.
    """
    train, extra = batches.images, batches.extra
    splits = {"train": train} if valid is None else {"train": train, "valid": valid}
    data: dict[str, Any] = {
        "name": train.name,
        "fingerprint": fingerprint,
        "classes": list(train.class_names),
        "counts": {name: split.class_counts().tolist() for name, split in splits.items()},
    }
    if valid is not None and isinstance(recipe.data.validation, str):
        data["validation"] = valid.fingerprint()
    if extra is not None:
        data["unlabelled"] = {"name": extra.name, "counts": extra.class_counts().tolist()}
    facts = {"code": without_empty(code_of_run(recipe, model, teacher)), "data": data}
    content = {"schema_version": SCHEMA_VERSIONS["run"], **environment_of(model, processes), **facts}
    write_json(run.environment_file, content, indent=2, checksum=True)
    held_out = [] if valid is None or "validation" in data else valid.index.tolist()
    write_json(run.path / "validation.json", {"index": held_out}, checksum=True)
    if extra is not None:
        save_pseudo_labels(run, extra)
    write_text(run.recipe_file, recipe.yaml(), checksum=True)
