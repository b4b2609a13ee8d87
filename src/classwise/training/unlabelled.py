"""Robust self-training (Carmon et al., NeurIPS 2019): unlabelled images join the batches under a teacher's labels."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from classwise.attacks.engine import Engine
from classwise.data import Images, load_data
from classwise.errors import UserError
from classwise.models import load_model
from classwise.storage import read_json, write_text
from classwise.training.folder import Run
from classwise.training.recipe import Recipe


def pseudo_labelled(
    recipe: Recipe, images: Images, run: Run, device: str, given: Images | None = None
) -> Images | None:
    """The recipe's unlabelled images with the labels that its teacher gives them; None where the recipe has none.

    A run that has begun keeps the labels that it began with, in its folder.

    Args:
        recipe: what to read, and who the teacher is.
        images: the labelled images, whose shape and classes hold.
        run: the run's folder.
        device: where the teacher runs.
        given: the images, in place of reading those that the recipe names.

    Raises:
        UserError: for images of another shape, a teacher that cannot be read or does not fit, or a run that began on
            other unlabelled images.
    """
    wanted = recipe.data.unlabelled
    if wanted is None:
        if given is not None:
            raise UserError("unlabelled images are given, and the recipe has no teacher; set data.unlabelled as in rst")
        return None
    begun = run.pseudo_labels_file.is_file()
    teacher = None if begun else load_model(wanted.teacher, data=images, device=device)
    found = given or load_data(
        wanted.name,
        split=wanted.split,
        root=recipe.data.root,
        subset=wanted.subset,
        seed=wanted.subset_seed,
        **wanted.options,
    )
    if found.shape != images.shape:
        here, there = ("x".join(str(side) for side in each.shape) for each in (found, images))
        raise UserError(
            f"unlabelled images of {found.name!r} are {here}, those of {images.name!r} {there}; resize them"
        )
    if teacher is None:
        labels = _kept(run, found)
    else:
        engine = Engine(teacher, compute=recipe.compute, batch=max(32, recipe.batch_size))
        outputs = engine.predict(batch.x for batch in found.batches(engine.batch))
        labels = torch.cat([logits.argmax(1) for logits in outputs]).cpu()
    return Images(found.x, labels, images.class_names, found.name, found.split)


def keep(run: Run, extra: Images) -> None:
    """Write the labels down, so that a resumed run needs no teacher."""
    content = {"images": _fingerprint(extra), "labels": extra.y.tolist()}
    write_text(run.pseudo_labels_file, json.dumps(content) + "\n", checksum=True)


def _kept(run: Run, found: Images) -> Tensor:
    content = read_json(run.pseudo_labels_file, keys={"images": str, "labels": list})
    if content["images"] != _fingerprint(found):
        raise UserError(f"{run.path} was begun on other unlabelled images than these; give another folder")
    return torch.tensor(content["labels"], dtype=torch.int64)


def _fingerprint(images: Images) -> str:
    """The hash of the pixels, whatever the labels and names of the classes are."""
    return Images(images.x, torch.zeros_like(images.y), ["any"]).fingerprint()


def appended(images: Images, extra: Images) -> Images:
    """The labelled images, then the others, whose numbers go on where the former's end."""
    same = images.x.dtype == extra.x.dtype
    x = torch.cat([images.x, extra.x] if same else [images.pixels(), extra.pixels()])
    number = torch.cat([images.index, int(images.index.max()) + 1 + torch.arange(len(extra), device=images.device)])
    return Images(x, torch.cat([images.y, extra.y]), images.class_names, images.name, images.split, index=number)
