"""Launch ids: UUIDs, which every cloud takes as its idempotency token. Those asked for together differ in their last four hex digits only.

So a cloud that makes many machines in one call derives that call's token from any member, and a machine's own id from the call's token and
its number in it: a retry after a crash, and a listing after the loss of all else, find the same machines.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TypeVar

LARGEST_BATCH = 500
"""Launches of one batch, unless a gang is larger."""
_Item = TypeVar("_Item")


def batch(count: int) -> list[str]:
    """Fresh ids of one batch, in order. At most 65,536."""
    if not 0 <= count <= 0x10000:
        raise ValueError(f"{count} launches can't be one batch: at most 65536")
    base = str(uuid.uuid4())
    return [of(base, index) for index in range(count)]


def base_of(launch_id: str) -> str:
    """The batch that it belongs to: the same UUID with number 0."""
    return of(launch_id, 0)


def index_of(launch_id: str) -> int:
    """Its number in the batch. Raises ``ValueError`` for what is no launch id."""
    return int(str(uuid.UUID(launch_id))[-4:], 16)


def of(base: str, index: int) -> str:
    """The id of a batch's member. Raises ``ValueError`` for what is no launch id."""
    return f"{str(uuid.UUID(base))[:-4]}{index:04x}"


def chunks(items: Iterable[_Item], size: int = LARGEST_BATCH) -> list[list[_Item]]:
    """In pieces of at most ``size``, in order."""
    all_of_them = list(items)
    return [all_of_them[start : start + size] for start in range(0, len(all_of_them), size)]
