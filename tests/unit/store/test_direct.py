"""Large writes past the page cache: whatever the sizes, places and file system, the same bytes come to lie there."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from job_wrapper.store import posix
from job_wrapper.store.direct import LEAST, direct_length
from job_wrapper.store.posix import PosixStore

SIZES = [LEAST, LEAST + 1, 5, 4091, LEAST * 2, 4096, 3 * LEAST + 4095, LEAST]


@pytest.mark.parametrize("shift", [0, 1, 512])
def test_every_byte_arrives(tmp_path: Path, shift: int) -> None:
    store = PosixStore(tmp_path, "file://here")
    content = os.urandom(LEAST) * 12
    with mmap.mmap(-1, len(content) + shift) as pages:
        pages[shift:] = content
        writer, at = store.open_write("run/data/x"), 0
        with memoryview(pages) as view:
            for size in SIZES:
                writer.write(view[shift + at : shift + at + size])
                at += size
        writer.close()
    assert store.get("run/data/x") == content[:at]


def test_a_file_system_that_refuses_them_gets_ordinary_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def write(self, fd: int, data: memoryview) -> int:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                refused.append(len(data))
                raise OSError(errno.EINVAL, "Invalid argument")
            return os.write(fd, data)

    monkeypatch.setattr(posix, "os", Refusing())
    store = PosixStore(tmp_path, "file://here")
    with mmap.mmap(-1, 2 * LEAST) as pages:
        pages[:] = content = os.urandom(2 * LEAST)
        with memoryview(pages) as view:
            store.put("run/data/x", view)
    assert store.get("run/data/x") == content
    assert len(refused) <= 1  # asked once; a tmpfs says no beforehand


def test_what_can_be_written_directly() -> None:
    with mmap.mmap(-1, 2 * LEAST) as pages, memoryview(pages) as view:
        assert direct_length(view, 0) == 2 * LEAST
        assert direct_length(view[:-1], 8192) == 2 * LEAST - 4096
        assert direct_length(view, 512) == 0
        with view[1:] as odd, view[: LEAST - 1] as small:
            assert direct_length(odd, 0) == direct_length(small, 0) == 0
        assert direct_length(memoryview(bytes(2 * LEAST)), 0) == 0
