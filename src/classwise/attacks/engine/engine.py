"""The engine: runs an attack over a stream of images, on one model.

An attack may compute in bfloat16, so its adversarial examples are only candidates. An attack has succeeded on an image
if a float32 pass misclassifies the final image.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from classwise.attacks.engine.attack import Attack
from classwise.attacks.engine.decisions import Decision
from classwise.attacks.engine.graphed import GraphUse
from classwise.attacks.engine.passes import CountedForward, Passes, recordable
from classwise.attacks.engine.queue import BatchSizes, Queue
from classwise.attacks.engine.rows import Finished, Job
from classwise.attacks.engine.steps import StepsLeft
from classwise.core.compute.precision import EXACT, Precision
from classwise.core.compute.repeats import ONCE, Repeats
from classwise.core.compute.rng import seeded
from classwise.core.errors import ClasswiseError
from classwise.models.base import device_of
from classwise.models.modes import evaluating, frozen
from classwise.models.state import ModelState, changes_text
from classwise.threat.ball import Threat
from classwise.threat.text import Grid

logger = logging.getLogger(__name__)


class Engine:
    """Run attacks over streams of images.

    Args:
        model: a classifier that maps (N, C, H, W) in [0, 1] to logits (N, classes).
        precision: how the attack's gradients are computed; success is always decided in float32.
        batch_size: images on the device at once, fixed; results are bitwise reproducible only at one batch size of 32
            or more.
        early_stop: return the first verified adversarial example, else the iterate of lowest margin. False: return the
            last iterate.
        poll: steps between checks of which images have finished; by default 1 on a CPU, and elsewhere 4, or up to 32 in
            attacks of thousands of steps. It does not change results.
        seed: seed of all random numbers.
        repeats: the passes that decide whether an image is classified correctly, for models with random outputs.
        grid: ``"8bit"``: adversarial images are rounded to multiples of 1/255 inside the ball before success is
            decided; clean images must be such multiples.
        classes: the number of logits of each image; None: that of the first pass.

    Attributes:
        not_compiled: why passes were not compiled; empty if they were, or none was to be.

    Raises:
        ClasswiseError: if ``batch_size`` is less than 1, or CUDA graphs are required (``precision``) and impossible.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        precision: Precision = EXACT,
        batch_size: int = 128,
        early_stop: bool = True,
        poll: int | None = None,
        seed: int = 0,
        repeats: Repeats = ONCE,
        grid: Grid | None = None,
        classes: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ClasswiseError(
                f"batch_size = {batch_size}: must be at least 1, and at least 32 for reproducible results"
            )
        self.model = model
        precision = precision.on(device_of(model))
        self.passes = Passes(model, precision, batch_size, repeats, classes)
        self.device = self.passes.device
        self.batch_size = batch_size
        self.early_stop = early_stop
        self.poll = poll
        self.seed = seed
        self.grid = grid
        self.not_compiled = ""
        self._batch_sizes: dict[int, BatchSizes] = {}
        self._changes: dict[int, tuple[Attack, dict[str, None]]] = {}
        self._precision = precision
        self._graphs = GraphUse(precision, self.device)

    def predict(self, images: Iterable[Tensor]) -> Generator[Tensor]:
        """Yield float32 logits for each block of images, at the engine's batch size."""
        yield from self.passes.predict(images)

    def decide(self, x: Tensor, y: Tensor) -> Decision:
        """Decide whether images (N, C, H, W) are classified correctly, with the model in evaluation mode."""
        with evaluating(self.model), frozen(self.model):
            return self.passes.decide(x.to(self.device), y.to(self.device))

    def perturb(
        self,
        attacks: Iterable[Attack],
        x: Tensor,
        y: Tensor,
        threat: Threat,
        *,
        index: Tensor | None = None,
        target: Tensor | None = None,
    ) -> Tensor:
        """Attack one batch by attacks in cascade, each on the images that survive the previous ones.

        Returns:
            Images in the order of the batch: adversarial where one was found, else as the last attack returned it.
        """
        with torch.inference_mode(mode=False), evaluating(self.model):
            radius = threat.epsilon if isinstance(threat.epsilon, Tensor) else None
            columns = {name: column for name, column in (("target", target), ("epsilon", radius)) if column is not None}
            index = torch.arange(len(x)) if index is None else index
            result, rows = x.clone(), torch.arange(len(x))
            for attack in attacks:
                survivors = [rows[:0]]
                job = Job(index[rows], x[rows], y[rows], {name: column[rows] for name, column in columns.items()})
                for done in self.attack(attack, threat, [job], images=len(rows)):
                    attacked = rows[done.row.cpu()]
                    result[attacked.to(x.device)] = done.x.to(x.device)
                    survivors.append(attacked[~done.success.cpu()])
                rows = torch.cat(survivors).sort().values
            return result

    def attack(
        self,
        attack: Attack,
        threat: Threat,
        jobs: Iterable[Job],
        *,
        images: int | None = None,
        steps_left: StepsLeft | None = None,
    ) -> Generator[Finished]:
        """Attack a stream of images.

        Args:
            attack: the attack.
            threat: norm and radius; a job's ``epsilon`` column overrides the radius.
            jobs: the images; every job must have the same columns.
            images: their number, from which a GPU computes batches of equal size, unless its algorithms must be
                deterministic (``precision``).
            steps_left: estimates what is left, if the number of images is given.

        Yields:
            Blocks of images, in the order in which they finish.

        Raises:
            ClasswiseError: if the attack does not support the threat.
        """
        attack.supported(threat)
        jobs = (job for job in jobs if len(job.x))
        first = next(jobs, None)
        if first is None:
            return
        # Each smaller batch size is tested once per attack, over all its streams; none is compiled.
        rounded = self.device.type == "cuda" and not self._precision.deterministic
        batch_sizes = self._batch_sizes.setdefault(id(attack), BatchSizes(attack, rounded=rounded))
        compiling = self._precision.compiling(
            self.device,
            batch_sizes.slots(self.passes.batch_size, images),
            (images or 0) * attack.starts * attack.length,
            self._note_not_compiled,
        )
        with (
            self.passes.for_gradients(first.x, precise=attack.precise, compiling=compiling) as forward,
            self._restoring(attack, forward, first.x),
        ):
            forward.repeatable = attack.detects_cycles and self.passes.repeatable(forward, first.x)
            queue = Queue(
                self.passes,
                forward,
                attack,
                threat,
                seed=self.seed,
                poll=self.poll or self._usual_poll(attack),
                early_stop=self.early_stop,
                batch_sizes=batch_sizes,
                images=images,
                graphs=self._graphs,
                grid=self.grid,
                steps_left=steps_left,
            )
            yield from queue.run(itertools.chain([first], jobs))

    def _usual_poll(self, attack: Attack) -> int:
        return 1 if self.device.type == "cpu" else min(max(attack.length // 50, 4), 32)

    def _note_not_compiled(self, reason: str) -> None:
        self.not_compiled = reason

    def not_reduced(self, attack: Attack) -> str:
        """Why a GPU computed no smaller batches once few images were left; empty if it did, or none was tested."""
        sizes = self._batch_sizes.get(id(attack))
        return sizes.refused if sizes is not None and sizes.rounded else ""

    def not_graphed(self, attack: Attack) -> str:
        """Why the steps of an attack were not CUDA graphs; empty if they were, or no capture was tried."""
        return self._graphs.refused(attack)

    @contextmanager
    def forward_for(self, attack: Attack, images: Tensor) -> Iterator[CountedForward]:
        """Context of the attack's forward pass, in its arithmetic, with the model in evaluation mode and frozen.

        Args:
            attack: the attack.
            images: (N, C, H, W) with N >= 1, on which a fused copy of the model is verified.
        """
        with (
            self.passes.for_gradients(images, precise=attack.precise) as forward,
            self._restoring(attack, forward, images),
            forward.arithmetic(),
        ):
            yield forward

    @contextmanager
    def _restoring(self, attack: Attack, forward: CountedForward, images: Tensor) -> Iterator[None]:
        """Context of an attack that restores the model if the attack changes it: after each step, and at the end.

        On a GPU, attacks of several steps are compared in full at the end only; their steps must not wait for it.

        Args:
            attack: the attack; one of classwise changes no model.
            forward: its passes.
            images: (N, C, H, W) with N >= 1; the tensors that a pass of the first one changes are not compared.
        """
        if not attack.user_code:
            yield
            return
        state = ModelState(self.model)
        with seeded(0, self.device):
            state.ignore_changes_of(lambda: self.passes.once(recordable(images[:1])))
        full = self.device.type == "cpu" or attack.length == 1
        _, changes = self._changes.setdefault(id(attack), (attack, {}))

        def restore(*, values: bool = full) -> None:
            changes.update(dict.fromkeys(state.restore(values=values)))

        known, forward.restore = bool(changes), restore
        try:
            yield
        finally:
            restore(values=True)
            if changes and not known:
                logger.warning("%s changed the model (%s); it was restored", attack.user_code, changes_text(changes))

    def changes(self, attack: Attack) -> str:
        """What an attack has changed in the model, which was restored; empty for nothing."""
        return changes_text(self._changes.get(id(attack), (attack, {}))[1])
