"""Eight real processes on one run, killed, stopped and continued at random, and a server that is killed under them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from job_wrapper.store.codec import decode_entry
from job_wrapper.store.io_types import Kind
from job_wrapper.store.log import RunLog
from job_wrapper.store.open import open_store
from tests.fixtures.seaweedfs import S3Server
from tests.store import racer
from tests.store.history import check_log

PROCESSES = 8


class Racers:
    """The processes, each with a journal per life."""

    def __init__(self, uri: str, folder: Path, seconds: float) -> None:
        self._uri, self._folder, self._ends = uri, folder, time.monotonic() + seconds
        # SeaweedFS lets racers for one key wait for whole seconds; with pauses more happens.
        self._pause = "1.5" if uri.startswith("s3:") else "0.1"
        self.lives = 0
        self.processes = [self._start(n) for n in range(PROCESSES)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        self.lives += 1
        journal = self._folder / f"journal-{number}-{self.lives}"
        left = max(0.1, self._ends - time.monotonic())
        return subprocess.Popen(
            [sys.executable, racer.__file__, self._uri, str(journal), str(left), str(number), self._pause],
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )

    def disturb(self) -> None:
        """Kill one and start it anew, or stop one for a while, until the time is up."""
        while time.monotonic() < self._ends:
            number = random.randrange(PROCESSES)
            process = self.processes[number]
            if random.random() < 0.5:
                process.kill()
                process.wait()
                self.processes[number] = self._start(number)
            else:
                process.send_signal(signal.SIGSTOP)
                time.sleep(random.random() * 0.4)
                process.send_signal(signal.SIGCONT)
            time.sleep(random.random() * 0.3)

    def finish(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            assert process.wait(90) == 0

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _check(uri: str, folder: Path) -> int:
    acknowledged = []
    for journal in folder.glob("journal-*"):
        # The last line of a killed process may be cut off: that entry was not acknowledged to anyone.
        acknowledged += [decode_entry(line[:-1], str(journal)) for line in journal.open("rb") if line.endswith(b"\n")]
    entries = RunLog(open_store(uri, prove=False), racer.RUN).entries()
    check_log(entries, acknowledged)
    assert len({e.epoch for e in acknowledged}) >= 3  # they did take the run from each other
    assert sum(e.kind is Kind.COMMIT for e in acknowledged) > PROCESSES
    return len(entries)


def test_eight_processes(uri: str, tmp_path: Path) -> None:
    open_store(uri, prove=False, create=True)
    racers = Racers(uri, tmp_path, 8)
    try:
        racers.disturb()
        racers.finish()
    finally:
        racers.stop()
    print(_check(uri, tmp_path), "entries,", racers.lives, "lives")


@pytest.mark.s3
def test_eight_processes_while_the_server_is_killed(s3_server: S3Server, s3_uri: str, tmp_path: Path) -> None:
    began = time.monotonic()
    racers = Racers(s3_uri, tmp_path, 15)
    try:
        time.sleep(2)
        s3_server.kill()
        s3_server.start()
        print("server is back after", time.monotonic() - began)
        racers.finish()
    finally:
        racers.stop()
    print(_check(s3_uri, tmp_path), "entries in", time.monotonic() - began)
