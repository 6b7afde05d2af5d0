"""What a real wrapper saves, keeps, restores, and says of it."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.store import Entry, open_store, read_manifest, verify_checkpoint
from tests.unit.run.programs import COUNTER, SLEEPER, answered, ready

if TYPE_CHECKING:
    from conftest import Room


def test_state_of_a_program_that_knows_nothing_of_it_is_saved_at_the_interval_and_the_notice(room: Room) -> None:
    state = room.path / "state"
    program = f"open({str(state / 'a')!r}, 'w').write('x' * 1000)\n" + SLEEPER
    options = ["--state-dir", str(state), "--interval", "0.3s"]
    process = room.start(program, *options)
    ready(room)
    room.wait_for(lambda: len(room.commits()) >= 3)
    room.notice()
    code, _, _ = room.end(process)
    assert code == ExitCode.REQUEUED
    assert room.commits()[-1].body["urgent"] is True
    (state / "a").unlink()
    room.notice_file.unlink()
    room.view(restarts=1)
    # The same command, whose file reads now what it wrote before.
    code, out, _ = room.run(f"print(len(open({str(state / 'a')!r}).read()))", *options, restarts="1")
    assert (code, out) == (0, "1000\n")


def test_store_that_goes_away_and_comes_back(room: Room) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"), "--interval", "0.3s")
    ready(room)
    room.wait_for(lambda: len(room.commits()) >= 1)
    room.store.rename(room.path / "away")
    room.until_said(process, "the store can't be reached, it is tried again; the last commit is")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    (room.path / "away").rename(room.store)
    count = len(room.commits())
    room.wait_for(lambda: len(room.commits()) > count)
    room.notice()
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED
    assert "the store is back after" in err


def test_checkpoint_too_large_is_said_and_the_program_goes_on(room: Room) -> None:
    state = room.path / "state"
    program = (
        f"import os, time\nopen('a', 'w').write('x' * 5000)\nos.rename('a', {str(state / 'a')!r})\ntime.sleep(1.5)\n"
    )
    code, _, err = room.run(program, "--state-dir", str(state), "--max-size", "1K", "--interval", "0.3s")
    assert "--max-size" in err
    assert code == ExitCode.CHECKPOINT_FAILED
    assert room.commits() == []


def test_state_directory_without_files_is_no_checkpoint(room: Room) -> None:
    state = room.path / "state"
    process = room.start(SLEEPER, "--state-dir", str(state), "--interval", "0.2s")
    ready(room)
    time.sleep(1)
    room.notice()
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED
    assert room.kinds() == ["claim", "interrupted"]
    assert "no commit" not in err


def test_program_that_clears_its_state_at_the_end_has_finished_and_the_last_checkpoint_stands(room: Room) -> None:
    file = room.path / "state" / "a"
    program = f"""
        import os, time
        open({str(file)!r}, "w").write("x")
        while not os.path.exists("go"):
            time.sleep(0.01)
        os.unlink({str(file)!r})
    """
    process = room.start(program, "--state-dir", str(file.parent), "--interval", "0.3s")
    room.wait_for(room.commits)
    (room.path / "go").touch()
    code, _, err = room.end(process)
    assert code == 0
    assert "is empty, but the last checkpoint holds 1 file of it" in err
    assert room.kinds()[-1] == "end"
    assert room.log()[-1].summary.commits


def test_damaged_checkpoint_is_skipped_for_the_older_one(room: Room) -> None:
    state = room.path / "state"
    process = room.start(COUNTER, "--state-dir", str(state))
    ready(room)
    for count in (1, 2):
        process.send_signal(signal.SIGUSR1)
        answered(room)
        assert len(room.commits()) == count
    process.kill()
    process.wait()
    older, newest = room.commits()
    pack = room.store / next(iter(_packs(newest, room) - _packs(older, room)))
    data = bytearray(pack.read_bytes())
    data[0] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    room.view(restarts=1)
    process = room.start(COUNTER, "--state-dir", str(state), restarts="1")
    ready(room)
    assert room.kinds()[-1] == "restore_failed"
    assert room.log()[-1].body["entry"] == newest.seq
    process.kill()
    _, out, err = room.end(process)
    assert "damaged" in err
    assert out.startswith("from ")
    assert f"entry {older.seq}" in err


def _packs(commit: Entry, room: Room) -> set[str]:
    return set(read_manifest(open_store(room.uri, prove=False), commit.summary.commits[-1].manifest).packs)


def test_finished_run_keeps_its_final_checkpoint_alone_and_a_failed_one_all(room: Room) -> None:
    for code in (0, 7):
        state = room.path / f"state-{code}"
        run = f"c/run-{code}/main"
        program = ["sh", "-c", f"while [ ! -e stop ]; do date +%N > {state}/file; sleep 0.05; done; exit {code}"]
        process = room.start(program, "--state-dir", str(state), "--interval", "0.2s", "--run", f"run-{code}")
        room.wait_for(lambda run=run: len(room.commits(run)) >= 5)
        (room.path / "stop").touch()
        assert room.end(process)[0] == code
        (room.path / "stop").unlink()
        store, last = open_store(room.uri, prove=False), room.log(run)[-1]
        assert last.kind.value == "end"
        stored = [info.key for info in store.list(f"{run}/data/") if "/manifest-" in info.key]
        assert len(stored) == 1 if code == 0 else len(stored) >= 3  # what the last commit dropped may still be there
        verify_checkpoint(store, last.summary.commits[-1].manifest)
