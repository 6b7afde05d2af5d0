"""What the providers share whose machines are called as their nodes, and that note their launches on disk (gcp, azure)."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

from slurm_plugin.config import AzureProvider, Config, GcpProvider
from slurm_plugin.errors import CloudUnavailable, ConfigError
from slurm_plugin.render import Programs, agent_service

PATIENCE = 8.0
"""Seconds that a launch waits for what it began; what takes longer is looked at again at the next call."""
POLL = (0.05, 0.1, 0.2, 0.5, 1.0)
LAG = 300.0
"""Seconds after a launch in which a machine that the listing lacks is asked for by name."""
Settings = TypeVar("Settings", GcpProvider, AzureProvider)
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class NamedCloud(ABC, Generic[Settings]):
    """The part of a ``Provider`` that they share. Nothing is sent when it is made."""

    at_once: int
    """Calls at a time where there are many."""
    patience = PATIENCE

    def __init__(
        self,
        name: str,
        config: Settings,
        *,
        cluster: str,
        state_dir: Path,
        slurm_conf: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name, self.cluster = name, cluster
        self.config: Settings = config
        self._clock = clock
        program = config.node_program
        self._unit = agent_service(Programs(program, program, program, program), slurm_conf=slurm_conf)
        self._lock = threading.Lock()
        self._over: set[str] = set()
        """Launch ids of machines that were asked for by name and were not there any more."""
        self._open(state_dir / "launches" / name)

    @abstractmethod
    def _open(self, journal: Path) -> None:
        """The client, and the journal in that folder."""

    def _each(self, items: Sequence[Item], work: Callable[[Item], Answer]) -> list[Answer]:
        """Some at a time, the answers in order."""
        with ThreadPoolExecutor(max(1, min(self.at_once, len(items)))) as pool:
            return list(pool.map(work, items))

    def _watch(
        self, items: Sequence[Item], look: Callable[[Item], Answer | None]
    ) -> Iterator[tuple[Item, Answer | None]]:
        """Look at each again and again until its answer is not None; one that has None when the patience is over is told with it."""
        until = time.monotonic() + self.patience
        waits = iter(POLL)
        left = list(items)
        while left:
            still = []
            for item, found in zip(left, self._each(left, look), strict=True):
                if found is None:
                    still.append(item)
                else:
                    yield item, found
            left = still
            wait = next(waits, POLL[-1])
            if not left or time.monotonic() + wait > until:
                break
            time.sleep(wait)
        for item in left:
            yield item, None

    def _delete(self, machines: Sequence[Item], delete: Callable[[Item], str]) -> None:
        """Each whatever becomes of the others; ``delete`` returns why it could not. Raises ``CloudUnavailable`` that tells of the first."""
        failed = [text for text in self._each(machines, delete) if text]
        if failed:
            raise CloudUnavailable(f"{self.name}: {len(failed)} could not be deleted; {failed[0]}")


def settings_of(config: Config, name: str, kind: type[Settings], word: str) -> Settings:
    """The provider of that name in burst.yaml. Raises ``ConfigError`` where it is not of type ``word``."""
    settings = config.providers.get(name)
    if not isinstance(settings, kind):
        raise ConfigError(f"providers.{name}: not of type {word}")
    return settings
