"""The whole design of the store, by name: what is stored where, and what a backend must do.

Layout under a checkpoint URI (``<run>`` is ``<cluster>/<job id or array job_task>/<name>``)::

    .spotburst/store.json              proof that this store honours put-if-absent, made at first use
    <run>/log/00000000.json, …01.json  the log: one small object an entry, put-if-absent, never changed
    <run>/data/e<epoch>/…              packs, parts and manifests, written only by the epoch that holds the run
    <cluster>/jobs/<job id>/<name>     a pointer from a job to its run, for ``describe`` and the manager

Order of writes of one checkpoint: packs, part manifests, the manifest, then the ``commit`` entry in the log.
What no commit names does not exist for a restore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

FORMAT = 1
"""Version of log entries and manifests. A reader refuses a higher one with ``NewerFormat``."""


class Put(Enum):
    """What a put-if-absent found."""

    CREATED = "created"
    EXISTS = "exists"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object in a listing: full key relative to the store's root, and size in bytes."""

    key: str
    size: int


@runtime_checkable
class ObjectStore(Protocol):
    """A flat namespace of immutable byte strings. Keys are relative to the store's root, ``/``-separated.

    Every method raises ``StoreError`` (or ``ObjectMissing``, ``StoreRefused``) and nothing else. All methods may be called
    from several threads at once. Reads after an acknowledged write see it.
    """

    uri: str

    def put_if_absent(self, key: str, data: bytes) -> Put:
        """Create the object unless it exists: of any number of racing calls exactly one returns ``CREATED``.

        Durable when it returns. An error leaves it undecided; the caller reads the object back to know.
        """
        ...

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write an object whose key no one else writes (data under an epoch's prefix). Durable when it returns."""
        ...

    def open_write(self, key: str) -> ObjectWriter:
        """Start a large object, written in order and in parallel parts with bounded memory."""
        ...

    def get(self, key: str) -> bytes:
        """The whole object."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``; fewer is ``Damaged``."""
        ...

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on, without a copy where the backend can."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key starts with ``prefix``, in key order."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete; a missing object is no error."""
        ...


class ObjectWriter(Protocol):
    """A large object being written. Nothing is visible under the key before ``close`` returns."""

    def write(self, data: bytes | memoryview) -> None:
        """Append. ``data`` may be reused by the caller once this returns."""
        ...

    def close(self) -> None:
        """Make the object durable and visible."""
        ...

    def abort(self) -> None:
        """Give up; leave nothing visible. Safe to call after a failure and more than once."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A pointer to an immutable object together with what its bytes must be.

    ``checksum`` is ``"xxh3-128:<32 hex digits>"`` over the whole object.
    """

    key: str
    length: int
    checksum: str


class ItemKind(str, Enum):
    """What an item of a checkpoint is."""

    TENSOR = "tensor"
    BYTES = "bytes"
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"


@dataclass(frozen=True, slots=True)
class Segment:
    """Where a run of bytes lies: ``length`` bytes at ``offset`` of the object ``pack``, with their checksum."""

    pack: str
    offset: int
    length: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Item:
    """One thing in a checkpoint: a tensor shard, a named byte string, or a file of a state directory.

    A large item has several segments, in order; an empty one has none. ``attributes`` holds what its kind needs:
    ``dtype`` and ``shape`` of a tensor, ``mode``, ``mtime_ns`` and ``holes`` of a file, ``target`` of a link.
    """

    name: str
    kind: ItemKind
    segments: tuple[Segment, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Bytes of content."""
        return sum(s.length for s in self.segments)


@dataclass(frozen=True, slots=True)
class Part:
    """What one writer (the state-directory saver, or one rank of the program) put into a checkpoint."""

    name: str
    items: tuple[Item, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole checkpoint: its parts by name, each a ``Part`` stored as an object of its own.

    ``keys`` are the packs that its parts point to (also of older epochs): what retention must keep.
    """

    run: str
    epoch: int
    step: int | None
    parts: dict[str, ObjectRef]
    packs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


class Kind(str, Enum):
    """Kinds of log entries (DESIGN §3)."""

    CLAIM = "claim"
    COMMIT = "commit"
    RESTORE_FAILED = "restore_failed"
    INTERRUPTED = "interrupted"
    SUSPENDED = "suspended"
    END = "end"


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: one attempt of one job on one host. ``nonce`` is new for every process that claims."""

    cluster: str
    job_id: str
    restart_count: int
    step_id: int
    host: str
    nonce: str


@dataclass(frozen=True, slots=True)
class CommitRef:
    """A commit as later entries remember it: enough to restore it without reading further back."""

    seq: int
    epoch: int
    step: int | None
    time: float
    manifest: ObjectRef


@dataclass(frozen=True, slots=True)
class Summary:
    """The run so far. Every entry carries it, so that the newest entry alone tells the state.

    ``commits`` are the newest kept ones, newest last. ``barren`` counts attempts in a row that ended without a new commit;
    ``recoveries`` counts claims after the first. ``failed_restores`` maps a commit's seq to how often it failed to restore.
    ``ended`` is the exit code once the program ended by itself.
    """

    epoch: int = 0
    recoveries: int = 0
    barren: int = 0
    commits: tuple[CommitRef, ...] = ()
    failed_restores: dict[int, int] = field(default_factory=dict)
    ended: int | None = None
    command_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log, never changed once written. ``body`` holds what only its kind has."""

    seq: int
    kind: Kind
    epoch: int
    writer: Writer
    time: float
    summary: Summary
    body: dict[str, Any] = field(default_factory=dict)
