"""NAttack, a black-box attack: a natural evolution strategy over the distribution of adversarial perturbations.

Li, Li, Wang, Zhang and Gong, ICML 2019, with the constants of the published code.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from classwise.attacks import losses
from classwise.attacks.base import AveragedAttack
from classwise.attacks.engine import AttackInputs, State, expected, rows
from classwise.attacks.engine.rows import choose
from classwise.core.compute.precision import Forward
from classwise.core.settings.config import Count, Positive, configurable

TEST_EVERY = 10
"""Steps between two queries of the mean's image."""
_SHRINK = 1e-6


@configurable
class NAttack(AveragedAttack):
    """NAttack: maximise the expected reward of a Gaussian over perturbations in tanh space, under Linf.

    With w = atanh(2x - 1), the sampled images are 0.5 + 0.5 tanh(w + mu + sigma z), z ~ N(0, I), projected onto the
    ball. The reward is minus half the margin, clamped at margins of zero. The update of mu weights the samples by the
    z-scores of their rewards. A step takes ``samples`` queries. After every tenth step and the last one, the image of
    mu itself is queried; only that image can be a success. (The published code queries it before the first of ten
    steps, so never at the last mu.) A clean image that is misclassified counts as a success and takes no query.

    All images and samples are independent rows. A model pass contains as many samples of every image in the batch as
    fit in ``rows_per_pass`` rows, and at least one of each. Memory does not grow with ``samples``: apart from that
    pass, only two sums of the batch's size are stored.

    Args:
        steps: number of updates of mu.
        samples: number of samples per update.
        learning_rate: step along the estimated gradient.
        sigma: standard deviation of the Gaussian.
        rows_per_pass: maximum number of images in a model pass, unless the batch is larger. It does not change the
            random numbers.
        eot_iter: number of passes averaged for each query, for randomised models (expectation over transformation).

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
    eot_iter: Count = 1

    records = ("queries",)
    norms = ("Linf",)
    precise = "tf32"  # the gradient is estimated from small differences of margins

    @property
    def needs_reference(self) -> bool:
        """The clean logits show which images are misclassified without an attack."""
        return True

    @property
    def may_end_early(self) -> bool:
        """An image that is misclassified without attack takes one step."""
        return True

    @property
    def length(self) -> int:
        """Steps per start."""
        return self.steps

    def start(self, model: Forward, inputs: AttackInputs) -> State:
        """Draw the mean from 0.001 N(0, I); rows misclassified when clean are done."""
        del model
        mean = 0.001 * inputs.normal(tuple(inputs.x.shape[1:]))
        count = torch.zeros(len(inputs.x), dtype=torch.int64, device=inputs.x.device)
        wrong = _clean_margin(inputs) < 0
        return {
            "x": choose(wrong, inputs.x, _image(inputs, mean)),
            "mean": mean,
            "iteration": count,
            "queries": count.clone(),
            "done": wrong,
        }

    def step(self, model: Forward, inputs: AttackInputs, state: State) -> State:
        """Update the mean from new samples and query its image."""
        clean = _clean_margin(inputs)
        wrong = clean < 0
        with torch.no_grad():
            mean = state["mean"] + self.learning_rate * self._gradient(model, inputs, state)
            x = choose(wrong, inputs.x, _image(inputs, mean))
            _, margin = expected(model, x, lambda logits: losses.margin(logits, inputs.y), self.eot_iter)
        iteration = state["iteration"] + 1
        tested = (iteration % TEST_EVERY == 0) | (iteration >= self.steps)
        return {
            "x": x,
            "seen": x,
            "margin": torch.where(wrong, clean, torch.where(tested, margin, torch.inf)),
            "mean": mean,
            "iteration": iteration,
            "queries": state["queries"] + (self.samples * self.eot_iter + tested * self.eot_iter) * ~wrong,
            "done": wrong | (iteration >= self.steps),
        }

    def _gradient(self, model: Forward, inputs: AttackInputs, state: State) -> Tensor:
        """The estimated gradient: the mean of z-scored reward times z, divided by sigma; shaped like ``x``.

        sum (r_i - mean r) z_i = sum (r_i - b) z_i - (mean r - b) sum z_i for any b, so one pass over the samples
        suffices. Here b is the first sample's reward, which avoids cancellation. Samples are added one at a time, so
        the result does not depend, to the bit, on how many share a model pass.
        """
        count = len(inputs.x)
        at_once = min(max(self.rows_per_pass // count, 1), self.samples)
        repeated = torch.arange(count, device=inputs.x.device).repeat(at_once)
        base: Tensor | float = 0.0
        plain, weighted = torch.zeros_like(inputs.x), torch.zeros_like(inputs.x)
        rewards: list[Tensor] = []
        for first in range(0, self.samples, at_once):
            chosen = repeated[: count * (self.samples - first)]
            block = rows(inputs, chosen)
            number = first + torch.arange(len(chosen), device=chosen.device).div(count, rounding_mode="floor")
            counter = 1 + state["iteration"][chosen] * self.samples + number
            z = block.normal(tuple(inputs.x.shape[1:]), counter)
            sampled = _image(block, state["mean"][chosen] + self.sigma * z)
            _, hinge = expected(model, sampled, partial(_hinge, inputs=block), self.eot_iter)
            reward = -0.5 * hinge.view(-1, count)
            base = reward[0] if first == 0 else base
            rewards.append(reward - base)
            for advantage, sample in zip(rewards[-1], z.view(-1, *inputs.x.shape), strict=True):
                plain += sample
                weighted.addcmul_(sample, _column(advantage, sample))
        shifted = torch.cat(rewards)
        spread = shifted.std(0, correction=0) + 1e-7
        total = weighted - _column(shifted.mean(0), inputs.x) * plain
        return total / _column(spread * (self.samples * self.sigma), inputs.x)


def _image(inputs: AttackInputs, shift: Tensor) -> Tensor:
    """The image shifted by ``shift`` in tanh space, then projected onto its ball."""
    inner = torch.atanh((2 * inputs.x - 1) * (1 - _SHRINK))
    return inputs.threat.project(0.5 + 0.5 * torch.tanh(inner + shift), inputs.x)


def _hinge(logits: Tensor, inputs: AttackInputs) -> Tensor:
    """The margin, clamped below at zero; for rows with a target, max_{k != t} z_k - z_t, clamped likewise."""
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
