"""One racing writer, run as a process of its own: ``python racer.py URI JOURNAL SECONDS JOB PAUSE``.

Claims the run again and again, each time as a newer attempt, and commits until it is fenced. Every acknowledged entry is written to the
journal before anything else is done.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from job_wrapper.errors import Fenced, RunHeld, StoreError
from job_wrapper.store.codec import encode_entry
from job_wrapper.store.decided_put import Patience
from job_wrapper.store.io_types import Entry, ObjectRef, Writer
from job_wrapper.store.log import RunLog
from job_wrapper.store.open import open_store

RUN = "c/races/main"


def main(uri: str, journal: str, seconds: float, job: str, pause: float) -> None:
    store = open_store(uri, prove=False)
    ends = time.monotonic() + seconds
    step = int(job) * 1_000_000
    restart = 0
    time.sleep(random.random() * pause)
    with Path(journal).open("ab", buffering=0) as file:

        def acknowledged(entry: Entry) -> None:
            file.write(encode_entry(entry) + b"\n")

        while time.monotonic() < ends:
            # A job id of its own for every attempt of every process, so that each may take over from any other.
            restart += 1
            nonce = os.urandom(8).hex()
            writer = Writer("c", f"{job}-{os.getpid()}-{restart}", 0, 0, "h", nonce)
            try:
                claim = RunLog(store, RUN, patience=Patience(seconds=8)).claim(writer)
                acknowledged(claim.entry)
                while time.monotonic() < ends:
                    step += 1
                    ref = ObjectRef(f"{claim.data_prefix}/manifest-{step}.json", 1, "xxh3-128:" + "0" * 32)
                    acknowledged(claim.commit(ref, step=int(f"{os.getpid()}{step}")))
                    if random.random() < 0.2:
                        time.sleep(random.random() * pause / 2)
            except (Fenced, RunHeld):
                time.sleep(random.random() * pause)
            except StoreError as error:
                print(error, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
