"""All targets, by what they read."""

from __future__ import annotations

from tests.fuzz import of_clouds, of_disk, of_notices, of_programs, of_settings, of_slurm, of_store
from tests.fuzz.target import Target


def all_targets() -> list[Target]:
    """In the order of their turns."""
    return [
        *of_slurm.targets(),
        *of_settings.targets(),
        *of_notices.targets(),
        *of_programs.targets(),
        *of_store.targets(),
        *of_clouds.targets(),
        *of_disk.targets(),
    ]
