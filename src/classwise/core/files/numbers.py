"""The type of numbers in records that may be NaN or infinite."""

from __future__ import annotations

from typing import Annotated

import pydantic

from classwise.core.files.json_values import NOT_FINITE

Number = Annotated[
    float, pydantic.BeforeValidator(lambda value: NOT_FINITE.get(value, value) if isinstance(value, str) else value)
]
"""A number that is read back exactly from what `classwise.core.files.json_values.json_text` writes."""
