"""Which of a cluster's controllers acts, where slurm.conf names several (SlurmctldHost more than once)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_plugin.errors import SlurmRefused, SlurmUnavailable

AGREEING = 2
"""Looks in a row that must say the same: slurmctld may end or begin between the two questions of one look."""
_LINE = re.compile(r"Slurmctld\([^)]*\) at (\S+) is (UP|DOWN)")


@dataclass(frozen=True, slots=True)
class Controller:
    """A line of ``scontrol ping``. A backup that waits for its turn is up, too."""

    host: str
    up: bool


class Asks(Protocol):
    """The part of Slurm's client that is needed here."""

    def controllers(self) -> tuple[Controller, ...]:
        """As slurm.conf names them, the first first. Raises ``SlurmUnavailable`` or ``SlurmRefused``."""
        ...

    def version(self) -> tuple[int, int, int]:
        """A question that only the controller that acts answers."""
        ...


def parse_ping(text: str) -> tuple[Controller, ...]:
    """The controllers in what ``scontrol ping`` printed, by order of SlurmctldHost."""
    return tuple(Controller(host, state == "UP") for host, state in _LINE.findall(text))


def acting(controllers: Sequence[Controller], answered: bool) -> str:
    """The host of the controller that acts; "" if that can't be told.

    ``answered``: whether a question was answered after the look at ``controllers``. A backup takes over only SlurmctldTimeout after its
    primary fell silent, and answers nothing until then. Of those that are up it is the first: a primary that comes back has its backup stop
    before it acts.
    """
    return next((c.host for c in controllers if c.up), "") if answered else ""


def same_host(one: str, other: str) -> bool:
    """Whether two names are of one machine; Slurm itself goes by the name before the first dot."""
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()


class Watch:
    """Whether the controller on this machine is the one that acts, as found by ``look``."""

    def __init__(self, slurm: Asks, host: str) -> None:
        """``host``: this machine's name."""
        self._slurm, self._host = slurm, host
        self._controllers: tuple[Controller, ...] = ()
        self._found = ""
        self._times = 0
        self.acting = ""
        """Host of the controller that acts; "" as long as that is not known."""

    @property
    def matters(self) -> bool:
        """There are several controllers, and this machine has one of them. (A manager beside them goes by its lock alone.)"""
        return len(self._controllers) > 1 and any(same_host(c.host, self._host) for c in self._controllers)

    @property
    def elsewhere(self) -> bool:
        """Another machine's controller acts instead of this one's."""
        return self.matters and bool(self.acting) and not same_host(self.acting, self._host)

    @property
    def here(self) -> bool:
        """This machine's controller acts, or nobody can say that it must."""
        return not self.matters or same_host(self.acting, self._host)

    def look(self) -> None:
        """Ask Slurm (up to 20 s where it does not answer). Never raises for what Slurm does: then what was known stays."""
        try:
            self._controllers = self._slurm.controllers() or self._controllers
        except (SlurmUnavailable, SlurmRefused):
            return
        if not self.matters:
            return
        found = acting(self._controllers, _answers(self._slurm.version))
        if not found:
            return
        self._times = self._times + 1 if found == self._found else 1
        self._found = found
        if self._times >= AGREEING:
            self.acting = found


def _answers(question: Callable[[], object]) -> bool:
    try:
        question()
    except (SlurmUnavailable, SlurmRefused):
        return False
    return True
