"""Kinds of values in burst.yaml."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(value: Any) -> Any:
    """``"30s"``, ``"10m"``, ``"1.5h"``, ``"1d"`` or a number of seconds, to seconds."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", value)
        if not match:
            raise ValueError(f"{value!r} is not a duration: write a number with s, m, h or d, such as 30s or 10m")
        return float(match[1]) * _UNITS[match[2] or "s"]
    return value


Duration = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, allow_inf_nan=False)]
"""Seconds; in the file ``30s``, ``10m``, ``1h``, ``1d`` or a number."""
Period = Annotated[Duration, Field(gt=0)]
"""The same for what is done again and again: never without a pause."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=63)]


class Model(BaseModel):
    """Unknown keys are errors; values never change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
