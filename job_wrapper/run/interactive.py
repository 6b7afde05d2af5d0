"""Jobs of srun and salloc: Slurm does not bring them back, but somebody sits before them.

So a notice is told on the terminal with the time that is left, what there is to save is saved at once and once more before the end, and
the command is shown that goes on from it on another node. Until shortly before the deadline the session goes on.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from job_wrapper.notice.types import TAKES_AWAY, Notice, Watcher
from job_wrapper.run.asked import SIGNAL
from job_wrapper.run.identity import Identity
from job_wrapper.run.options import EPHEMERAL, RESTARTABLE, Options

LAST_CALL = 30.0
"""Seconds before the deadline at which the session ends, and is saved for the last time."""
LEAST = 5.0
"""Seconds of session that are worth a second save."""
_VALUED = ("--run", "--name")


def session_left(left: float) -> float:
    """Seconds of session to go before the last save, of ``left`` seconds to the deadline; 0: save for the last time now. Pure."""
    wait = left - min(LAST_CALL, left / 2)
    return wait if wait >= LEAST else 0.0


def command_to_go_on(
    argv: Sequence[str], options: Options, identity: Identity, environ: Mapping[str, str], *, terminal: bool
) -> str:
    """The shell command that goes on from this run in a new job. ``argv``: the arguments of ``spotburst run``. Pure."""
    srun = ["srun"]
    for name, flag in (
        ("SLURM_JOB_PARTITION", "--partition"),
        ("SLURM_JOB_ACCOUNT", "--account"),
        ("SLURM_STEP_NUM_NODES", "--nodes"),
        ("SLURM_NTASKS", "--ntasks"),
        ("SLURM_CPUS_PER_TASK", "--cpus-per-task"),
        ("SLURM_MEM_PER_NODE", "--mem"),
    ):
        value = environ.get(name, "")
        if value and value not in ("(null)", "1" if flag in ("--nodes", "--ntasks") else ""):
            srun.append(f"{flag}={value}")
    gpus = environ.get("SLURM_GPUS_ON_NODE", "")
    if gpus.isdecimal() and int(gpus):
        srun.append(f"--gres=gpu:{gpus}")
    if any(not folder.startswith("/") for folder in options.state_dirs):
        srun.append(f"--chdir={environ.get('PWD') or os.curdir}")
    if terminal:
        srun.append("--pty")
    split = list(argv).index("--") if "--" in argv else len(argv) - len(options.command)
    kept, given = [], iter(argv[:split])
    for word in given:
        if word in _VALUED:
            next(given, None)
        elif not word.startswith(tuple(f"{name}=" for name in _VALUED)):
            kept.append(word)
    if environ.get("SPOTBURST_URI") and not any(word.split("=")[0] == "--uri" for word in kept):
        kept += ["--uri", environ["SPOTBURST_URI"]]
    run = ["--run", options.run or identity.name_id, *(["--name", options.name] if options.name != "main" else [])]
    return shlex.join([*srun, "spotburst", "run", *run, *kept, "--", *options.command])


def begin_session(
    argv: Sequence[str],
    options: Options,
    identity: Identity,
    say: Callable[[str], None],
    environ: Mapping[str, str] = os.environ,
) -> Session:
    """The session of this wrapper, which is told about at once."""
    command = command_to_go_on(argv, options, identity, environ, terminal=sys.stdin.isatty())
    saves = ", ".join(options.state_dirs) or (
        "the progress" if options.continuity == RESTARTABLE else "what the program's Checkpointer holds"
    )
    session = Session(
        say if identity.rank == 0 else lambda _: None, command, "" if options.continuity == EPHEMERAL else saves
    )
    session.begin()
    return session


class Session:
    """What is told on the terminal. ``watched`` puts it before a watcher. Used from the watchers' threads."""

    def __init__(
        self,
        say: Callable[[str], None],
        command: str,
        saves: str,
        *,
        clock: Callable[[], float] = time.time,
        ask: Callable[[], None] = lambda: os.kill(os.getpid(), SIGNAL),
    ) -> None:
        """``command`` goes on elsewhere; ``saves``: what is saved, in words ("" for nothing); ``ask``: asks for a checkpoint now."""
        self.say, self.command, self.saves = say, command, saves
        self._clock, self._ask = clock, ask
        self._last_calls: dict[str, tuple[float, threading.Timer]] = {}
        """By notice: its deadline, and what ends the session before it."""
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Said at the start."""
        kept = (
            f"{self.saves} is saved, and how to go on elsewhere is shown"
            if self.saves
            else "nothing is saved (--continuity ephemeral)"
        )
        self.say(f"Slurm does not bring back a job of srun or salloc: when its node goes away, {kept}")

    def watched(self, watcher: Watcher) -> Watcher:
        """``watcher``, whose notices come when the session has to end, and are told before."""
        return _Watched(self, watcher)

    def heard(self, notice: Notice | None, emit: Callable[[Notice | None], None]) -> None:
        """One notice, or that there is none any more."""
        with self._lock:
            if notice is None:
                for _, timer in self._last_calls.values():
                    timer.cancel()
                self._last_calls.clear()
                self.say("the notice was withdrawn: this node stays")
            elif notice.kind in TAKES_AWAY and notice.deadline is not None:
                standing = self._last_calls.get(notice.source_id)
                if standing is not None and notice.deadline >= standing[0]:
                    return
                if standing is not None:
                    standing[1].cancel()  # there is less time than was told
                left = notice.deadline - self._clock()
                wait = session_left(left)
                self._tell(notice, left, wait)
                timer = threading.Timer(wait, lambda: emit(replace(notice, arrived=self._clock())))
                timer.daemon = True
                self._last_calls[notice.source_id] = notice.deadline, timer
                timer.start()
                if wait:
                    self._ask()
                return
        emit(notice)

    def _tell(self, notice: Notice, left: float, wait: float) -> None:
        self.say(f"\a*** This node goes away in {max(0.0, left):.0f} s ({notice.provider} {notice.kind}).")
        if self.saves:
            when = f"now, and again in {wait:.0f} s, when this session ends" if wait else "now, and this session ends"
            self.say(f"*** {self.saves} is saved {when}.")
        else:
            self.say(f"*** Nothing is saved (--continuity ephemeral); this session ends in {wait:.0f} s.")
        self.say(f"*** To go on, on another node: {self.command}")

    def end(self, committed: bool) -> None:
        """Said once the session has ended, if its node goes away."""
        if self._last_calls and committed:
            self.say(f"to go on: {self.command}")


class _Watched:
    def __init__(self, session: Session, watcher: Watcher) -> None:
        self._session, self._watcher = session, watcher

    def watch(self, emit: Callable[[Notice | None], None], stopped: Callable[[float], bool]) -> None:
        """See ``Watcher``."""
        self._watcher.watch(lambda notice: self._session.heard(notice, emit), stopped)
