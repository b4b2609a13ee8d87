"""Robust self-training (Carmon et al., NeurIPS 2019): unlabelled images with pseudo-labels of a teacher."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from classwise.attacks.engine import Engine
from classwise.core.errors import ClasswiseError
from classwise.core.files.storage import read_json, write_text
from classwise.data import Images, load_data
from classwise.models import load_model
from classwise.training.folder import Run
from classwise.training.recipe import Recipe


def pseudo_labelled(
    recipe: Recipe, images: Images, run: Run, device: str, given: Images | None = None
) -> Images | None:
    """Label the unlabelled images of a recipe by its teacher; None if the recipe has no unlabelled images.

    A resumed run reads the pseudo-labels from its folder.

    Args:
        recipe: the recipe, with unlabelled images and a teacher.
        images: the labelled images, which define the shape and the classes.
        run: the run folder.
        device: the device of the teacher.
        given: unlabelled images to use instead of the recipe's.

    Raises:
        ClasswiseError: if the images have another shape, the teacher cannot be loaded or does not fit, or the run was
            started with other unlabelled images.
    """
    settings = recipe.data.unlabelled
    if settings is None:
        if given is not None:
            raise ClasswiseError(
                "unlabelled images need a recipe with data.unlabelled, such as rst; this recipe has no teacher"
            )
        return None
    resumed = run.pseudo_labels_file.is_file()
    teacher = None if resumed else load_model(settings.teacher, data=images, device=device)
    unlabelled = given or load_data(
        settings.name,
        split=settings.split,
        root=recipe.data.root,
        subset=settings.subset,
        seed=settings.subset_seed,
        **settings.options,
    )
    if unlabelled.shape != images.shape:
        here, there = ("x".join(str(side) for side in tensor.shape) for tensor in (unlabelled, images))
        raise ClasswiseError(
            f"unlabelled images of {unlabelled.name!r} have shape {here}, expected {there} as {images.name!r}"
        )
    if teacher is None:
        labels = _load_labels(run, unlabelled)
    else:
        engine = Engine(teacher, precision=recipe.precision, batch_size=max(32, recipe.batch_size))
        outputs = engine.predict(batch.x for batch in unlabelled.batches(engine.batch_size))
        labels = torch.cat([logits.argmax(1) for logits in outputs]).cpu()
    return Images(unlabelled.x, labels, images.class_names, unlabelled.name, unlabelled.split)


def save_pseudo_labels(run: Run, images: Images) -> None:
    """Save the pseudo-labels in the run folder, so that a resumed run does not need the teacher."""
    content = {"images": _fingerprint(images), "labels": images.y.tolist()}
    write_text(run.pseudo_labels_file, json.dumps(content) + "\n", checksum=True)


def _load_labels(run: Run, unlabelled: Images) -> Tensor:
    content = read_json(run.pseudo_labels_file, keys={"images": str, "labels": list})
    if content["images"] != _fingerprint(unlabelled):
        raise ClasswiseError(f"{run.path} was started with other unlabelled images; use another folder")
    return torch.tensor(content["labels"], dtype=torch.int64)


def _fingerprint(images: Images) -> str:
    """Return the hash of the pixels, independent of labels and class names."""
    return Images(images.x, torch.zeros_like(images.y), ["any"]).fingerprint()


def concatenated(images: Images, extra: Images) -> Images:
    """Concatenate the labelled images and the others, whose indices follow those of the labelled images."""
    same = images.x.dtype == extra.x.dtype
    x = torch.cat([images.x, extra.x] if same else [images.pixels(), extra.pixels()])
    index = torch.cat([images.index, int(images.index.max()) + 1 + torch.arange(len(extra), device=images.device)])
    return Images(x, torch.cat([images.y, extra.y]), images.class_names, images.name, images.split, index=index)
