"""Rescale the rows of the last layer to one norm: iclr21's guideline to balance them."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from classwise.core.errors import ClasswiseError
from classwise.models import save_weights
from classwise.models.base import Classifier, bare
from classwise.training.folder import Run, Which
from classwise.training.posthoc.validation import chosen_weights


def equalise_norms(run: Run, which: Which | None = None) -> Path:
    """Rescale every row of the last layer to the mean of their norms, and save the model beside the run's others.

    The biases stay. Nothing is trained, and the features are those of the run. The file is
    ``checkpoints/equal-norms.safetensors``; written again, it has the same bytes.

    Args:
        run: whose model.
        which: of its saved models; None for `Run.default_weights`.

    Raises:
        ClasswiseError: if the run does not hold these weights, or the model's last layer is not known or has a row of
            zeros.
    """
    which = chosen_weights(run, which)
    model = copy.deepcopy(run.model(which))
    network = bare(model)
    layer = network.classifier if isinstance(network, Classifier) else None
    if not isinstance(layer, nn.Linear):
        raise ClasswiseError(f"{type(network).__name__} has no last linear layer to rescale; use a model of the zoo")
    norms = layer.weight.detach().norm(dim=1, keepdim=True)
    if not bool((norms > 0).all()):
        raise ClasswiseError(f"{run.path}: a row of the last layer is zero and has no direction; train for longer")
    with torch.no_grad():
        layer.weight.mul_(norms.mean() / norms)
    path = run.weights_file("equal-norms")
    save_weights(path, model, {"recipe": run.recipe.name, "equal_norms_of": which})
    return path
