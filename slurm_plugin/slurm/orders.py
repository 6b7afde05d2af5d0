"""What orders to Slurm have in common, whichever client gives them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice

from slurm_plugin.errors import SlurmRefused
from slurm_plugin.slurm.hostlist import fold

NODES_A_CALL = 500
"""Nodes in one update: a hostlist that won't fold must still fit into one argument of a command (128 KiB)."""
COMMENT_BYTES = 1024
"""Longest comment of a job (22.05.8 and 24.11.5 refuse one a little longer)."""
_JOB_ID = re.compile(r"\d+(_(\d+|\[[\d,%:-]+\]))?(\+\d+)?")


def in_batches(names: Iterable[str], tell: Callable[[str], object]) -> None:
    """``tell`` a hostlist of many nodes at a time; nothing for no nodes.

    A refusal of one node stays its own (22.05.8, 24.11.5): after "Invalid node state specified" Slurm has changed the others of the
    call; after "Invalid node name specified" it has changed none, so each is then told by itself. ``SlurmRefused`` comes at the end
    and does not tell which nodes were refused in the first case: look at the nodes again.
    """
    pending = iter(dict.fromkeys(names))
    refusals: list[SlurmRefused] = []
    while batch := list(islice(pending, NODES_A_CALL)):
        refusals += _tell(batch, tell)
    if refusals:
        raise SlurmRefused("\n".join(map(str, refusals)))


def _tell(names: list[str], tell: Callable[[str], object]) -> list[SlurmRefused]:
    try:
        tell(fold(names))
    except SlurmRefused as error:
        if len(names) > 1 and "invalid node name" in str(error).lower():
            return [refusal for name in names for refusal in _tell([name], tell)]
        return [error]
    return []


def checked(job_id: str) -> str:
    """``job_id``, which can't be taken for an option or a second argument. Raises ``SlurmRefused``."""
    if not _JOB_ID.fullmatch(job_id):
        raise SlurmRefused(f"{job_id!r} is not a job id: write 123, 123_4 or 123+1")
    return job_id


def one_line(value: str) -> str:
    """Slurm keeps what is shown in tables on one line."""
    return " ".join(value.split("\n")).replace("\r", " ").replace("\0", " ")


def comment_of(text: str) -> str:
    """A comment on one line and no longer than Slurm takes."""
    return one_line(text).encode()[:COMMENT_BYTES].decode(errors="ignore")
