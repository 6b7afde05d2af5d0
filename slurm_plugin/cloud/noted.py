"""What was asked of a cloud, on disk before it is asked (the clouds' journals)."""

from __future__ import annotations

import json
import os
from pathlib import Path

from job_wrapper.store import told
from slurm_plugin.errors import CloudUnavailable


def is_texts(value: object) -> bool:
    """Whether what was read is texts by text."""
    return isinstance(value, dict) and all(isinstance(each, str) for pair in value.items() for each in pair)


def is_moment(value: object) -> bool:
    """Whether what was read is a time in Unix seconds."""
    return told.seconds(value) is not None


def write_noted(place: Path, data: object) -> None:
    """``data`` as JSON in the file ``place``: the whole of it, and on disk when this returns. Raises ``CloudUnavailable`` where the disk fails."""
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8") as file:
            json.dump(data, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(place)
        folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise CloudUnavailable(f"{place.parent}: a launch can't be noted, so it is not made: {error}") from error
