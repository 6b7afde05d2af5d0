"""Doing something to a user's files as that user. Root must not: what is named there may be a link to somebody else's files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from job_wrapper.errors import RunHeld, StoreError, StoreRefused

_KINDS: dict[str, type[RunHeld] | type[StoreError]] = {
    kind.__name__: kind for kind in (RunHeld, StoreError, StoreRefused)
}


def as_owner(user: int, group: int, act: Callable[[], int]) -> int:
    """What ``act`` returns in a process of that user, forked from this one; only root can. Its ``RunHeld`` and ``StoreError`` are raised here."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: tuple[str, object] = ("StoreError", "ended without a word")
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            answer = ("", act())
        except (RunHeld, StoreRefused) as error:
            answer = (type(error).__name__, str(error))
        except BaseException as error:
            answer = ("StoreError", str(error) or repr(error))
        finally:
            os.write(into, json.dumps(answer).encode()[:65536])
            os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    if not told:
        raise StoreError(f"a process of user {user} was killed before it was done; try again")
    kind, value = json.loads(told)
    if kind:
        raise _KINDS[kind](str(value))
    return int(value)
