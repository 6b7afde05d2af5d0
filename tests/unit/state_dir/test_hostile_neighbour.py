"""A state directory that others may write to: what they put in the place of something else, while it is being saved, is not followed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from job_wrapper import state_dirs
from job_wrapper.errors import CheckpointFailed
from job_wrapper.state_dirs import save, scan
from job_wrapper.store import ObjectStore, PartWriter
from tests.unit.state_dir.trees import PREFIX, fill, keep

SECRET = b"what only this user can read"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "key").write_bytes(SECRET)
    return folder


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A pipe that is waited for ends the test rather than hanging it."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def a_file_by_a_link(root: Path, private: Path) -> None:
    (root / "sub" / "key").unlink()
    (root / "sub" / "key").symlink_to(private / "key")


def a_folder_by_a_link(root: Path, private: Path) -> None:
    (root / "sub").rename(root / "away")
    (root / "sub").symlink_to(private)


def a_file_by_a_pipe(root: Path, private: Path) -> None:
    (root / "sub" / "key").unlink()
    os.mkfifo(root / "sub" / "key")


@pytest.mark.parametrize("swap", [a_file_by_a_link, a_folder_by_a_link, a_file_by_a_pipe])
@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_swapped_after_the_scan_is_refused(
    swap: Callable[[Path, Path], None],
    sparse: bool,
    store: ObjectStore,
    root: Path,
    private: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "key").write_bytes(b"mine")
    if sparse:
        os.truncate(root / "sub" / "key", 1 << 20)
    write = state_dirs._write

    def late(*arguments: object) -> object:
        swap(root, private)
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(state_dirs, "_write", late)
    with pytest.raises(CheckpointFailed, match=r"sub/key: can't be read: .*was replaced by a link or the like"):
        save(store, PREFIX, [root])
    stored = b"".join(store.get(info.key) for info in store.list(""))
    assert SECRET not in stored


def test_a_folder_that_is_swapped_during_the_scan_is_not_entered(root: Path, private: Path) -> None:
    (root / "sub").mkdir()
    found = scan(0, root)
    assert [next(found).name, next(found).name] == ["0", "0/sub"]
    a_folder_by_a_link(root, private)
    with pytest.raises(CheckpointFailed, match=r"sub: can't be read: .*was replaced"):
        list(found)


def test_a_file_that_is_replaced_by_another_is_saved(store: ObjectStore, root: Path, tmp_path: Path) -> None:
    fill(root)
    for found in list(scan(0, root)):
        if found.info.st_size and not found.info.st_mode & 0o020000 and Path(found.path).is_file():
            (tmp_path / "new").write_bytes(b"newer")
            (tmp_path / "new").replace(found.path)  # as a program writes it whole
            with PartWriter(store, PREFIX, "one") as writer:
                writer.add_file(found.name, Path(found.path), attributes={}, opener=found.within.file)
                writer.finish()
            break


def test_a_state_directory_may_be_reached_by_a_link(store: ObjectStore, root: Path, tmp_path: Path) -> None:
    fill(root)
    by_link = tmp_path / "link"
    by_link.symlink_to(root)
    assert {item.name for item in keep(store, by_link).items} == {found.name for found in scan(0, root)}
