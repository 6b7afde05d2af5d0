"""The checkpoint store as the manager's threads open it: once it is known by its mark, no folder without one is taken for it."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from job_wrapper.errors import SpotburstError
from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.open import scheme_of
from slurm_plugin.cloud.local.state import read_json, write_json
from slurm_plugin.config import Config
from slurm_plugin.manager.say import log

NOTE = "store.json"
"""In state_dir."""
EVERY = 60.0
"""Seconds between two looks at its mark."""


class Stores:
    """``open`` may be called from any thread. What is known is kept in the state directory, since a file system may be missing at a start.

    From ``start`` on it looks at the mark by itself: whoever has the store open goes on with it, and nodes that boot would be told an old one.
    """

    def __init__(self, config: Config, every: float = EVERY) -> None:
        self._uri, self._endpoint_url = config.checkpoints.uri, config.checkpoints.endpoint_url or ""
        self._note = config.state_dir / NOTE
        self._lock = threading.Lock()
        self._mark = known_mark(config)
        self._every, self._stopped = every, threading.Event()
        self._thread = threading.Thread(target=self._look, name="store-mark", daemon=True)

    def start(self) -> None:
        """Begin to look. A bucket has no mark."""
        if scheme_of(self._uri) == "file":
            self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()

    def _look(self) -> None:
        while not self._stopped.wait(self._every):
            with contextlib.suppress(SpotburstError, OSError):  # whoever reads in it tells of that
                self.open()

    @property
    def mark(self) -> str:
        """Of the store (``mark_of``), for the nodes: they take no other either. "" where it has not been seen, and for a bucket."""
        return self._mark

    def open(self) -> ObjectStore:
        """Raises the store's errors, also where its folder was in use and bears no mark now."""
        from job_wrapper.store import mark_of, open_store

        store = open_store(self._uri, endpoint_url=self._endpoint_url, create=False, used=bool(self._mark))
        with self._lock:
            if (found := mark_of(store)) != self._mark:
                if self._mark:
                    log.warning(
                        "the checkpoint store was begun anew; nodes that run refuse it until they are booted again",
                        uri=self._uri,
                    )
                self._mark = found
                _note(self._note, self._uri, found)
        return store


def known_mark(config: Config) -> str:
    """Of the store as the manager last saw it; "" where it has not, and where the caller may not read that."""
    try:
        known = read_json(config.state_dir / NOTE) or {}
    except OSError:
        return ""
    return str(known.get("mark", "")) if known.get("uri") == config.checkpoints.uri else ""


def _note(note: Path, uri: str, mark: str) -> None:
    try:
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(note, {"uri": uri, "mark": mark})
    except OSError as error:
        log.warning("the checkpoint store's mark can't be noted", file=str(note), error=str(error))
