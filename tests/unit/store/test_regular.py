"""What is waited for when a stored file is opened."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from job_wrapper.errors import Damaged
from job_wrapper.store.regular import open_regular
from job_wrapper.within import Within

OPENERS: list[Callable[[Path], int]] = [
    lambda path: open_regular(str(path)),
    lambda path: Within(str(path.parent)).file(str(path)),
]


@pytest.fixture
def leased(tmp_path: Path) -> Iterator[Path]:
    """A file with a lease, which the kernel must ask to be given back."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    fd = os.open(path, os.O_RDWR)
    asked = []

    def give_back(*_: object) -> None:
        asked.append(True)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    before = signal.signal(signal.SIGIO, give_back)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    yield path
    os.close(fd)
    signal.signal(signal.SIGIO, before)
    assert asked


@pytest.mark.parametrize("opens", OPENERS)
def test_a_lease_is_waited_for(leased: Path, opens: Callable[[Path], int]) -> None:
    fd = opens(leased)
    assert os.read(fd, 100) == b"content"
    os.close(fd)


@pytest.mark.parametrize("opens", OPENERS)
def test_what_takes_the_place_of_a_leased_file_is_not_waited_for(
    tmp_path: Path, opens: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    first = iter([True])
    opened = os.open

    def held(name: str, flags: int) -> int:
        if name == str(path) and flags & os.O_NONBLOCK and next(first, False):
            raise BlockingIOError(11, "it has a lease", name)
        return opened(name, flags)

    monkeypatch.setattr(os, "open", held)
    with pytest.raises(BlockingIOError):
        opens(path)
    with pytest.raises((Damaged, OSError), match=r"no regular file|replaced"):
        opens(path)
