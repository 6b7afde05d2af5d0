"""A rank under torchrun and the wrapper: whose SIGTERM it is.

Slurm's may reach every process of the job, and the ranks must outlive it to save; that of torchrun means that another rank has failed, and that
this one is to end. torchrun kills a rank that ignores it only after 30 s, which may be all the time that a failing node has left.

The two look the same here (a handler does not learn the sender, and does not run while the rank waits in a collective). But Slurm's reaches
the wrapper too, so it is asked. ``signal.set_wakeup_fd`` tells of the signal at once, whatever the main thread does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping

from job_wrapper import client
from job_wrapper.protocol import SOCKET_VARIABLE
from job_wrapper.tell import ask_signal

WAIT = 1.0
"""Seconds within which Slurm's signal reaches all processes of a job."""
AGENT_VARIABLE = "TORCHELASTIC_RUN_ID"


def end_with_torchrun(environ: Mapping[str, str] = os.environ) -> bool:
    """From now on torchrun's SIGTERM ends this process, with exit code 143. Returns whether it applies here.

    Not outside the main thread, nor where the program has a handler or a wakeup descriptor of its own.
    """
    path = environ.get(SOCKET_VARIABLE)
    if not path or AGENT_VARIABLE not in environ or threading.current_thread() is not threading.main_thread():
        return False
    free = signal.getsignal(signal.SIGTERM) in (signal.SIG_IGN, signal.SIG_DFL)
    if not free and not client.holds(signal.SIGTERM):
        return False
    out, into = os.pipe()
    os.set_blocking(into, False)
    before = signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        os.close(out)
        os.close(into)
        return False
    if free:
        signal.signal(signal.SIGTERM, _nothing)
        signal.siginterrupt(signal.SIGTERM, False)
    os.register_at_fork(after_in_child=_forget)
    threading.Thread(target=_listen, args=(out, path), name="spotburst-torchrun", daemon=True).start()
    return True


def _nothing(number: int, frame: object) -> None:
    """The descriptor tells."""


def _forget() -> None:
    """A forked helper has no thread that would read, and is to end by SIGTERM."""
    signal.set_wakeup_fd(-1)
    if signal.getsignal(signal.SIGTERM) is _nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _listen(out: int, path: str) -> None:
    while numbers := os.read(out, 4096):
        if signal.SIGTERM in numbers and not wrapper_has_it(path):
            os._exit(128 + signal.SIGTERM)


def wrapper_has_it(path: str) -> bool:
    """Whether the wrapper at that socket has had SIGTERM too, so that it is Slurm's; also when it can't be asked, or does not tell."""
    came = time.monotonic()
    time.sleep(WAIT)
    try:
        ago = ask_signal(signal.SIGTERM, path)
    except OSError:
        return True
    return ago is not None and ago <= time.monotonic() - came + WAIT
