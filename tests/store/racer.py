"""One racing writer, run as a process of its own: ``python racer.py URI JOURNAL TURN NAME PAUSE``.

The file ``TURN`` names the run that is raced for now (empty: end). The racer claims it again and again, each time as a newer attempt, and
commits until it is fenced, has made a few commits, or the run is two turns old: so it goes on a while where nobody races any more. Every acknowledged entry is
written to the journal, after its run's name, before anything else is done.
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


def run_of(turn: int) -> str:
    """The run that is raced for in a turn."""
    return f"c/races/h{turn}"


def main(uri: str, journal: str, turn_file: str, name: str, pause: float) -> None:
    store = open_store(uri, prove=False)
    step = restart = 0

    def turn() -> int:
        text = Path(turn_file).read_text()
        if not text:
            sys.exit()
        return int(text)

    time.sleep(random.random() * pause)
    with Path(journal).open("ab", buffering=0) as file:

        def acknowledged(run: str, entry: Entry) -> None:
            file.write(f"{run} ".encode() + encode_entry(entry) + b"\n")

        while True:
            # A job id of its own for every attempt of every process, so that each may take over from any other.
            restart += 1
            mine = turn()
            run = run_of(mine)
            writer = Writer("c", f"{name}-{os.getpid()}-{restart}", 0, 0, "h", os.urandom(8).hex())
            try:
                claim = RunLog(store, run, patience=Patience(seconds=8)).claim(writer)
                acknowledged(run, claim.entry)
                # A claim by another job reads the whole log; a holder that goes on for ever without a pause is hard to overtake.
                for _ in range(random.choice((1, 3, 6, 15))):
                    if turn() > mine + 1:
                        break
                    step += 1
                    ref = ObjectRef(f"{claim.data_prefix}/manifest-{step}.json", 1, "xxh3-128:" + "0" * 32)
                    acknowledged(run, claim.commit(ref, step=int(f"{os.getpid()}{step:06d}")))
                    if random.random() < 0.5:
                        time.sleep(random.random() * pause)
            except (Fenced, RunHeld):
                time.sleep(random.random() * pause)
            except StoreError as error:
                print(error, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5]))
