"""Stores for tests: one in memory, one that fails or crashes at a chosen operation, and ones that break a promise."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from job_wrapper.errors import Damaged, ObjectMissing, StoreError
from job_wrapper.store.io_types import ObjectInfo, ObjectStore, ObjectWriter, Put


class Crash(BaseException):
    """The process is gone. Not an ``Exception``, so that no handler brings it back."""


class MemoryStore:
    """``ObjectStore`` in a dictionary; keeps every promise."""

    def __init__(self) -> None:
        self.uri = "memory://test"
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put_if_absent(self, key: str, data: bytes) -> Put:
        with self._lock:
            if key in self.objects:
                return Put.EXISTS
            self.objects[key] = bytes(data)
            return Put.CREATED

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.objects[key] = bytes(data)

    def open_write(self, key: str) -> ObjectWriter:
        return _MemoryWriter(self, key)

    def get(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectMissing(f"{self.uri}/{key}: not there") from None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = self.get(key)[offset : offset + length]
        if len(data) != length:
            raise Damaged(f"{self.uri}/{key}: shorter than it was written")
        return data

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.get_range(key, offset, len(buffer))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter([ObjectInfo(k, len(v)) for k, v in sorted(self.objects.items()) if k.startswith(prefix)])

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)


class _MemoryWriter:
    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store, self._key, self._data = store, key, bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self._data += data

    def close(self) -> None:
        self._store.put(self._key, bytes(self._data))

    def abort(self) -> None:
        self._data.clear()


class FaultyStore:
    """Passes operations on to ``inner``, counting them; at number ``at`` (from 1) it fails.

    ``after``: the operation is done first. ``error`` makes what is raised; for ``Crash`` every later operation raises it too, as nothing
    runs in a process that is gone.
    """

    def __init__(
        self,
        inner: ObjectStore,
        at: int = 0,
        *,
        after: bool = False,
        error: Callable[[], BaseException] = Crash,
        counted: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.uri = inner.uri
        self.inner = inner
        self.operations: list[str] = []
        self._at, self._after, self._error, self._counted = at, after, error, counted
        self._dead = False
        self._lock = threading.Lock()

    def run(self, name: str, act: Callable[[], Any]) -> Any:
        with self._lock:
            if self._dead:
                raise self._error()
            if self._counted(name):
                self.operations.append(name)
            hit = len(self.operations) == self._at and self._counted(name)
            if hit and isinstance(self._error(), Crash):
                self._dead = True
        if hit and not self._after:
            raise self._error()
        result = act()
        if hit:
            raise self._error()
        return result

    def put_if_absent(self, key: str, data: bytes) -> Put:
        result: Put = self.run(f"put_if_absent {key}", lambda: self.inner.put_if_absent(key, data))
        return result

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.run(f"put {key}", lambda: self.inner.put(key, data))

    def open_write(self, key: str) -> ObjectWriter:
        return _FaultyWriter(self, self.run(f"open_write {key}", lambda: self.inner.open_write(key)), key)

    def get(self, key: str) -> bytes:
        data: bytes = self.run(f"get {key}", lambda: self.inner.get(key))
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        data: bytes = self.run(f"get_range {key}", lambda: self.inner.get_range(key, offset, length))
        return data

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        self.run(f"read_into {key}", lambda: self.inner.read_into(key, offset, buffer))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found: Iterator[ObjectInfo] = self.run(f"list {prefix}", lambda: self.inner.list(prefix))
        return found

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.run(f"delete {key}", lambda key=key: self.inner.delete([key]))


class _FaultyWriter:
    def __init__(self, store: FaultyStore, inner: ObjectWriter, key: str) -> None:
        self._store, self._inner, self._key = store, inner, key

    def write(self, data: bytes | memoryview) -> None:
        self._store.run(f"write {self._key}", lambda: self._inner.write(data))

    def close(self) -> None:
        self._store.run(f"close {self._key}", self._inner.close)

    def abort(self) -> None:
        self._store.run(f"abort {self._key}", self._inner.abort)


class NoSync:
    """Stands in for the ``os`` module of ``posix`` where nothing is to outlive the power: a sync takes milliseconds."""

    def __getattr__(self, name: str) -> Any:
        return (lambda fd: None) if name == "fsync" else getattr(os, name)


class FaultyOs:
    """Stands in for the ``os`` module of ``posix``: the process is gone before, or after, the ``at``-th system call that changes something."""

    NAMES = frozenset({"open", "write", "fsync", "link", "rename", "unlink", "mkdir", "rmdir"})

    def __init__(self, at: int = 0, *, after: bool = False) -> None:
        self.calls: list[str] = []
        self._at, self._after, self._dead = at, after, False
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.NAMES:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                if self._dead:
                    raise Crash
                self.calls.append(name)
                hit = len(self.calls) == self._at
                self._dead = hit
            if hit and not self._after:
                raise Crash
            result = None if name == "fsync" else real(*args, **kwargs)
            if hit:
                raise Crash
            return result

        return call


class Overwriting(MemoryStore):
    """Like several servers that speak S3: it passes over the condition without a word."""

    def put_if_absent(self, key: str, data: bytes) -> Put:
        self.objects[key] = bytes(data)
        return Put.CREATED


class CheckThenWrite(MemoryStore):
    """Looks first and writes then, so that racing creations can both succeed: here the first two always do."""

    def __init__(self) -> None:
        super().__init__()
        self._looked: dict[str, threading.Event] = {}

    def put_if_absent(self, key: str, data: bytes) -> Put:
        with self._lock:
            there, first = key in self.objects, key not in self._looked
            another = self._looked.setdefault(key, threading.Event())
        if there:
            return Put.EXISTS
        if not first:
            another.set()
        elif "/race-" in key:
            another.wait(60)
        self.objects[key] = bytes(data)
        return Put.CREATED


class StaleReads(MemoryStore):
    """Shows an object only when it is asked for the second time."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: set[str] = set()

    def get(self, key: str) -> bytes:
        if "read-" in key and key not in self._asked:
            self._asked.add(key)
            raise ObjectMissing(f"{self.uri}/{key}: not there")
        return super().get(key)


class StaleLists(MemoryStore):
    """Listings lag one object behind."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(list(super().list(prefix))[:-1])


def unavailable() -> StoreError:
    """An error as a store has it when it can't be reached."""
    return StoreError("memory://test: 503 Slow Down")
