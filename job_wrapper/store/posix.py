# Plain strings and descriptors, not pathlib: this is the innermost loop of a save.
# All calls that change something are in this file: tests of crashes put another ``os`` in its place.
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH112, PTH116, PTH120, PTH123
"""The store on a POSIX file system: local disk, NFS, Lustre.

An object is written to a file beside its final name, made durable, and then given its name: by ``link(2)``, which fails if the name
is taken, for put-if-absent; by ``rename(2)`` otherwise. Then the directory is made durable. Readers never see a part of an object.
Unfinished files are named ``<name>~<random>``: no key has a ``~``, so listings pass them over and ``discard_unfinished`` finds them.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from job_wrapper.errors import Damaged, ObjectMissing, StoreError, StoreRefused
from job_wrapper.store.direct import PAGE, direct_length, set_direct
from job_wrapper.store.io_types import ObjectInfo, Put
from job_wrapper.store.mapping import map_file, read_pages
from job_wrapper.store.paths import MAX_KEY, check_key
from job_wrapper.store.posix_errors import gone, translated
from job_wrapper.store.regular import open_regular
from job_wrapper.store.same import SameFolder

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
MARK = "~"
T = TypeVar("T")


class PosixStore:
    """``ObjectStore`` under one directory. The directory itself must exist."""

    def __init__(self, root: Path, uri: str) -> None:
        self.uri = uri
        self._root = str(root)
        self.folder = SameFolder(self._root)

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key, self.uri)}"

    def put_if_absent(self, key: str, data: bytes) -> Put:
        """``ObjectStore.put_if_absent``."""
        path = self._path(key)
        unfinished = self._create(path)
        try:
            _write_all(unfinished.fd, data)
            os.fsync(unfinished.fd)
            result = _link(unfinished.path, path)
        except OSError as error:
            raise translated(error, path) from error
        finally:
            unfinished.remove()
        _sync_directory(path)
        return result

    def put(self, key: str, data: bytes | memoryview) -> None:
        """``ObjectStore.put``."""
        writer = self.open_write(key)
        try:
            writer.write(data)
            writer.close()
        except BaseException:
            writer.abort()
            raise

    def open_write(self, key: str) -> PosixWriter:
        """``ObjectStore.open_write``."""
        path = self._path(key)
        return PosixWriter(self._create(path), path)

    def _create(self, path: str) -> Unfinished:
        for attempt in range(5):
            try:
                return Unfinished(path)
            except FileNotFoundError as error:
                # No directory yet, or another process has just removed it as empty.
                if attempt == 4:
                    raise translated(error, path) from error
                self._make_directory(os.path.dirname(path))
            except OSError as error:
                raise translated(error, path) from error
        raise AssertionError

    def is_there(self) -> bool:
        """Whether the store's folder is, and is still the same one: else its file system went away."""
        return self.folder.stands()

    def _make_directory(self, path: str) -> None:
        if not self.is_there():
            raise gone(self._root)
        missing = []
        while len(path) > len(self._root) and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            try:
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    os.mkdir(directory)
                    self._share(directory)
            except OSError as error:
                raise translated(error, directory) from error
            _sync_directory(directory)

    def _share(self, directory: str) -> None:
        """The levels that runs of all users have in common (``<cluster>`` and ``<cluster>/jobs``) are as open as the root is.

        An administrator who makes that one like /tmp (mode 1777) has a store for everybody; each run's own folder is its user's.
        """
        levels = directory[len(self._root) + 1 :].split("/")
        if len(levels) == 1 or (len(levels) == 2 and levels[1] == "jobs"):
            Path(directory).chmod(os.stat(self._root).st_mode & 0o1777)

    def owner(self, key: str) -> tuple[int, int] | None:
        """User id and group id of whoever made the folder ``key``; None where there is none."""
        found = self.standing(key)
        return None if found is None else (found.st_uid, found.st_gid)

    def standing(self, key: str) -> os.stat_result | None:
        """What lstat(2) tells of the folder or file ``key``; None where there is none. Raises ``StoreError``."""
        try:
            return os.stat(self._path(key), follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unread(error, self._path(key)) from error

    def folders(self, folder: str) -> builtins.list[str]:
        """Names of the folders right below that one, in order. Raises ``StoreError``."""
        return sorted(entry.name for entry in self._scan(folder) if entry.is_dir(follow_symlinks=False))

    def lay_out(self, cluster: str) -> None:
        """Make the levels that runs of all users have in common, so that they belong to whoever looks after the store.

        Whose such a folder is may rename what others have in it: that must not be the user who happens to come first.
        """
        self._make_directory(self._path(f"{cluster}/jobs"))

    def _read(self, path: str, read: Callable[[], T]) -> T:
        """``read()``. Where it finds nothing, once more: the file system may have been away, and be back when that is looked for."""
        for again in (True, False):
            try:
                return read()
            except OSError as error:
                if not (again and error.errno == errno.ENOENT and self.is_there()):
                    raise self._unread(error, path) from error
        raise AssertionError

    def _unread(self, error: OSError, path: str) -> StoreError:
        """An object that is not there, or a whole file system that is not: only the first says something about the object."""
        if error.errno == errno.ENOENT and self.is_there():
            return ObjectMissing(f"{path}: not there")
        return translated(error, path)

    def get(self, key: str) -> bytes:
        """``ObjectStore.get``."""
        path = self._path(key)

        def whole() -> bytes:
            with open(open_regular(path), "rb", buffering=0) as file:
                return file.readall()

        return self._read(path, whole)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """``ObjectStore.get_range``."""
        buffer = bytearray(length)
        self.read_into(key, offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """``ObjectStore.read_into``."""
        path = self._path(key)
        view = buffer.cast("B")

        def fill() -> None:
            fd = open_regular(path)
            try:
                done = 0
                while done < len(view):
                    count = os.preadv(fd, [view[done:]], offset + done)
                    if count == 0:
                        raise Damaged(
                            f"{path}: shorter than it was written: no byte at offset {offset + done}, {len(view) - done} are missing"
                        )
                    done += count
            finally:
                os.close(fd)

        self._read(path, fill)

    @contextlib.contextmanager
    def mapped(self, key: str, offset: int, length: int) -> Iterator[memoryview | None]:
        """``length`` bytes from ``offset`` where they lie in the page cache, to be looked at, not written; None where that can't be done."""
        path = self._path(key)
        found = self._read(path, lambda: map_file(path, offset, length))
        with read_pages(found) as view:
            yield view

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """``ObjectStore.list``."""
        folder = prefix.rpartition("/")[0]
        if folder:
            check_key(folder, self.uri)
        found = [info for info in self._walk(folder) if info.key.startswith(prefix)]
        found.sort(key=lambda info: info.key)
        return iter(found)

    def _walk(self, top: str) -> Iterator[ObjectInfo]:
        folders = [top]
        while folders:
            folder = folders.pop()
            for entry in self._scan(folder):
                key = f"{folder}/{entry.name}" if folder else entry.name
                if len(key) > MAX_KEY:
                    continue  # no object's name; and others may have made folders in folders without end
                try:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(key)
                    elif MARK not in entry.name and entry.is_file(follow_symlinks=False):
                        yield ObjectInfo(key, entry.stat(follow_symlinks=False).st_size)
                except FileNotFoundError:
                    continue  # deleted meanwhile
                except OSError as error:
                    raise translated(error, entry.path) from error

    def _scan(self, folder: str) -> builtins.list[os.DirEntry[str]]:
        path = f"{self._root}/{folder}" if folder else self._root

        def entries() -> builtins.list[os.DirEntry[str]]:
            try:
                with os.scandir(path) as found:
                    return list(found)
            except NotADirectoryError:
                if self.is_there():
                    return []
                raise

        try:
            return self._read(path, entries)
        except ObjectMissing:
            return []  # all of it being away is another error: to show nothing would be to say that there is nothing

    def delete(self, keys: Iterable[str]) -> None:
        """``ObjectStore.delete``; folders that it leaves empty go too."""
        folders = set()
        for key in keys:
            path = self._path(key)
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError as error:
                raise translated(error, path) from error
            folders.add(os.path.dirname(path))
        for folder in folders:
            while len(folder) > len(self._root):
                try:
                    os.rmdir(folder)
                except OSError:
                    break
                folder = os.path.dirname(folder)

    def discard_unfinished(self, *prefixes: str, older_than: float = 0.0) -> builtins.list[str]:
        """Remove what interrupted writes under the ``prefixes`` (folders, with ``/``) left ``older_than`` seconds ago or earlier.

        Folders that are empty then go too. Returns the names of the removed files.
        """
        removed = []
        pending = [prefix.rstrip("/") for prefix in prefixes]
        while pending:
            folder = pending.pop()
            for entry in self._scan(folder):
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{folder}/{entry.name}")
                    elif MARK in entry.name and entry.stat().st_mtime <= time.time() - older_than:
                        os.unlink(entry.path)
                        removed.append(f"{folder}/{entry.name}")
            with contextlib.suppress(OSError):
                os.rmdir(f"{self._root}/{folder}")  # fails, as it should, where there is anything left
        return removed


class Unfinished:
    """An open file beside the final name, not yet an object."""

    def __init__(self, final: str) -> None:
        self.path = f"{final}{MARK}{os.urandom(6).hex()}"
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def close(self) -> None:
        """Close the file; may be called again."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def remove(self) -> None:
        """Close and unlink, as far as it can be done."""
        with contextlib.suppress(OSError):
            self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)


class PosixWriter:
    """``ObjectWriter`` on a POSIX file system."""

    def __init__(self, unfinished: Unfinished, path: str) -> None:
        self._file: Unfinished | None = unfinished
        self._path = path
        self._length = 0
        self._direct = True

    def write(self, data: bytes | memoryview) -> None:
        """``ObjectWriter.write``."""
        if self._file is None:
            raise StoreError(f"{self._path}: already closed")
        view = memoryview(data).cast("B")
        length = len(view)
        try:
            directly = direct_length(view, self._length)
            if directly and self._direct:
                view = view[self._write_directly(self._file.fd, view[:directly]) :]
            _write_all(self._file.fd, view)
        except OSError as error:
            raise translated(error, self._path) from error
        self._length += length

    def _write_directly(self, fd: int, view: memoryview) -> int:
        """As much as the file system takes so; returns the number of bytes."""
        if not set_direct(fd, True):
            self._direct = False
            return 0
        done = 0
        try:
            while done < len(view) and done % PAGE == 0:
                done += os.write(fd, view[done : done + (1 << 30)])
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False
        finally:
            set_direct(fd, False)
        return done

    def close(self) -> None:
        """``ObjectWriter.close``."""
        if self._file is None:
            raise StoreError(f"{self._path}: already closed")
        try:
            os.fsync(self._file.fd)
            self._file.close()
            os.rename(self._file.path, self._path)
        except OSError as error:
            raise translated(error, self._path) from error
        self._file = None
        _sync_directory(self._path)

    def abort(self) -> None:
        """``ObjectWriter.abort``."""
        if self._file is not None:
            file, self._file = self._file, None
            file.remove()


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        count = os.write(fd, view[: 1 << 30])
        view = view[count:]


def _link(unfinished: str, path: str) -> Put:
    try:
        os.link(unfinished, path)
    except OSError as error:
        # NFS repeats a request whose answer was lost, and is then told that its own link exists: the link count knows better.
        if os.stat(unfinished).st_nlink == 2:
            return Put.CREATED
        if error.errno == errno.EEXIST:
            return Put.EXISTS
        if error.errno in _NO_LINKS:
            raise StoreRefused(
                f"{os.path.dirname(path)}: this file system can't make hard links, so it can't create an object only once "
                f"({os.strerror(error.errno)}). Use a checkpoint URI on another file system, or a bucket (s3://, gs://, az://)"
            ) from error
        raise
    return Put.CREATED


def _sync_directory(path: str) -> None:
    """Make the entry ``path`` of its directory durable."""
    folder = os.path.dirname(path)
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return  # some network file systems can't sync a directory: they do it by themselves
        raise translated(error, folder) from error
