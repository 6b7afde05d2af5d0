"""Kinds of values in burst.yaml."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WrapValidator

from job_wrapper.durations import seconds_of
from job_wrapper.interval import LONGEST


def parse_duration(value: Any) -> Any:
    """A text to seconds (``seconds_of``); a number is seconds already, and anything else is left for pydantic to refuse."""
    return seconds_of(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, allow_inf_nan=False)]
"""Seconds; in the file ``30s``, ``10m``, ``1h``, ``1d`` or a number."""
Period = Annotated[Duration, Field(gt=0)]
"""The same for what is done again and again: never without a pause."""
Interval = Annotated[
    Period, Field(le=LONGEST), WrapValidator(lambda value, read: 0.0 if value == "auto" else read(value))
]
"""Seconds between checkpoints, at most 6 h; 0 for ``auto``."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=63)]


class Model(BaseModel):
    """Unknown keys are errors; values never change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
