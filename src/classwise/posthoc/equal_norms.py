"""Equal norms of the class weights of the last layer (a guideline of the ICLR 2021 submission of Tian et al.)."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from classwise.core.errors import ClasswiseError
from classwise.models import save_weights
from classwise.models.base import last_linear
from classwise.training.folder import Run, Which


def equalise_norms(run: Run, which: Which | None = None) -> Path:
    """Rescale every row of the last layer to the mean norm, and save the model in the run folder.

    The biases and features are unchanged, and nothing is trained. The file is
    ``checkpoints/equal-norms.safetensors``; it is reproducible byte for byte.

    Args:
        run: the run.
        which: the saved weights to use; None for `Run.default_weights`.

    Returns:
        The path of the file.

    Raises:
        ClasswiseError: if the run does not have these weights, or the last linear layer of the model is unknown, is
            no layer of the classes, or has a zero row.
    """
    which = run.chosen_weights(which)
    model = copy.deepcopy(run.model(which))
    layer, classes = last_linear(model), len(run.data["classes"])
    if layer.out_features != classes:
        raise ClasswiseError(
            f"the last linear layer has {layer.out_features} outputs; expected {classes}, the classes of the run"
        )
    norms = layer.weight.detach().norm(dim=1, keepdim=True)
    if not bool((norms > 0).all()):
        raise ClasswiseError(f"{run.path}: a row of the last layer is zero and cannot be rescaled; train for longer")
    with torch.no_grad():
        layer.weight.mul_(norms.mean() / norms)
    path = run.weights_file("equal-norms")
    save_weights(path, model, {"recipe": run.recipe.name, "equal_norms_of": which})
    return path
