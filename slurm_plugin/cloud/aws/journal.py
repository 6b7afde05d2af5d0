"""What was asked of EC2, written to disk before it is asked, so that a retry after a crash repeats the call to the letter.

CreateFleet's ClientToken makes the same call safe to repeat, and refuses another one under the same token. What the call was
(its members, the template's version) can't be derived again after a crash: burst.yaml may have changed, and some of the launches may no longer
be wanted. One small file a batch, ``<state_dir>/launches/<provider>/<base launch id>.json``, kept for a day.
"""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slurm_plugin.cloud import launch_ids
from slurm_plugin.cloud.noted import is_moment, is_texts, write_noted
from slurm_plugin.cloud.provider import RefusalKind, Refused

KEEP = 86400.0


@dataclass(slots=True)
class Fleet:
    """One CreateFleet call. ``members``: launch ids, in the order of their numbers. ``asked``: Unix seconds of the last try."""

    token: str
    members: list[str]
    request: dict[str, Any]
    asked: float
    whole: bool = False
    """All or nothing."""
    done: bool = False
    """EC2's answer is known."""
    named: bool = False
    """Its instances have all their tags."""
    trial: bool = False
    """Several gangs at once: where there is too little for all of them nothing is said of each."""


@dataclass(slots=True)
class Note:
    """All that is known of one batch."""

    base: str
    fleets: list[Fleet] = field(default_factory=list)
    nodes: dict[str, str] = field(default_factory=dict)
    """Launch id to node."""
    instances: dict[str, str] = field(default_factory=dict)
    """Launch id to instance id, decided once."""
    refused: dict[str, dict[str, Any]] = field(default_factory=dict)

    def refusal(self, launch_id: str) -> Refused | None:
        """The final refusal of a member."""
        found = self.refused.get(launch_id)
        if found is None:
            return None
        return Refused(
            launch_id,
            RefusalKind(found["kind"]),
            found["code"],
            found["text"],
            found["permanent"],
            found.get("known", True),
        )

    def refuse(self, refusal: Refused) -> None:
        """A member will not come."""
        self.refused[refusal.launch_id] = {
            "kind": refusal.kind.value,
            "code": refusal.code,
            "text": refusal.text,
            "permanent": refusal.permanent,
            "known": refusal.known,
        }

    def assign(self, fleet: Fleet, instance_ids: list[str]) -> bool:
        """Give each instance that has no launch one of the fleet's launches that has no instance; whether anything changed."""
        taken = set(self.instances.values())
        free = [m for m in fleet.members if m not in self.instances]
        new = dict(zip(free, (i for i in sorted(instance_ids) if i not in taken), strict=False))
        self.instances.update(new)
        return bool(new)

    def next_token(self) -> str:
        """Of the next fleet: the batch's own id, then others derived from it."""
        return self.base if not self.fleets else str(uuid.uuid5(uuid.UUID(self.base), str(len(self.fleets))))


class Journal:
    """The notes of one provider. Safe in several threads for different batches. Raises ``CloudUnavailable`` where the disk fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._notes: dict[str, Note] | None = None

    def get(self, base: str) -> Note | None:
        """The batch's note."""
        return self._all().get(base)

    def notes(self) -> list[Note]:
        """All of them."""
        return list(self._all().values())

    def by_instance(self) -> dict[str, tuple[Note, str]]:
        """Instance id to its note and launch id."""
        return {i: (note, launch_id) for note in self.notes() for launch_id, i in note.instances.items()}

    def save(self, note: Note) -> None:
        """On disk when this returns."""
        write_noted(self.folder / f"{launch_ids.base_of(note.base)}.json", asdict(note))
        notes = self._all()
        with self._lock:
            notes[note.base] = note

    def forget(self, before: float) -> None:
        """Drop notes whose last call was before that (Unix seconds)."""
        for note in self.notes():
            if all(fleet.asked < before for fleet in note.fleets):
                (self.folder / f"{note.base}.json").unlink(missing_ok=True)
                with self._lock:
                    self._all_locked().pop(note.base, None)

    def _all(self) -> dict[str, Note]:
        with self._lock:
            return self._all_locked()

    def _all_locked(self) -> dict[str, Note]:
        if self._notes is None:
            found: dict[str, Note] = {}
            for path in sorted(self.folder.glob("[0-9a-f]*.json")) if self.folder.is_dir() else ():
                note = _read(path)
                if note is not None:
                    found[note.base] = note
            self._notes = found
        return self._notes


def _read(path: Path) -> Note | None:
    """None for what is not a note: machines that it told of are found by their tags."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        note = Note(**{**data, "fleets": [Fleet(**fleet) for fleet in data["fleets"]]})
        return note if f"{launch_ids.base_of(note.base)}.json" == path.name and _fits(note) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _fits(note: Note) -> bool:
    """Whether it holds what its fields say. Raises ``ValueError``, ``TypeError``, ``KeyError`` or ``AttributeError`` where a refusal does not."""
    for launch_id in note.refused:
        note.refusal(launch_id)
    return (
        is_texts(note.nodes)
        and is_texts(note.instances)
        and all(isinstance(f.token, str) and isinstance(f.request, dict) and is_moment(f.asked) for f in note.fleets)
        and all(isinstance(member, str) for fleet in note.fleets for member in fleet.members)
    )
