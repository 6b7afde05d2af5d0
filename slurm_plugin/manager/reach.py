"""Whether each node can be reached: a TCP connection, tried in a thread of its own.

Tried at a port where nothing listens: a refusal is an answer, and slurmd, which writes two lines of errors for every connection that says
nothing, is left in peace. Where a firewall swallows that, slurmd's own port is tried, and from then on only that. Where Slurm itself has
no answer from a node, it is slurmd that counts: a machine whose slurmd is dead answers like any other, and its jobs would never end.

Counted from the first failed try of an unbroken series, so a manager that was restarted (or stopped for a while) begins anew: it can't know
whether the node was reachable in between, and setting down a healthy node costs more than noticing a dead one some seconds later.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from slurm_plugin.manager.say import log

QUIET_PORT = 9
"""``discard`` of RFC 863, which no node serves."""
AT_ONCE = 500
"""Connections tried at the same time."""


@dataclass(slots=True)
class _Contact:
    tried: float
    """When the last try began, by the monotonic clock."""
    failing_since: float | None
    """When the first failed try of the present series began, by the wall clock; None while it answers."""
    answering_since: float | None = None
    """When the first try of the present series that was answered began, by the wall clock; None while it does not answer."""


class Reach:
    """``watch`` says whom to try; the others but ``start`` and ``stop`` say what was found. All may be called at any time."""

    def __init__(self, period: float, timeout: float | None = None, wake: Callable[[], None] = lambda: None) -> None:
        """``period`` and ``timeout`` (of one try) in seconds. ``wake`` is called when a node falls silent or answers again."""
        self.period = period
        self.timeout = timeout if timeout is not None else min(period, 3.0)
        self._wake = wake
        self._lock = threading.Lock()
        self._targets: dict[str, tuple[str, int]] = {}
        self._contacts: dict[str, _Contact] = {}
        self._filtered: set[str] = set()
        """Nodes at whose quiet port nothing ever answers."""
        self._doubted: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reach", daemon=True)

    def start(self) -> None:
        """Begin trying."""
        self._thread.start()

    def stop(self) -> None:
        """End; the thread ends with its current round."""
        self._stop.set()

    def watch(self, targets: Mapping[str, tuple[str, int]], doubted: Collection[str] = ()) -> None:
        """Node to (address, port). Nodes that are no longer named, or have another address, begin anew.

        ``doubted``: nodes that Slurm has no answer from; they count as reached only where slurmd listens.
        """
        with self._lock:
            for name in [n for n in self._contacts if targets.get(n) != self._targets.get(n)]:
                del self._contacts[name]
                self._filtered.discard(name)
            self._targets = dict(targets)
            self._doubted = frozenset(doubted)

    def silent_since(self) -> dict[str, float]:
        """Nodes whose last try failed, with the time (Unix seconds) of the first failure in the series."""
        with self._lock:
            return {n: c.failing_since for n, c in self._contacts.items() if c.failing_since is not None}

    def answering_since(self) -> dict[str, float]:
        """Nodes whose last try was answered, with the time (Unix seconds) of the first such try in the series."""
        with self._lock:
            return {n: c.answering_since for n, c in self._contacts.items() if c.answering_since is not None}

    def own_network_suspect(self) -> bool:
        """All nodes (of two or more) fail at once. A single node can't tell the difference; Slurm's own view counts then."""
        with self._lock:
            return len(self._contacts) >= 2 and all(c.failing_since is not None for c in self._contacts.values())

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                if self._targets:
                    asyncio.run(self._round())
            except Exception as error:
                log.error("trying to reach the nodes failed", error=repr(error))
            self._stop.wait(max(0.0, self.period - (time.monotonic() - began)))

    async def _round(self) -> None:
        with self._lock:
            targets = dict(self._targets)
        gate = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._try(gate, name, *target) for name, target in targets.items()))

    async def _try(self, gate: asyncio.Semaphore, name: str, address: str, port: int) -> None:
        async with gate:
            tried, at = time.monotonic(), time.time()
            if name in self._doubted:
                answered = await self._answers(address, port, listens=True)
            else:
                answered = name not in self._filtered and await self._answers(address, QUIET_PORT)
                if not answered:
                    answered = await self._answers(address, port)
                    if answered:
                        self._filtered.add(name)
        with self._lock:
            if self._targets.get(name) != (address, port):
                return
            before = self._contacts.get(name)
            began: float | None = None
            broken_off = before is not None and tried - before.tried > 3 * (self.period + self.timeout)
            if before is not None and not broken_off:
                began = before.answering_since if answered else before.failing_since
            since = at if began is None else began
            self._contacts[name] = _Contact(tried, None if answered else since, since if answered else None)
            changed = (before is None or before.failing_since is None) != answered
        if changed:
            self._wake()

    async def _answers(self, address: str, port: int, *, listens: bool = False) -> bool:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), self.timeout)
        except ConnectionRefusedError:
            return not listens
        except (OSError, asyncio.TimeoutError):
            return False
        writer.close()
        return True
