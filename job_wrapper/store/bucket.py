"""The store in a cloud's bucket, through obstore. ``s3`` makes its clients; what a provider needs differently is settled there."""

from __future__ import annotations

import builtins
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import obstore
from obstore.exceptions import BaseError

from job_wrapper.errors import Damaged, StoreError
from job_wrapper.processors import processors
from job_wrapper.store.bucket_errors import S3, Provider, exists, past_the_end, translated
from job_wrapper.store.io_types import ObjectInfo, Put
from job_wrapper.store.loans import Loans
from job_wrapper.store.paths import check_key

PART = 8 << 20
"""Bytes of one part of a multipart upload. S3 takes at most 10,000 parts, so objects up to 80 GB."""
CONCURRENCY = min(16, max(4, 2 * processors()))
"""Parts of one object on their way at once; a checkpoint is written as two. A cloud gives a connection 85 to 90 MB/s, and a machine with GPUs some 300
MB/s of network for each processor: four connections for each fill it. More than the processors can serve only wait for one another."""
_COPY = 4 << 20
_COPIES = 32 << 20
"""Bytes at most that one upload holds in copies of its own. More than a part and a copy, or a part would never fill."""
_CHUNK = 64 << 10
_SINGLE = 64 << 20
_DELETE = 1000


class BucketStore:
    """``ObjectStore`` under a prefix of a bucket.

    ``once`` is a client that never repeats a request: only then does "exists" mean what it says, and an undecided request reaches the
    caller, who decides it by reading back. ``client`` repeats.
    """

    def __init__(self, uri: str, prefix: str, client: Any, once: Any, provider: Provider = S3) -> None:
        self.uri = uri
        self._provider = provider
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._client = client
        self._once = once
        self.uploads: Callable[[Sequence[str]], builtins.list[str]] | None = None
        """Gives up the unfinished uploads to paths that begin so, where the provider leaves them to be given up."""

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key, self.uri)

    def put_if_absent(self, key: str, data: bytes) -> Put:
        """``ObjectStore.put_if_absent``: one PUT with ``If-None-Match: *`` (GCS: generation 0)."""
        try:
            obstore.put(self._once, self._path(key), data, mode="create", use_multipart=False)
        except (BaseError, OSError, ValueError) as error:
            if exists(error):
                return Put.EXISTS
            raise self.translated(error, key, writing=True) from error
        return Put.CREATED

    def put(self, key: str, data: bytes | memoryview) -> None:
        """``ObjectStore.put``."""
        try:
            obstore.put(
                self._client,
                self._path(key),
                memoryview(data),
                use_multipart=len(data) > _SINGLE,
                chunk_size=PART,
                max_concurrency=CONCURRENCY,
            )
        except (BaseError, OSError, ValueError) as error:
            raise self.translated(error, key, writing=True) from error

    def open_write(self, key: str) -> BucketWriter:
        """``ObjectStore.open_write``: a multipart upload."""
        return BucketWriter(self, self._client, key, self._path(key))

    def get(self, key: str) -> bytes:
        """``ObjectStore.get``."""
        try:
            return bytes(obstore.get(self._client, self._path(key)).bytes())
        except (BaseError, OSError, ValueError) as error:
            raise self.translated(error, key) from error

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """``ObjectStore.get_range``."""
        data = bytearray(length)
        self.read_into(key, offset, memoryview(data))
        return bytes(data)

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """``ObjectStore.read_into``: each piece of the answer goes to its place as it comes, so that nothing is put together first."""
        view = buffer.cast("B")
        length, at = len(view), 0
        if length == 0:
            return
        try:
            answer = obstore.get(self._client, self._path(key), options={"range": (offset, offset + length)})
            for chunk in answer.stream(min_chunk_size=_CHUNK):
                with memoryview(chunk) as piece:
                    view[at : at + len(piece)] = piece
                    at += len(piece)
        except (BaseError, OSError, ValueError) as error:
            if past_the_end(error):
                raise Damaged(
                    f"{self.uri}/{key}: shorter than it was written: there is no byte at offset {offset}"
                ) from error
            raise self.translated(error, key) from error
        if at != length:
            raise Damaged(
                f"{self.uri}/{key}: shorter than it was written: {length - at} bytes from offset {offset + at} on are missing"
            )

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """``ObjectStore.list``."""
        folder = prefix.rpartition("/")[0]
        found = []
        try:
            for batch in obstore.list(self._client, self._prefix + folder if folder else self._prefix or None):
                for meta in batch:
                    key = meta["path"][len(self._prefix) :]
                    if key.startswith(prefix):
                        found.append(ObjectInfo(key, meta["size"]))
        except (BaseError, OSError, ValueError) as error:
            raise self.translated(error, prefix) from error
        found.sort(key=lambda info: info.key)
        return iter(found)

    def delete(self, keys: Iterable[str]) -> None:
        """``ObjectStore.delete``."""
        paths = [self._path(key) for key in keys]
        for start in range(0, len(paths), _DELETE):
            try:
                obstore.delete(self._client, paths[start : start + _DELETE])
            except FileNotFoundError:
                # GCS and Azure answer so for an object that is gone, and obstore then leaves the rest: each by itself.
                self._delete_one_by_one(paths[start : start + _DELETE])
            except (BaseError, OSError, ValueError) as error:
                raise self.translated(error, paths[start][len(self._prefix) :], writing=True) from error

    def discard_unfinished(self, *prefixes: str, older_than: float = 0.0) -> builtins.list[str]:
        """Give up what interrupted uploads below the ``prefixes`` left; returns the paths in the bucket.

        With ``older_than`` nothing: where that is asked, objects are written in one request.
        """
        if self.uploads is None or older_than or not prefixes:
            return []
        return self.uploads([self._prefix + prefix for prefix in prefixes])

    def _delete_one_by_one(self, paths: builtins.list[str]) -> None:
        from concurrent.futures import ThreadPoolExecutor  # not at the start of every wrapper

        def delete(path: str) -> None:
            try:
                obstore.delete(self._client, path)
            except FileNotFoundError:
                pass
            except (BaseError, OSError, ValueError) as error:
                raise self.translated(error, path[len(self._prefix) :], writing=True) from error

        with ThreadPoolExecutor(CONCURRENCY, "spotburst-delete") as pool:
            list(pool.map(delete, paths))

    def size_of(self, key: str) -> int | None:
        """Bytes of an object; None if there is none. Raises ``StoreError``."""
        try:
            return int(obstore.head(self._client, self._path(key))["size"])
        except FileNotFoundError:
            return None
        except (BaseError, OSError, ValueError) as error:
            raise self.translated(error, key) from error

    def translated(self, error: Exception, key: str, *, writing: bool = False) -> StoreError:
        """obstore's error about one object as ours."""
        return translated(error, f"{self.uri}/{key}", self._provider, writing=writing)


class BucketWriter:
    """``ObjectWriter`` as a multipart upload: a thread of its own hands the data to obstore, which sends several parts at once."""

    def __init__(self, store: BucketStore, client: Any, key: str, path: str) -> None:
        self._store, self._client, self._key, self._path = store, client, key, path
        self._pieces: queue.Queue[bytes | memoryview | None] = queue.Queue(1)
        self._length = 0
        self._copies = Loans(_COPIES, _COPY)
        self._error: Exception | None = None
        self._drained = False
        self._aborted = False
        self._closed = False
        self._thread = threading.Thread(target=self._send, name="spotburst-upload", daemon=True)
        self._thread.start()

    def _send(self) -> None:
        try:
            obstore.put(
                self._client,
                self._path,
                self._pull(),
                use_multipart=True,
                chunk_size=PART,
                max_concurrency=CONCURRENCY,
            )
        except Exception as error:  # told by the next write, or by close
            self._error = error
        finally:
            while not self._drained:  # nobody is to wait for a reader that is gone
                self._drained = self._pieces.get() is None

    def _pull(self) -> Iterator[bytes | memoryview]:
        while (piece := self._pieces.get()) is not None:
            yield piece
            del piece  # what is sent may go
        self._drained = True
        if self._aborted:
            # The one way to have obstore give up a multipart upload, so that its parts do not stay and cost.
            raise AbortedError

    def write(self, data: bytes | memoryview) -> None:
        """``ObjectWriter.write``."""
        with memoryview(data) as view:
            for start in range(0, len(view), _COPY):
                with view[start : start + _COPY] as piece:
                    copy = self._copies.take(len(piece), self._check)
                    copy[:] = piece
                self.write_held(copy)

    def write_held(self, data: bytes | memoryview) -> None:
        """``write`` without a copy: ``data`` must not change before ``close`` or ``abort`` returns."""
        self._check()
        if len(data):
            self._length += len(data)
            self._pieces.put(data)

    def _check(self) -> None:
        if self._error is not None:
            raise self._store.translated(self._error, self._key, writing=True) from self._error
        if self._closed:
            raise StoreError(f"{self._store.uri}/{self._key}: already closed")

    def close(self) -> None:
        """``ObjectWriter.close``."""
        self._check()
        self._closed = True
        self._pieces.put(None)
        self._thread.join()
        error = self._error
        if error is not None and self._store.size_of(self._key) != self._length:
            # A repeated "complete" whose first answer was lost fails too, but then the object stands.
            raise self._store.translated(error, self._key, writing=True) from error

    def abort(self) -> None:
        """``ObjectWriter.abort``."""
        if not self._closed:
            self._closed = self._aborted = True
            self._pieces.put(None)
            self._thread.join()


class AbortedError(Exception):
    """Thrown into an upload to end it."""
