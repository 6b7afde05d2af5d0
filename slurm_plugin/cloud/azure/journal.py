"""What became of each launch, on disk: so that a launch id whose machine has come and gone makes no second one.

A launch that is still open needs no note to be safe, for Azure makes no second machine of a name. One small file a batch,
``<state_dir>/launches/<provider>/<base launch id>.json``, kept for a day.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_plugin.cloud import launch_ids
from slurm_plugin.cloud.azure.errors import ApiError
from slurm_plugin.cloud.noted import is_moment, write_noted

KEEP = 86400.0


@dataclass(slots=True)
class Note:
    """One launch. ``asked``: Unix seconds. Neither made nor refused: open."""

    launch_id: str
    node: str
    asked: float
    made: bool = False
    code: str = ""
    """Of the refusal."""
    text: str = ""
    status: int | None = None

    def refuse(self, error: ApiError) -> None:
        """It will not come."""
        self.code, self.text, self.status = error.code, error.text, error.status

    @property
    def refusal(self) -> ApiError | None:
        """Why it did not come."""
        return ApiError(self.code, self.text, self.status) if self.code else None

    @property
    def settled(self) -> bool:
        """Nothing more is to be done."""
        return self.made or bool(self.code)


class Journal:
    """The notes of one provider. Safe in several threads. Raises ``CloudUnavailable`` where the disk fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._batches: dict[str, dict[str, Note]] | None = None

    def get(self, launch_id: str) -> Note | None:
        """The launch's note."""
        with self._lock:
            return self._all().get(launch_ids.base_of(launch_id), {}).get(launch_id)

    def recent(self, since: float) -> list[Note]:
        """Those of machines that were made, asked for since then."""
        with self._lock:
            return [n for batch in self._all().values() for n in batch.values() if n.made and n.asked >= since]

    def save(self, notes: Iterable[Note]) -> None:
        """On disk when this returns."""
        with self._lock:
            changed = set()
            for note in notes:
                base = launch_ids.base_of(note.launch_id)
                self._all().setdefault(base, {})[note.launch_id] = note
                changed.add(base)
            for base in changed:
                self._write(base)

    def forget(self, before: float) -> None:
        """Drop batches that were last asked for before that (Unix seconds)."""
        with self._lock:
            for base, batch in list(self._all().items()):
                if all(note.asked < before for note in batch.values()):
                    (self.folder / f"{base}.json").unlink(missing_ok=True)
                    del self._all()[base]

    def _write(self, base: str) -> None:
        write_noted(self.folder / f"{base}.json", [asdict(note) for note in self._all()[base].values()])

    def _all(self) -> dict[str, dict[str, Note]]:
        if self._batches is None:
            self._batches = {}
            for path in sorted(self.folder.glob("[0-9a-f]*.json")) if self.folder.is_dir() else ():
                try:
                    notes = [Note(**data) for data in json.loads(path.read_text(encoding="utf-8"))]
                    if all(map(_fits, notes)):
                        self._batches[path.stem] = {note.launch_id: note for note in notes}
                except (OSError, ValueError, TypeError, AttributeError, RecursionError):
                    continue  # machines that it told of are found by their tags
        return self._batches


def _fits(note: Note) -> bool:
    """Whether it holds what its fields say."""
    words = (note.launch_id, note.node, note.code, note.text)
    return (
        is_moment(note.asked)
        and isinstance(note.made, bool)
        and (note.status is None or isinstance(note.status, int))
        and all(isinstance(word, str) for word in words)
    )
