"""The training run of `training` as a program of its own: `python program.py STORE RESULT [what happens]`.

``hang:PHASE``: at the second save, say "hanging" and hang just before that phase's write. ``await:STEP``: in that step, wait for a request.
Without a store it runs under the wrapper, or undisturbed.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

from job_wrapper.checkpoint import DirectCommitter
from job_wrapper.client import shared
from tests.unit.checkpoint.training import Attempt, open_run, train

SAVES = (4, 9)


class Hanging:
    """A store that hangs for ever at one phase of the second save."""

    def __init__(self, store: Any, phase: str) -> None:
        self.store, self.phase, self.seen = store, phase, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def _reach(self, phase: str) -> None:
        if phase == self.phase:
            self.seen += 1
            if self.seen == len(SAVES):
                print("hanging", flush=True)
                threading.Event().wait()

    def open_write(self, key: str) -> Any:
        self._reach("pack")
        writer = self.store.open_write(key)
        close = writer.close
        writer.close = lambda: (self._reach("pack end"), close())
        return writer

    def put(self, key: str, data: Any) -> None:
        self._reach("part" if key.endswith(".part") else "manifest" if "/manifest-" in key else "")
        self.store.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> Any:
        is_commit = b'"commit"' in data
        if is_commit:
            self._reach("commit")
        result = self.store.put_if_absent(key, data)
        if is_commit:
            self._reach("committed")
        return result


def wait_for_request(committer: DirectCommitter | None) -> None:
    """Until a checkpoint is asked for; a minute at most."""
    connection = shared()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if committer.request() if committer is not None else connection is not None and connection.request:
            return
        time.sleep(0.01)


def main() -> None:
    store, result, what = sys.argv[1], Path(sys.argv[2]), [*sys.argv[3:], ""][0]
    committer: DirectCommitter | None = open_run(Path(store)) if store != "-" else None
    phase = what.removeprefix("hang:") if what.startswith("hang:") else ""
    if committer is not None and phase:
        hanging: Any = Hanging(committer.store, phase)
        committer.store = committer._claim.store = hanging

    def before_step(step: int, committer: DirectCommitter | None) -> None:
        print(f"step {step}", flush=True)
        if what == f"await:{step}":
            wait_for_request(committer)
        if phase and step in SAVES and committer is not None:
            committer.ask(urgent=True)

    attempt: Attempt = train(committer, before_step=before_step)
    if attempt.exit_code is not None:
        sys.exit(attempt.exit_code)
    result.write_bytes(pickle.dumps(attempt))


if __name__ == "__main__":
    main()
