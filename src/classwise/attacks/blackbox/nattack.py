"""NAttack: an evolution strategy that learns where around an image the adversarial ones lie. It asks for no gradient.

Li, Li, Wang, Zhang and Gong, ICML 2019, with the constants of the published code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import Attack
from classwise.attacks.engine import AttackInputs, State, rows
from classwise.core.config import Count, Positive, configurable
from classwise.core.errors import ClasswiseError
from classwise.core.precision import Forward

TEST_EVERY = 10
"""Steps from one query of the mean's own image to the next."""
_SHRINK = 1e-6


@configurable
class NAttack(Attack):
    """Climb the expected reward of a Gaussian over perturbations in tanh space, under Linf.

    With w = atanh(2x - 1), the images drawn are 0.5 + 0.5 tanh(w + mu + sigma z), z ~ N(0, I), moved into the ball. The
    reward is minus half the margin, where it is positive; mu goes along the rewards' z-scores. A step costs ``samples``
    queries; after every tenth step and the last, the image of mu itself is asked for one more. Only that one
    can count as a success. (The published code asks before the first step of each ten, so never about the last mu.)
    An image that is wrong as it is counts as broken and costs no query.

    All images and samples are independent rows. A pass of the model holds as many samples of every image of the batch
    as fit in ``rows_per_pass`` rows, and one of each at least. Beside that pass and two sums as large as the batch,
    nothing grows with ``samples``: draws are summed with their rewards as they come and not kept.

    Args:
        steps: updates of mu.
        samples: draws for an update.
        learning_rate: the step along the estimated gradient.
        sigma: the deviation of the Gaussian.
        rows_per_pass: the largest number of images in a pass, unless the batch itself is larger. It changes no draw.

    Raises:
        ClasswiseError: under L2 and L1.
    """

    source = ("li2019nattack",)
    example = "nattack:steps=50"

    steps: Count = 500
    samples: Count = 300
    learning_rate: Positive = 0.02
    sigma: Positive = 0.1
    rows_per_pass: Count = 256

    records = ("queries",)
    norms = ("Linf",)
    precise = True  # a step is learnt from small differences of margins

    @property
    def needs_reference(self) -> bool:
        """The clean logits tell which images are wrong already."""
        return True

    @property
    def length(self) -> int:
        """Steps of one start."""
        return self.steps

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """A mean of 0.001 N(0, I); rows that are wrong as they are have nothing left to do."""
        del model
        if inputs.threat.norm not in self.norms:
            raise ClasswiseError(f"attack 'nattack' has no {inputs.threat.norm} form; it knows Linf")
        mean = 0.001 * inputs.normal(tuple(inputs.x.shape[1:]))
        count = torch.zeros(len(inputs.x), dtype=torch.int64, device=inputs.x.device)
        wrong = _clean_margin(inputs) < 0
        return {
            "x": _where(wrong, inputs.x, _image(inputs, mean)),
            "mean": mean,
            "iteration": count,
            "queries": count.clone(),
            "done": wrong,
        }

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """One update from fresh samples, and one query of the mean's image."""
        clean = _clean_margin(inputs)
        wrong = clean < 0
        with torch.no_grad():
            mean = state["mean"] + self.learning_rate * self._gradient(model, inputs, state)
            x = _where(wrong, inputs.x, _image(inputs, mean))
            margin = losses.margin(model(x), inputs.y)
        iteration = state["iteration"] + 1
        tested = (iteration % TEST_EVERY == 0) | (iteration >= self.steps)
        return {
            "x": x,
            "seen": x,
            "margin": torch.where(wrong, clean, torch.where(tested, margin, torch.inf)),
            "mean": mean,
            "iteration": iteration,
            "queries": state["queries"] + (self.samples + tested.long()) * ~wrong,
            "done": wrong | (iteration >= self.steps),
        }

    def _gradient(self, model: Forward, inputs: AttackInputs, state: State) -> Tensor:
        """The z-scored rewards' mean of score times z, over sigma, shaped like ``x``.

        sum (r_i - mean r) z_i = sum (r_i - b) z_i - (mean r - b) sum z_i for any b, here the first sample's reward,
        which keeps the difference from cancelling. So one pass over the samples is enough. They are added one by one,
        so that the bits do not depend on how many share a pass of the model.
        """
        count = len(inputs.x)
        at_once = min(max(self.rows_per_pass // count, 1), self.samples)
        repeated = torch.arange(count, device=inputs.x.device).repeat(at_once)
        base: Tensor | float = 0.0
        plain, weighted = torch.zeros_like(inputs.x), torch.zeros_like(inputs.x)
        rewards: list[Tensor] = []
        for first in range(0, self.samples, at_once):
            which = repeated[: count * (self.samples - first)]
            block = rows(inputs, which)
            number = first + torch.arange(len(which), device=which.device).div(count, rounding_mode="floor")
            counter = 1 + state["iteration"][which] * self.samples + number
            z = block.normal(tuple(inputs.x.shape[1:]), counter)
            logits = model(_image(block, state["mean"][which] + self.sigma * z))
            reward = -0.5 * _hinge(logits, block).view(-1, count)
            base = reward[0] if first == 0 else base
            rewards.append(reward - base)
            for each, drawn in zip(rewards[-1], z.view(-1, *inputs.x.shape), strict=True):
                plain += drawn
                weighted.addcmul_(drawn, _column(each, drawn))
        shifted = torch.cat(rewards)
        spread = shifted.std(0, correction=0) + 1e-7
        total = weighted - _column(shifted.mean(0), inputs.x) * plain
        return total / _column(spread * (self.samples * self.sigma), inputs.x)


def _image(inputs: AttackInputs, shift: Tensor) -> Tensor:
    """The image moved by ``shift`` in tanh space, then into its ball."""
    inner = torch.atanh((2 * inputs.x - 1) * (1 - _SHRINK))
    return inputs.threat.project(0.5 + 0.5 * torch.tanh(inner + shift), inputs.x)


def _hinge(logits: Tensor, inputs: AttackInputs) -> Tensor:
    """The margin where it is positive; for rows with a target, the lead of the others over the target."""
    margin = losses.margin(logits, inputs.y)
    if inputs.target is not None:
        toward = losses.negative_margin(logits, inputs.target.clamp_min(0))
        margin = torch.where(inputs.target >= 0, toward, margin)
    return margin.clamp_min(0)


def _clean_margin(inputs: AttackInputs) -> Tensor:
    """The margin on the clean images, (N,)."""
    assert inputs.reference is not None
    return losses.margin(inputs.reference, inputs.y)


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1))


def _where(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(_column(mask, yes), yes, no)
