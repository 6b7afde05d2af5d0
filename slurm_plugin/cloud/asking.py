"""Questions that ``spotburst check`` puts to a cloud, and how a refusal of them is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slurm_plugin.cloud.refusals import CloudError
from slurm_plugin.errors import CloudUnavailable, NotPermitted


@contextmanager
def asking(provider: str, permission: str) -> Iterator[None]:
    """Inside, ``CloudError`` becomes ``NotPermitted`` or ``CloudUnavailable``. ``permission``: what the calls inside need."""
    try:
        yield
    except CloudError as error:
        if error.not_permitted:
            raise NotPermitted(f"{provider}: {error}", permission) from error
        raise CloudUnavailable(f"{provider}: {error}") from error
