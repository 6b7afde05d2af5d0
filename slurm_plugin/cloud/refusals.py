"""A cloud's error codes sorted into what the manager does about them; the code and the words stay as the cloud gave them.

A table is one cloud's knowledge, written as data. What it does not name is sorted by HTTP status: 429 and 5xx are the cloud's own
trouble (try later), the rest are taken for mistakes, which are said to the user and lead to the next offering. An unknown code is never
taken for want of capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from slurm_plugin.cloud.provider import RefusalKind, Refused

_Answer = TypeVar("_Answer")

LONGEST_TEXT = 500
"""Characters of a cloud's words that are kept: they end in a job's comment and in the ledger."""

NO_ANSWER = "NoAnswer"
"""Our own code for a call whose answer never came: it may have taken effect."""
_TELLING = (RefusalKind.MISTAKE, RefusalKind.QUOTA, RefusalKind.TRY_LATER, RefusalKind.PRICE, RefusalKind.NO_CAPACITY)


@dataclass(frozen=True, slots=True)
class Codes:
    """One cloud's error codes by kind."""

    kinds: Mapping[str, RefusalKind]

    @classmethod
    def of(cls, **codes: Iterable[str]) -> Codes:
        """``Codes.of(no_capacity=[…], quota=[…], price=[…], try_later=[…], mistake=[…])``. Raises ``ValueError`` for a code in two."""
        kinds: dict[str, RefusalKind] = {}
        for name, listed in codes.items():
            kind = RefusalKind(name.replace("_", "-"))
            for code in listed:
                if kinds.setdefault(code, kind) is not kind:
                    raise ValueError(f"{code} is both {kinds[code].value} and {kind.value}")
        return cls(kinds)

    def kind(self, code: str, status: int | None = None) -> RefusalKind:
        """What the code means. ``status``: HTTP status of the answer, where there is one."""
        known = self.kinds.get(code)
        if known is not None:
            return known
        if status is not None and (status == 429 or status >= 500):
            return RefusalKind.TRY_LATER
        return RefusalKind.MISTAKE

    def refuse(
        self, launch_id: str, code: str, text: str, status: int | None = None, *, permanent: bool = False
    ) -> Refused:
        """The refusal of one launch. ``permanent``: see ``Refused``."""
        return Refused(launch_id, self.kind(code, status), code, shorten(text), permanent, code in self.kinds)


def shorten(text: str) -> str:
    """One line of at most ``LONGEST_TEXT`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…"


class CloudError(Exception):
    """A cloud answered with an error: each cloud has its own kind of it."""

    status: int | None
    """HTTP status of the answer, where there is one."""

    @property
    def not_permitted(self) -> bool:
        """The account may not ask that."""
        return False


def or_none(ask: Callable[[], _Answer]) -> _Answer | None:
    """The answer; None where the cloud has nothing of that name (404). Raises ``CloudError``."""
    try:
        return ask()
    except CloudError as error:
        if error.status == 404:
            return None
        raise


class Told(Protocol):
    """A cloud's error."""

    @property
    def kind(self) -> RefusalKind:
        """What it means."""
        ...


_Error = TypeVar("_Error", bound=Told)


def most_telling(errors: Sequence[_Error]) -> _Error:
    """Of several errors of one call the one that says best why machines did not come.

    One that was put off comes before those that were refused: not all was tried.
    """
    return min(errors, key=lambda error: _TELLING.index(error.kind))
