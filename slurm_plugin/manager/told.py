"""What clouds have told of machines by messages, on disk: it holds until the machine is gone or has outlived it, whoever restarts.

One file a provider, ``<state_dir>/told/<provider>.json``; messages that nobody can read lie beside it, in ``<provider>.unreadable.jsonl``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from job_wrapper.notice.types import Notice
from slurm_plugin.cloud.mailbox import MachineNotice, Message
from slurm_plugin.cloud.noted import write_noted
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.manager.say import log
from slurm_plugin.reconcile.reclaim import OUTLIVED

REMEMBERED = 86400.0
"""Seconds for which a notice without a deadline is known: so long the same one is not told as new."""
LARGEST_ASIDE = 1 << 20
"""Bytes of unreadable messages that are kept, and once more as many of the older ones."""


class ToldBook:
    """The notices of one provider's messages. Safe in several threads. Times in Unix seconds by ``clock``."""

    def __init__(self, folder: Path, provider: str, clock: Callable[[], float] = time.time) -> None:
        self._path, self._aside = folder / f"{provider}.json", folder / f"{provider}.unreadable.jsonl"
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, MachineNotice] = {n.notice.source_id: n for n in _read(self._path)}

    def new(self, notices: Iterable[MachineNotice]) -> list[MachineNotice]:
        """Those that are not known yet and not long over, each once."""
        now = self._clock()
        with self._lock:
            found = {n.notice.source_id: n for n in notices if n.notice.source_id not in self._known}
        return [n for n in found.values() if now <= _until(n.notice)]

    def add(self, notices: Iterable[MachineNotice]) -> None:
        """They are on disk when this returns. Raises ``CloudUnavailable`` where that fails: then they are not known."""
        now = self._clock()
        with self._lock:
            known = {i: n for i, n in self._known.items() if now <= _until(n.notice)}
            known |= {n.notice.source_id: n for n in notices}
            write_noted(
                self._path, [{"instance_id": n.instance_id, "notice": asdict(n.notice)} for n in known.values()]
            )
            self._known = known

    def taken_away(self) -> dict[str, Notice]:
        """By instance id: the machines that are being taken back, as far as anyone was told; the earliest deadline where there are several."""
        now = self._clock()
        with self._lock:
            standing = [n for n in self._known.values() if n.takes_away and now <= _until(n.notice)]
        standing.sort(key=lambda n: (-_until(n.notice), n.notice.source_id))
        return {n.instance_id: n.notice for n in standing}

    def put_aside(self, messages: Iterable[Message]) -> Path:
        """Write them down for a person to look at; the file. Raises ``CloudUnavailable`` where that fails."""
        lines = [json.dumps({"time": self._clock(), "why": m.unreadable, "body": m.body}) + "\n" for m in messages]
        try:
            self._aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                if self._aside.stat().st_size > LARGEST_ASIDE:
                    self._aside.replace(self._aside.with_suffix(".old.jsonl"))
            with self._aside.open("a", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CloudUnavailable(f"{self._aside}: can't be written: {error}") from error
        return self._aside


def _until(notice: Notice) -> float:
    """How long it is to be known."""
    return notice.arrived + REMEMBERED if notice.deadline is None else notice.deadline + OUTLIVED


def _read(path: Path) -> list[MachineNotice]:
    """What the file holds; a file that can't be read is moved aside, and said."""
    try:
        found: list[Mapping[str, object]] = json.loads(path.read_text(encoding="utf-8"))
        return [MachineNotice(str(n["instance_id"]), Notice.from_json(json.dumps(n["notice"]))) for n in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
        log.error("notices of machines can't be read: moved aside", path=str(aside), error=str(error))
        with suppress(OSError):
            path.replace(aside)
        return []
