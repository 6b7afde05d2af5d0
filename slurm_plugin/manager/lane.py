"""A provider, called in threads of its own so that a cloud that hangs holds up no pass and no other cloud."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from slurm_plugin.cloud.provider import Provider
from slurm_plugin.errors import CloudUnavailable

Answer = TypeVar("Answer")
LIST_TIMEOUT = 10.0
ACT_TIMEOUT = 15.0
"""Seconds that a pass waits for a provider's listing, and for a launch or a termination."""
LIST_EVERY = {"local": 0.0}
"""Least seconds between two listings, by a provider's type; 5 s for the others (AWS refills 20 Describe calls a second for all)."""


class Lane:
    """One call at a time. A call that takes too long goes on in its thread; its answer is dropped, since every call can be repeated."""

    def __init__(self, provider: Provider, list_every: float = 0.0) -> None:
        self.provider = provider
        self.list_every = list_every
        self._running: Future[Any] | None = None

    @property
    def name(self) -> str:
        """The provider's."""
        return self.provider.name

    def start(self, call: Callable[[], Answer]) -> Future[Answer]:
        """Begin a call. Raises ``CloudUnavailable`` while an earlier one has not ended."""
        if self._running is not None and not self._running.done():
            raise CloudUnavailable(f"{self.name}: an earlier call has not ended yet")
        future: Future[Answer] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        self._running = future
        threading.Thread(target=work, name=f"cloud-{self.name}", daemon=True).start()
        return future

    def wait(self, future: Future[Answer], timeout: float) -> Answer:
        """Its answer. Raises what it raised, or ``CloudUnavailable`` when it takes too long."""
        try:
            return future.result(timeout)
        except FutureTimeout:
            raise CloudUnavailable(f"{self.name}: no answer within {timeout:.3g} s") from None

    def call(self, call: Callable[[], Answer], timeout: float = ACT_TIMEOUT) -> Answer:
        """``start`` and ``wait``."""
        return self.wait(self.start(call), timeout)
