"""Attempts in processes of their own, without the seconds that importing torch takes: `python forking.py` forks one for each line.

A line on stdin is JSON: ``{"kind", "store", "result", "end"}``. When that process is gone, its exit code (minus the signal) is printed.
Nothing is left of an attempt that is killed, nor of all this when stdin's other end is closed or its process is gone.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer's step would import it

from job_wrapper.checkpoint import DirectCommitter
from tests.unit.checkpoint.lifeline import children_end_with_me, end_with_parent
from tests.unit.checkpoint.training import KINDS, open_run, train

EPOCHS = 2


def attempt(kind: str, store: str, result: str, end: dict[str, Any] | None) -> int:
    """One attempt, and how it ends (``test_loaders.End``)."""
    began: list[int] = []

    def before_step(step: int, committer: DirectCommitter | None) -> None:
        began.append(step)
        here = step - began[0] + 1
        if end is None or committer is None:
            return
        if here in end["saves"] or (end["how"] == "save, kill" and here == end["after"]):
            committer.ask()
        if end["how"] == "stop" and here == end["after"]:
            committer.ask(urgent=True, stop=True)
        if end["how"] == "save, kill" and here == end["after"] + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    if end is not None and end["how"] == "kill":
        threading.Timer(0.02 * end["after"], os.kill, (os.getpid(), signal.SIGKILL)).start()
    committer = open_run(Path(store)) if store else None
    done = train(committer, kind=KINDS[kind], epochs=EPOCHS, before_step=before_step)
    if done.exit_code is None:
        whole = Path(result).with_suffix(".part")  # a kill may come right here
        whole.write_bytes(pickle.dumps(done))
        whole.replace(result)
    return done.exit_code or 0


def main() -> None:
    torch.set_num_threads(1)
    end_with_parent()
    children_end_with_me()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = attempt(**json.loads(line))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
