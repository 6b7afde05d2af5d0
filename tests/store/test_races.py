"""Eight real processes that race for runs, killed, stopped and continued at random, with answers that get lost between them and the server,
and a server that is killed under them.

Of every run's log, whatever happened: no two live epochs commit, no acknowledged entry is lost, no stale commit follows a newer claim.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_wrapper.errors import Damaged
from job_wrapper.store.codec import decode_entry
from job_wrapper.store.io_types import Entry, Kind
from job_wrapper.store.log import RunLog
from job_wrapper.store.open import open_store
from tests.fixtures.lossy import LOST_ANSWER, Lossy, kind, lossy, unkind
from tests.fixtures.ports import free_ports
from tests.fixtures.rclone import rclone
from tests.fixtures.seaweedfs import S3Server
from tests.fixtures.server import Server
from tests.store import racer
from tests.store.conftest import SERVERS, use
from tests.store.history import check_log

PROCESSES = 8
HISTORIES = max(3, int(os.environ.get("SPOTBURST_LOG_HISTORIES", "120")) // 40)
"""Runs raced for on every store, one for each 40 histories of the model (``test_log_model``)."""
EPOCHS, COMMITS = 3, 6
"""A run is raced for until so many attempts have claimed it and so many commits were acknowledged."""
LIMIT = 180.0
"""Seconds in which that must be so, the processes' start included."""


class Racers:
    """The processes, each with a journal per life."""

    def __init__(self, uri: str, folder: Path, pause: float) -> None:
        self._uri, self._folder, self._pause = uri, folder, pause
        self._turn_file = folder / "turn"
        self._turn("0")
        self.lives = 0
        self.stops = 0
        self.processes = [self._start(n) for n in range(PROCESSES)]

    def _turn(self, text: str) -> None:
        (self._folder / "turn.new").write_text(text)
        (self._folder / "turn.new").replace(self._turn_file)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self.lives += 1
        journal = self._folder / f"journal-{number}-{self.lives}"
        command = [
            sys.executable,
            racer.__file__,
            self._uri,
            str(journal),
            str(self._turn_file),
            str(number),
            str(self._pause),
        ]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(Path.cwd())})

    def race(self, turn: int, *, disturbed: bool = True) -> None:
        """Let them race for the run of ``turn`` until enough has happened, to the processes too if they are ``disturbed``."""
        lives, stops = self.lives, self.stops
        self._turn(str(turn))
        limit = time.monotonic() + LIMIT
        while not self._enough(turn) or (disturbed and (self.lives == lives or self.stops == stops)):
            assert time.monotonic() < limit, f"turn {turn}: too little happened in {LIMIT} s"
            if disturbed:
                self._disturb()
            time.sleep(random.random() * 0.2)

    def all_begun(self) -> None:
        """Wait until none is alone because the others still start."""
        limit = time.monotonic() + LIMIT
        while len(list(self._folder.glob("journal-*"))) < self.lives:
            assert time.monotonic() < limit, f"not all have started in {LIMIT} s"
            time.sleep(0.05)

    def _enough(self, turn: int) -> bool:
        entries = self.acknowledged()[racer.run_of(turn)]
        epochs = {entry.epoch for entry in entries}
        return len(epochs) >= EPOCHS and sum(e.kind is Kind.COMMIT for e in entries) >= COMMITS

    def _disturb(self) -> None:
        """Kill one and start it anew, or stop one for a while."""
        number = random.randrange(PROCESSES)
        process = self.processes[number]
        # Where starting takes long not all are to be starting all the time.
        if random.random() < 0.5 and len(list(self._folder.glob("journal-*"))) == self.lives:
            process.kill()
            process.wait()
            self.processes[number] = self._start(number)
        else:
            self.stops += 1
            process.send_signal(signal.SIGSTOP)
            time.sleep(random.random() * 0.3)
            process.send_signal(signal.SIGCONT)

    def acknowledged(self) -> dict[str, list[Entry]]:
        """All that writers were told they had written, by run."""
        found: dict[str, list[Entry]] = defaultdict(list)
        for journal in self._folder.glob("journal-*"):
            for line in journal.open("rb"):
                # The last line of a killed process may be cut off: that entry was not acknowledged to anyone.
                if line.endswith(b"\n"):
                    run, _, data = line[:-1].partition(b" ")
                    found[run.decode()].append(decode_entry(data, str(journal)))
        return found

    def finish(self) -> None:
        """All come to their end by themselves."""
        self._turn("")
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            assert process.wait(LIMIT) == 0

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def check(uri: str, racers: Racers) -> tuple[int, int]:
    """Every run's log against what its writers were told. Returns the number of runs and of entries."""
    store = open_store(uri, prove=False)
    runs = racers.acknowledged()
    count = 0
    for run, acknowledged in runs.items():
        entries = RunLog(store, run).entries()
        check_log(entries, acknowledged)
        count += len(entries)
    return len(runs), count


@pytest.fixture(params=["file", *(pytest.param(name, marks=pytest.mark.s3) for name in SERVERS)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, float, Lossy | None]]:
    """URI, pause of the racers, and the proxy through which they reach it."""
    if request.param == "file":
        yield f"file://{tmp_path}/store", 0.1, None
        return
    server: S3Server | Server = request.getfixturevalue(
        "s3_server" if request.param == "seaweedfs" else f"{request.param}_server"
    )
    with lossy(server.environment, free_ports(1)[0]) as proxy:
        use(monkeypatch, proxy.environment(server.environment))
        # SeaweedFS lets racers for one key wait for whole seconds; with pauses more happens.
        yield f"{server.uri}/{os.urandom(6).hex()}", 1.0 if request.param == "seaweedfs" else 0.2, proxy


@pytest.mark.timeout(120 + LIMIT * (HISTORIES + 1))
def test_eight_processes(place: tuple[str, float, Lossy | None], tmp_path: Path) -> None:
    uri, pause, proxy = place
    open_store(uri, prove=False, create=True)
    if proxy is not None:
        proxy.choose = unkind(random.randrange(1000))
    racers = Racers(uri, tmp_path, pause)
    try:
        for turn in range(HISTORIES):
            racers.race(turn)
        racers.finish()
    finally:
        racers.stop()
    if proxy is not None:
        proxy.settle()
        assert proxy.met[LOST_ANSWER] > 0
        proxy.choose = kind
    runs, entries = check(uri, racers)
    assert runs >= HISTORIES
    lost = dict(proxy.met) if proxy else {}
    print(f"{runs} histories, {entries} entries, {racers.lives} lives, {racers.stops} stops, {lost}")


def goes_wrong(uri: str, folder: Path) -> bool:
    """Whether the check finds something after a race there."""
    folder.mkdir()
    racers = Racers(uri, folder, 0.1)
    try:
        racers.all_begun()
        for turn in range(2):
            racers.race(turn, disturbed=False)
        racers.finish()
    finally:
        racers.stop()
    try:
        check(uri, racers)
    except (AssertionError, Damaged):
        return True
    return False


@pytest.mark.s3
@pytest.mark.timeout(120 + 4 * LIMIT)
def test_the_check_sees_what_a_server_without_the_precondition_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rclone(tmp_path) as server:
        use(monkeypatch, server.environment)
        # Two must ask at one moment: most often they do in the first race.
        assert any(goes_wrong(f"{server.uri}/{n}", tmp_path / f"race-{n}") for n in range(10))


@pytest.mark.s3
@pytest.mark.timeout(120 + 3 * LIMIT)
def test_eight_processes_while_the_server_is_killed(s3_server: S3Server, s3_uri: str, tmp_path: Path) -> None:
    racers = Racers(s3_uri, tmp_path, 1.0)
    try:
        racers.race(0, disturbed=False)
        s3_server.kill()
        s3_server.start()
        racers.race(1, disturbed=False)
        racers.finish()
    finally:
        racers.stop()
    assert check(s3_uri, racers)[0] >= 2
