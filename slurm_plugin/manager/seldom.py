"""What is asked of clouds seldom, in a thread of its own: it holds up no pass."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from slurm_plugin.cloud.provider import Offering
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.manager.say import Once

_P = TypeVar("_P")

FIRST = 10.0
"""Seconds that the manager's start waits for a first look, where one is wanted."""


class Seldom(ABC):
    """``start`` and ``stop`` as the manager's other threads; what it learns is in the ledger. ``every``: seconds between two looks."""

    name: str
    """The thread's."""

    def __init__(self, once: Once, every: float) -> None:
        self._once, self._every = once, every
        self._looked, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self, patience: float = 0.0) -> None:
        """Begin. ``patience``: seconds to wait for the first look, whatever comes of it."""
        self._thread.start()
        self._looked.wait(patience)

    def stop(self) -> None:
        """End after the current call."""
        self._stopped.set()

    @abstractmethod
    def look(self) -> None:
        """Ask all clouds once. Never raises for what they do."""

    def _each(
        self,
        asked: Mapping[str, tuple[_P, Sequence[Offering]]],
        ask: Callable[[_P, Sequence[Offering]], None],
        what: str,
    ) -> None:
        """``ask`` each provider about its offerings, where there are any. ``what``: words for its name, such as "prices of {}"."""
        for name, (provider, offerings) in asked.items():
            if not offerings:
                continue
            try:
                ask(provider, offerings)
                self._once.well(what.format(name))
            except Exception as error:
                self._fault(what.format(name), error)

    def _fault(self, what: str, error: Exception) -> None:
        said = str(error) if isinstance(error, CloudUnavailable) else repr(error)
        self._once.fault(what, f"not known anew: {said}")

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.look()
            self._looked.set()
            self._stopped.wait(self._every)
