"""Questions that ``spotburst check`` puts to Compute Engine, and how a refusal of them is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slurm_plugin.cloud.gcp.errors import THROTTLES, ApiError
from slurm_plugin.errors import CloudUnavailable, NotPermitted


@contextmanager
def asking(provider: str, permission: str) -> Iterator[None]:
    """Inside, ``ApiError`` becomes ``NotPermitted`` or ``CloudUnavailable``. ``permission``: what the calls inside need."""
    try:
        yield
    except ApiError as error:
        if error.status == 403 and error.code not in THROTTLES:
            raise NotPermitted(f"{provider}: {error}", permission) from error
        raise CloudUnavailable(f"{provider}: {error}") from error
