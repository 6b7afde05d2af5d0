"""Questions that ``spotburst check`` puts to a cloud, and how a refusal of them is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from slurm_plugin.cloud.refusals import CloudError
from slurm_plugin.errors import CloudUnavailable, NotPermitted

_Answer = TypeVar("_Answer")


@contextmanager
def asking(provider: str, permission: str) -> Iterator[None]:
    """Inside, ``CloudError`` becomes ``NotPermitted`` or ``CloudUnavailable``. ``permission``: what the calls inside need."""
    try:
        yield
    except CloudError as error:
        if error.not_permitted:
            raise NotPermitted(f"{provider}: {error}", permission) from error
        raise CloudUnavailable(f"{provider}: {error}") from error


def readable(provider: str, ask: Callable[[], _Answer]) -> _Answer:
    """The answer. Raises ``CloudUnavailable``, also for one that is in no shape that the cloud's answers have."""
    try:
        return ask()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CloudUnavailable(f"{provider}: an answer can't be read: {type(error).__name__}: {error}") from error
