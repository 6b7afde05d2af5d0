"""Another folder lies where the store was: a file system was unmounted on this node, and somebody has begun a store on the mount point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from job_wrapper.errors import ExitCode
from job_wrapper.store import mark_of, open_store
from tests.unit.run.test_outage import FILES, TRAINING, back, step

if TYPE_CHECKING:
    from conftest import Room


def another(room: Room) -> None:
    """It has the mark of a store that is in use, and no run in it."""
    room.store.rename(room.path / "away")
    open_store(room.uri)


def store_is_back(room: Room) -> None:
    """The other one is left as it was."""
    room.store.rename(room.path / "other")
    assert not (room.path / "other" / "c").exists()
    back(room)


def test_a_program_that_runs_saves_nothing_there(room: Room) -> None:
    process = room.start(TRAINING, "--interval", "0.3s")
    room.wait_for(room.commits)
    another(room)
    room.until_said(process, "the store can't be reached, it is tried again; the last commit is")
    begun = step(room)
    room.wait_for(lambda: step(room) >= begun + 60)
    store_is_back(room)
    count = len(room.commits())
    room.wait_for(lambda: len(room.commits()) > count + 1)
    (room.path / "finish").touch()
    code, out, err = room.end(process)
    assert code == 0, err
    assert f"finished at {room.commits()[-1].body['step']}\n" in out


def test_a_job_does_not_begin_there(room: Room) -> None:
    """Neither anew, nor with nothing where it has run before."""
    room.node |= {"uri": room.uri, "store_mark": mark_of(open_store(room.uri))}
    process = room.start(FILES, "--state-dir", str(room.path / "state"))
    room.wait_for(lambda: step(room) > 5)
    room.notice(seconds=5.0)
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    room.notice_file.unlink()  # the next ones have nodes of their own
    another(room)
    room.marked = True
    for restarts, ended in (("0", ExitCode.STORE_REFUSED), ("1", ExitCode.REQUEUED)):
        room.view(restarts=int(restarts))
        code, _, err = room.run(["touch", "started"], "--store-patience", "1s", restarts=restarts)
        assert code == ended, err
        assert "another folder than the cluster's" in err
    assert not (room.path / "started").exists()
    store_is_back(room)
    room.view(restarts=2)
    (room.path / "finish").touch()
    code, _, err = room.run(FILES, "--state-dir", str(room.path / "state"), restarts="2")
    assert code == 0, err
    assert "epoch 2" in err
