"""The ledger: what was written is there after a kill; transitions happen once; a damaged file loses nothing that matters."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_plugin.cloud.provider import RefusalKind
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.errors import ConfigError
from slurm_plugin.ledger import KEEP_EVENTS, Ledger
from slurm_plugin.ledger_records import RELEASED, TRIED_AGAIN, Charge, Counter, IntentState, OpenNotice, SeenJob
from slurm_plugin.placement import FIRST_COOLING


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Ledger:
    return Ledger.open(tmp_path / "ledger.db", clock)


def test_it_is_private(ledger: Ledger, tmp_path: Path) -> None:
    ledger.event("x", "y")
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_the_life_of_an_intent(ledger: Ledger) -> None:
    intent = ledger.open_intent("n1", "spot", "p", "o")
    assert ledger.intents() == (intent,)
    ledger.launched(intent.launch_id, "i-1")
    assert (ledger.intents()[0].state, ledger.intents()[0].instance_id) == (IntentState.LIVE, "i-1")
    assert ledger.retire(intent.launch_id, "because")
    assert not ledger.retire(intent.launch_id, "again")
    ledger.launched(intent.launch_id, "i-1")
    assert ledger.intents()[0].state is IntentState.RETIRED, "a late answer does not bring it back"
    assert ledger.close_intent(intent.launch_id, "gone")
    assert not ledger.close_intent(intent.launch_id, "gone")
    assert ledger.intents() == ()
    assert ledger.intents(closed=True)[0].why == "gone"


def test_launch_ids_are_uuids_and_never_the_same(ledger: Ledger) -> None:
    import uuid

    ids = {ledger.open_intent("n1", "spot", "p", "o").launch_id for _ in range(50)}
    assert len({uuid.UUID(i) for i in ids}) == 50


def test_a_refusal_closes_and_cools_and_survives_a_restart(ledger: Ledger, tmp_path: Path, clock: Clock) -> None:
    intent = ledger.open_intent("n1", "spot", "p", "o")
    ledger.refused(intent.launch_id, RefusalKind.NO_CAPACITY, "Insufficient", "none left")
    ledger.refused(intent.launch_id, RefusalKind.NO_CAPACITY, "Insufficient", "none left")
    again = Ledger.open(tmp_path / "ledger.db", clock)
    state = again.offerings()["o"]
    assert (state.failures, state.refused_until, state.text) == (1, 1000 + FIRST_COOLING, "Insufficient: none left")
    assert again.intents() == ()


def test_try_later_keeps_the_intent_and_waits_longer_each_time(ledger: Ledger) -> None:
    intent = ledger.open_intent("n1", "spot", "p", "o")
    waits = []
    for _ in range(7):
        ledger.refused(intent.launch_id, RefusalKind.TRY_LATER, "Rate", "slow down")
        waits.append(ledger.intents()[0].retry_at - 1000)
        ledger.asked_again(intent.launch_id)
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    assert ledger.offerings() == {}


def test_blame_cools_once(ledger: Ledger) -> None:
    intent = ledger.open_intent("n1", "spot", "p", "o")
    ledger.launched(intent.launch_id, "i-1")
    for _ in range(3):
        ledger.retire(intent.launch_id, "never registered", blame=True)
    assert ledger.offerings()["o"].failures == 1


def test_adoption_of_known_and_unknown_machines(ledger: Ledger) -> None:
    known = ledger.open_intent("n1", "spot", "p", "o")

    def adopt(launch_id: str) -> None:
        ledger.adopt(
            launch_id=launch_id, instance_id="i-1", node="n1", nodeset="spot", provider="p", offering_id="o", launched=500.0
        )  # fmt: skip

    adopt(known.launch_id)
    adopt("elsewhere")
    adopt("elsewhere")
    assert [(i.launch_id, i.state, i.created) for i in ledger.intents()] == [
        ("elsewhere", IntentState.LIVE, 500.0),
        (known.launch_id, IntentState.LIVE, 1000.0),
    ]
    ledger.retire("elsewhere", "x")
    adopt("elsewhere")
    assert {i.launch_id: i.state for i in ledger.intents()}["elsewhere"] is IntentState.RETIRED
    ledger.close_intent("elsewhere", "x")
    adopt("elsewhere")
    assert "elsewhere" in {i.launch_id for i in ledger.intents()}, "seen again: it is open again"


def test_notices_replacements_jobs_and_counters(ledger: Ledger) -> None:
    notice = OpenNotice("e1", "n1", "l1", "o", 1060.0, "cloud", 1000.0)
    assert ledger.record_notice(notice)
    assert not ledger.record_notice(notice)
    assert ledger.notices() == (notice,)
    assert ledger.end_notice("e1", "withdrawn")
    assert not ledger.end_notice("e1", "withdrawn")
    assert ledger.record_notice(notice), "there again"
    assert ledger.open_replacement(1, "n2", "x")
    assert not ledger.open_replacement(1, "n2", "x")
    assert ledger.end_replacement(1, "n2", "used")
    assert not ledger.end_replacement(1, "n2", "used")
    assert ledger.open_replacement(1, "n2", "y")
    assert [(r.job_id, r.node, r.because) for r in ledger.replacements()] == [(1, "n2", "y")]
    for job, kind in ((1, RELEASED), (1, TRIED_AGAIN), (1, "other"), (2, RELEASED)):
        ledger.count(f"job:{job}", kind)
    ledger.forget_releases(1)
    assert set(ledger.counters()) == {("job:1", "other"), ("job:2", RELEASED)}
    ledger.forget_job(1)
    ledger.forget_job(2)
    ledger.remember_job(1, 2, "spot", ("n1", "n2"))
    assert ledger.seen_jobs() == {1: SeenJob(1, 2, "spot", ("n1", "n2"))}
    assert [ledger.count("job:1", "released") for _ in range(3)] == [1, 2, 3]
    assert ledger.counters() == {("job:1", "released"): Counter(3, 1000.0)}
    ledger.forget_job(1)
    assert ledger.seen_jobs() == {}
    assert ledger.counters() == {}


def test_events_by_job_and_node_oldest_first(ledger: Ledger, clock: Clock) -> None:
    for k in range(5):
        clock.now += 1
        ledger.event("kind", f"text {k}", node=f"n{k % 2}", job=k % 2, extra=k)
    assert [e.text for e in ledger.events(job=1)] == ["text 1", "text 3"]
    assert [e.text for e in ledger.events(node="n0", limit=2)] == ["text 2", "text 4"]
    assert ledger.events()[4].detail == {"extra": 4}
    clock.now += KEEP_EVENTS - 1
    ledger.prune()
    assert [e.text for e in ledger.events()] == ["text 3", "text 4"]


def test_a_batch_is_all_or_nothing(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError), ledger.batch():
        ledger.open_intent("n1", "spot", "p", "o")
        with ledger.batch():
            ledger.open_intent("n2", "spot", "p", "o")
        raise RuntimeError
    assert ledger.intents() == ()


def test_readers_beside_the_writer(ledger: Ledger, tmp_path: Path) -> None:
    reader = Ledger.open_readonly(tmp_path / "ledger.db")
    ledger.event("x", "seen")
    assert [e.text for e in reader.events()] == ["seen"]
    with pytest.raises(sqlite3.OperationalError):
        reader.event("x", "refused")
    with pytest.raises(ConfigError, match="there is no ledger"):
        Ledger.open_readonly(tmp_path / "none.db")


@pytest.mark.parametrize("damage", ["garbage", "empty table pages", "truncated"])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ledger.db"
    first = Ledger.open(path)
    for k in range(300):
        first.event("x", f"event {k} " + "x" * 200)
    first.close()
    data = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(os.urandom(5000))
    elif damage == "empty table pages":
        path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    else:
        path.write_bytes(data[: len(data) // 3])
    second = Ledger.open(path)
    assert len(second.events()) == 1
    assert "begun anew" in second.events()[0].text
    assert list(tmp_path.glob("ledger.db.damaged-*"))
    second.open_intent("n1", "spot", "p", "o")


@pytest.mark.parametrize("byte", [b"\xff", b"}", b"\x00", b"7"])
def test_a_flipped_byte_in_a_text_keeps_nothing_else_from_being_read(tmp_path: Path, byte: bytes) -> None:
    path = tmp_path / "ledger.db"
    first = Ledger.open(path)
    first.event("x", "an event", about="a detail")
    first.event("x", "another", about="another")
    first.remember_job(7, 1, "spot", ("spot-1", "spot-2"))
    first.remember_job(8, 1, "spot", ("spot-3",))
    first.close()
    data = path.read_bytes()
    for text in (b'"a detail"', b'"spot-1"'):
        data = data.replace(text, byte + text[1:])
    path.write_bytes(data)
    second = Ledger.open(path)
    assert [event.text for event in second.events()] == ["an event", "another"]
    assert second.events()[1].detail == {"about": "another"}
    assert [event.text for _, event in second.events_after(0)] == ["an event", "another"]
    assert second.seen_jobs()[8] == SeenJob(8, 1, "spot", ("spot-3",))


def test_a_file_whose_own_words_are_damaged_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(path).close()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"nodeset TEXT NOT NULL, provider", b"nodeset TEXT NOT NULL, qrovider"))
    assert "begun anew" in Ledger.open(path).events()[0].text
    path.write_bytes(whole.replace(b"CREATE TABLE intents", b"CREATE TABLE \xff\xfftents"))
    assert "begun anew" in Ledger.open(path).events()[0].text
    assert list(tmp_path.glob("ledger.db.damaged-*"))


_NUMBER = 12345.678
_AS_REAL = struct.pack(">d", _NUMBER)


_HEAD = bytes([5, 13 + 2 * len("job:7"), 13 + 2 * len("failed"), 9, 7])
"""Of a row of counters: its columns' kinds (https://sqlite.org/fileformat2.html#record_format); 9 is the number 1, 13 a text of no length."""


@pytest.mark.parametrize(
    ("what", "instead"),
    [(_HEAD, _HEAD.replace(b"\x09", b"\x0d")), (_AS_REAL, b"\x7f\xf8" + b"\x00" * 6)],
    ids=["a flipped bit makes it a text", "a NaN, which is read as NULL"],
)
def test_a_number_that_is_none_any_more_is_moved_aside(tmp_path: Path, what: bytes, instead: bytes) -> None:
    path = tmp_path / "ledger.db"
    first = Ledger.open(path, lambda: _NUMBER)
    first.count("job:7", "failed")
    first.close()
    whole = path.read_bytes()
    again = Ledger.open(path)
    assert again.counters() == {("job:7", "failed"): Counter(1, _NUMBER)}
    again.close()
    assert whole.count(what) == 1
    path.write_bytes(whole.replace(what, instead))
    second = Ledger.open(path)
    assert second.counters() == {}
    assert "begun anew" in second.events()[0].text
    assert list(tmp_path.glob("ledger.db.damaged-*"))


def test_a_sound_file_stays_whatever_may_be_in_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    first = Ledger.open(path)
    first.record_notice(OpenNotice("1", "2", "3", "4", None, "5", 6))
    first.charge_begins(Charge(7, 0, "8", 9), "10", None)
    first.note_prices({"11": 12, "13": math.inf})
    first.note_sizes({"14": MachineSize(15, 16, 17)})
    first.event("18", "19", node="20")
    first.close()
    second = Ledger.open(path)
    assert second.notices() == (OpenNotice("1", "2", "3", "4", None, "5", 6),)
    assert second.charges() == {(7, 0, "8"): Charge(7, 0, "8", 9)}
    assert second.live_prices() == {"11": 12, "13": math.inf}
    assert not list(tmp_path.glob("*.damaged-*"))


def test_a_file_of_a_newer_version_is_refused_not_moved(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(ConfigError, match="newer spotburst"):
        Ledger.open(path)
    assert path.exists()
    assert not list(tmp_path.glob("*.damaged-*"))


def test_a_place_that_cant_be_used_is_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(ConfigError, match="can't be opened"):
        Ledger.open(tmp_path / "ledger.db")


WRITE = """
import sys
from pathlib import Path
from slurm_plugin.ledger import Ledger
ledger = Ledger.open(Path(sys.argv[1]))
while True:
    with ledger.batch():
        intent = ledger.open_intent("n1", "spot", "p", "o")
        ledger.launched(intent.launch_id, "i-" + intent.launch_id)
    sys.stdout.write(intent.launch_id + "\\n")
    sys.stdout.flush()
"""


def test_kill_9_loses_nothing_that_was_written_and_leaves_no_half(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(tmp_path / "ledger.db")], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        acknowledged += [writer.stdout.readline().strip() for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        writer.wait()
    intents = Ledger.open(tmp_path / "ledger.db").intents()
    assert set(acknowledged) <= {i.launch_id for i in intents}
    assert all(i.state is IntentState.LIVE for i in intents)
    assert not list(tmp_path.glob("*.damaged-*"))


def test_when_a_machine_registered_is_kept_over_a_restart_and_only_the_first_time(
    ledger: Ledger, tmp_path: Path, clock: Clock
) -> None:
    booted, booting = (ledger.open_intent(n, "spot", "p", "o") for n in ("n1", "n2"))
    clock.now = 1005.0
    ledger.registered(booted.launch_id)
    clock.now = 1050.0
    ledger.registered(booted.launch_id)
    again = Ledger.open(tmp_path / "ledger.db", clock)
    assert {i.launch_id: i.registered for i in again.intents()} == {booted.launch_id: 1005.0, booting.launch_id: 0.0}
    again.close_intent(booted.launch_id, "gone")
    clock.now += KEEP_EVENTS + 100
    again.prune()
    assert [i.launch_id for i in again.intents(closed=True)] == [booting.launch_id]
    assert again._rows("SELECT * FROM registered") == []
