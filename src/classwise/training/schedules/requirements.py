"""What a schedule requires of the other parts of a recipe."""

from __future__ import annotations

from classwise.core.errors import ClasswiseError
from classwise.training.classes import OPTIONAL
from classwise.training.objectives.base import Objective
from classwise.training.schedules.base import ClassSchedule


def check_schedule(name: str, schedule: ClassSchedule, objective: Objective, validation: float) -> None:
    """Check that the objective and the data have what a schedule sets and reads.

    Args:
        name: the name of the schedule, for the error.
        schedule: the schedule.
        objective: the objective of the recipe.
        validation: the fraction of the validation split.

    Raises:
        ClasswiseError: if they do not.
    """
    if schedule.needs_beta and not objective.regularised:
        raise ClasswiseError(f"schedule {name!r} sets beta, which this objective does not have; use trades")
    if schedule.needs_temperature and not objective.tempered:
        raise ClasswiseError(
            f"schedule {name!r} sets temperatures of a teacher's soft labels, which this objective does not have; "
            "use rslad"
        )
    if missing := sorted(schedule.reads & OPTIONAL - objective.measures):
        raise ClasswiseError(
            f"schedule {name!r} reads {missing[0]}, which this objective does not measure; use ard or rslad"
        )
    if schedule.divides_by_beta and objective.divides_by_beta:
        raise ClasswiseError(
            f"schedule {name!r} divides the loss by 1 + beta, and so does objective.scaled = true; set it to false"
        )
    if schedule.weighted_terms and not schedule.weighted_terms & objective.weighted_terms:
        raise ClasswiseError(
            f"schedule {name!r} sets weights of the term {' and '.join(sorted(schedule.weighted_terms))}, but this "
            f"objective has the term {' and '.join(sorted(objective.weighted_terms))} only"
        )
    held_out = sorted(signal for signal in schedule.reads if signal.startswith("valid."))
    if held_out and validation == 0:
        raise ClasswiseError(
            f"schedule {name!r} reads {held_out[0]}, which needs a validation split; set data.validation = 0.02"
        )
