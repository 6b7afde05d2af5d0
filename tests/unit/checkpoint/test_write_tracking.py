"""Every write of a processor to tracked memory is seen, by whatever code; and nothing else is taken for one."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from job_wrapper.checkpoint.write_tracking import WriteTracker, whole_pages

LENGTH = 64 * mmap.PAGESIZE


@pytest.fixture(scope="module")
def kernel() -> None:
    try:
        WriteTracker().close()
    except OSError as error:
        # The kernel is the machine's; no set-up brings a newer one.
        pytest.skip(f"needs a kernel that tracks writes (Linux 6.7): {error}")


@pytest.fixture
def tracker(kernel: None) -> Iterator[WriteTracker]:
    tracker = WriteTracker()
    yield tracker
    tracker.close()


def from_a_file(x: torch.Tensor, folder: Path) -> None:
    (folder / "one").write_bytes(b"x")
    with (folder / "one").open("rb", buffering=0) as file:
        file.readinto(x.numpy()[LENGTH // 2 :].data)


def of_a_thread(x: torch.Tensor, _: Path) -> None:
    thread = threading.Thread(target=lambda: x.data[LENGTH // 2].fill_(1))
    thread.start()
    thread.join()


def after_a_fork(x: torch.Tensor, _: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    x.data[LENGTH // 2] = 1


WRITES: dict[str, Callable[[torch.Tensor, Path], Any]] = {
    "in place": lambda x, _: x[LENGTH // 2].add_(1),
    ".data": lambda x, _: x.data.clamp_(-1, 1),
    "numpy": lambda x, _: x.numpy().fill(0),
    "foreign code, the same value": lambda x, _: ctypes.memmove(x.data_ptr() + LENGTH // 2, x.data_ptr() + LENGTH // 2, 1),
    "the kernel": from_a_file,
    "a thread": of_a_thread,
    "after a fork": after_a_fork,
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("touched", [True, False])
def test_a_write_is_seen_once(tracker: WriteTracker, tmp_path: Path, write: str, touched: bool) -> None:
    x = (torch.ones if touched else torch.zeros)(LENGTH + mmap.PAGESIZE, dtype=torch.uint8)
    for _ in range(2):
        tracker.begin([whole_pages(x.data_ptr(), x.nbytes)])
        assert x.sum() >= 0 and not tracker.written()
        WRITES[write](x, tmp_path)
        assert tracker.written()
        tracker.end()


def test_only_whole_pages_of_the_memory_itself_count(tracker: WriteTracker) -> None:
    x = torch.zeros(LENGTH, dtype=torch.uint8)
    tracked, tail = x[100 : LENGTH // 2], x[LENGTH // 2 :]
    begin, length = whole_pages(tracked.data_ptr(), tracked.nbytes)
    assert begin % mmap.PAGESIZE == length % mmap.PAGESIZE == 0
    assert tracked.data_ptr() <= begin < tracked.data_ptr() + mmap.PAGESIZE
    assert 0 <= tracked.data_ptr() + tracked.nbytes - begin - length < mmap.PAGESIZE
    tracker.begin([(begin, length)])
    x[:100] = 1
    tail.fill_(1)
    assert not tracker.written()
    tracked[mmap.PAGESIZE] = 1
    assert tracker.written()
    assert whole_pages(4097, 4000)[1] == 0


def test_memory_that_others_share_counts_as_written(tracker: WriteTracker, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(LENGTH))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), LENGTH) as mapped, mmap.mmap(-1, LENGTH) as anonymous:
        for memory in (mapped, anonymous):
            first = ctypes.c_char.from_buffer(memory)
            first.value = b"x"
            try:
                tracker.begin([(ctypes.addressof(first), LENGTH)])
            except OSError:
                continue  # as good
            finally:
                address = ctypes.addressof(first)
                del first
            assert ctypes.string_at(address, LENGTH)
            assert tracker.written()
            tracker.end()


def test_memory_that_goes_away_counts_as_written_and_a_child_tracks_nothing(tracker: WriteTracker) -> None:
    memory = mmap.mmap(-1, LENGTH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = ctypes.c_char.from_buffer(memory)
    where = (ctypes.addressof(first), LENGTH)
    child = os.fork()
    if child == 0:
        try:
            tracker.begin([where])
        except OSError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    first.value = b"x"
    tracker.begin([where])
    del first
    memory.close()
    again = mmap.mmap(-1, LENGTH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    again.write(bytes(LENGTH))
    if ctypes.addressof(probe := ctypes.c_char.from_buffer(again)) == where[0]:
        assert tracker.written()
    del probe
    tracker.end()
    with pytest.raises(OSError):
        tracker.begin([(where[0] + 1, 100)])  # no page
    assert not tracker.written()
