"""Racing creations by processes, each with connections of its own: ``python -m job_wrapper.store.race URI ENDPOINT``.

The parent writes lines ``<key> <time>``, each racer creates the object at that moment and answers ``created``, ``exists`` or ``error …``.
A server may decide rightly among requests of one connection or one front end, and wrongly among others.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

from job_wrapper.errors import StoreError
from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.open import open_store
from job_wrapper.store.paths import PROOF_KEY
from job_wrapper.store.probe import Proof

PROCESSES = 4
_NAME = "one winner of racing processes"
_AHEAD = 0.03
"""Seconds from the word to the start: time enough for all to have read it."""


def race_processes(store: ObjectStore, uri: str, endpoint_url: str, prefix: str, rounds: int) -> Proof:
    """Race ``PROCESSES`` processes for ``rounds`` objects under ``prefix``. Raises ``StoreError`` when too few rounds can be decided."""
    racers = [_start(uri, endpoint_url) for _ in range(PROCESSES)]
    try:
        decided = 0
        for number in range(rounds * 2):
            key = f"{prefix}process-{number}"
            answers = _round(racers, key)
            winners = [racer for racer, answer in enumerate(answers) if answer == "created"]
            if len(winners) > 1:
                return Proof(_NAME, False, f"{len(winners)} of {PROCESSES} processes all created one object")
            if len(winners) == 1 and all(answer in ("created", "exists") for answer in answers):
                if store.get(key) != _content(racers[winners[0]].pid):
                    return Proof(_NAME, False, "the object does not hold what its only creator wrote")
                decided += 1
            if decided == rounds:
                return Proof(_NAME, True, f"{decided} rounds of {PROCESSES} racing processes had one winner each")
    finally:
        for racer in racers:
            racer.kill()
            with racer:  # closes its pipes, and waits
                pass
    raise StoreError(
        f"{store.uri}: too many requests of {PROCESSES} racing processes fail ({answers[0]}); try again later"
    )


def _start(uri: str, endpoint_url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "job_wrapper.store.race", uri, endpoint_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def _round(racers: list[subprocess.Popen[str]], key: str) -> list[str]:
    answers = []
    for racer in racers:
        assert racer.stdout is not None  # noqa: S101
        if racer.stdout.readline() != "ready\n":
            raise StoreError(f"a racing process ended: python -m job_wrapper.store.race (exit status {racer.wait()})")
    start = time.time() + _AHEAD
    for racer in racers:
        assert racer.stdin is not None  # noqa: S101
        racer.stdin.write(f"{key} {start}\n")
        racer.stdin.flush()
    for racer in racers:
        assert racer.stdout is not None  # noqa: S101
        answers.append(racer.stdout.readline().strip() or "error: ended")
    return answers


def _content(pid: int) -> bytes:
    return f"process {pid}".encode()


def main(uri: str, endpoint_url: str) -> None:
    """One racer, until its input ends."""
    store = open_store(uri, endpoint_url=endpoint_url, prove=False)
    with contextlib.suppress(StoreError):
        store.get(PROOF_KEY)  # opens the connection
    print("ready", flush=True)
    for line in sys.stdin:
        key, start = line.split()
        time.sleep(max(0.0, float(start) - time.time()))
        try:
            answer = store.put_if_absent(key, _content(os.getpid())).value
        except StoreError as error:
            answer = f"error: {error}"
        print(answer.replace("\n", " "), flush=True)
        print("ready", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
