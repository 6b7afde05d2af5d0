"""A ledger that is damaged on the disk while the manager runs."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from slurm_plugin.errors import LedgerDamaged
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.sound import EVERY, Soundness
from tests.unit.manager.listener import Listener
from tests.unit.manager.test_parts import MAIN, start, without_slurmctld


def spoil(path: Path) -> None:
    """All of its pages but the first, which is written last: then readers look at all of them anew."""
    with contextlib.closing(sqlite3.connect(path, timeout=120)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, "nobody held it up"
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(path.stat().st_size - 4096))
        db.execute(f"PRAGMA user_version={version}")


def test_the_manager_ends_with_a_word_and_begins_anew_once_it_is_started_again(tmp_path: Path) -> None:
    config, path = without_slurmctld(tmp_path), tmp_path / "state" / "ledger.db"
    listener = Listener(tmp_path / "notify", watchdog=60)
    manager = start(config, listener.environ, f"from slurm_plugin.manager import sound; sound.EVERY = 0.3; {MAIN}")
    listener.until(lambda words: words.count("WATCHDOG=1") >= 5)
    spoil(path)
    _, log = manager.communicate(timeout=120)
    assert manager.returncode == 2, log
    assert f"the ledger was damaged while the manager ran ({path}: " in log
    assert not list(path.parent.glob("*.damaged-*")), "moved by who opens it, when nobody writes to it any more"
    listener.hear()
    listener.words.clear()
    again = start(config, listener.environ)
    listener.until(lambda words: words.count("WATCHDOG=1") >= 5)
    again.send_signal(signal.SIGTERM)
    _, log = again.communicate(timeout=120)
    assert again.returncode == 0, log
    assert "the ledger is damaged: moved aside" in log
    assert "a pass failed" not in log
    assert list(path.parent.glob("ledger.db.damaged-*"))


def test_a_failed_call_is_doubt_enough_and_a_look_is_once_a_minute_at_most(tmp_path: Path) -> None:
    path, now = tmp_path / "ledger.db", [0.0]
    ledger = Ledger.open(path)
    for k in range(300):
        ledger.event("x", f"event {k} " + "x" * 200)
    sound = Soundness(ledger, lambda: now[0])
    spoil(path)
    with pytest.raises(sqlite3.DatabaseError):
        ledger.events(limit=300)
    sound.look(failed=False)
    now[0] = EVERY - 1
    sound.look(failed=True)
    now[0] = EVERY
    with pytest.raises(LedgerDamaged, match="moves it aside"):
        sound.look(failed=False)
    ledger.close()
    assert "begun anew" in Ledger.open(path).events()[0].text


def test_passes_that_fail_for_something_else_go_on(tmp_path: Path) -> None:
    now = [0.0]
    ledger = Ledger.open(tmp_path / "ledger.db")
    sound = Soundness(ledger, lambda: now[0])
    with pytest.raises(sqlite3.Error):
        ledger._rows("SELECT nothing FROM nowhere")
    assert ledger.doubtful
    for _ in range(3):
        now[0] += EVERY
        sound.look(failed=True)
        assert not ledger.doubtful


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_taken_away_ends_the_manager(tmp_path: Path, replaced: bool) -> None:
    """It would go on writing into a file that nobody ever reads."""
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(path)
    sound = Soundness(ledger)
    sound.look(failed=False)
    path.unlink()
    if replaced:
        Ledger.open(path).close()
    with pytest.raises(LedgerDamaged, match=r"ledger\.db was removed or replaced"):
        sound.look(failed=False)


@pytest.mark.parametrize("why", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT])
def test_a_file_system_that_does_not_answer_has_not_taken_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    ledger = Ledger.open(tmp_path / "ledger.db")
    sound = Soundness(ledger)

    def stat(*_: object, **__: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(Path, "stat", stat)
    sound.look(failed=False)
