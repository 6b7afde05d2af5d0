"""The program as a process: started, watched, signalled and killed together with all that it starts.

**Where signals end.** Slurm's signals must reach the wrapper and not the program: a program that dies of SIGTERM can't checkpoint. Who
is signalled depends on proctrack: with cgroup only the wrapper (its children only for SIGKILL), with pgid the wrapper's process group,
with linuxproc the whole process tree. A session of its own takes the program out of pgid's reach; for linuxproc the program starts with
SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 ignored, which exec keeps. A program that installs handlers gets those signals all the same.

What that costs: a helper that the program ends with SIGTERM and that sets no handler of its own (``multiprocessing``'s
``Process.terminate``, ``timeout``, ``kill %1``) does not end, and a POSIX shell can't trap these signals. So the Python client puts a
handler in place of "ignored" (`client`), which exec and fork then undo for helpers; others may use SIGKILL or SIGINT. The other way
round, a signal at its default, would lose the checkpoint, which is what this program is for.

**Who kills.** The kernel sends the program SIGKILL when the wrapper dies (PR_SET_PDEATHSIG). That does not reach what the program has
started, so a guard process waits for the wrapper's end and kills the whole group.

Both are forked before the wrapper has threads, and wait: a fork with threads about may find a lock held for ever.

**A terminal of one's own** (``srun --pty spotburst run -- bash``): there the wrapper leads the terminal's session, and the program stays in
it, as the foreground group. So Ctrl-C and Ctrl-Z reach the program and not the wrapper, and a shell has its job control.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from job_wrapper.run.signals import IGNORED

KILL_PATIENCE = 10.0
"""Seconds that a killed process is waited for."""
_PR_SET_PDEATHSIG = 1


class Child:
    """One program: forked by ``prepare``, started by ``start``."""

    def __init__(self, pid: int, guard: int, command: int, failure: int, lifeline: int) -> None:
        self.pid = pid
        self._guard = guard
        self._command = command
        self._failure = failure
        self._lifeline = lifeline
        self.started = False
        self._group_gone = False

    @classmethod
    def prepare(cls, *, ignore_signals: bool = True, leftovers: Sequence[str] = ()) -> Child:
        """Fork the process that will become the program, and the guard. Call while there is only one thread.

        ``leftovers`` are paths (files before the folder that holds them) that the guard removes once the wrapper is gone.
        """
        wrapper, terminal = os.getpid(), leads_terminal()
        if terminal:
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it goes on writing when the program has the terminal
        command_out, command_in = os.pipe()
        failure_out, failure_in = os.pipe()
        pid = os.fork()
        if pid == 0:
            _never_return(
                lambda: _become(wrapper, command_out, command_in, failure_out, failure_in, ignore_signals, terminal)
            )
        os.close(command_out)
        os.close(failure_in)
        lifeline_out, lifeline_in = os.pipe()
        guard = os.fork()
        if guard == 0:
            os.close(command_in)
            os.close(failure_out)
            os.close(lifeline_in)
            _never_return(lambda: _guard(lifeline_out, pid, leftovers))
        os.close(lifeline_out)
        return cls(pid, guard, command_in, failure_out, lifeline_in)

    def start(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Become the program. Raises ``OSError`` with the reason when it can't be executed; it has ended then."""
        message = json.dumps([list(argv), dict(environ)]).encode()
        try:
            with os.fdopen(self._command, "wb", closefd=True) as pipe:
                pipe.write(message)
        except BrokenPipeError:
            pass  # killed before it began: its end tells
        self._command = -1
        with os.fdopen(self._failure, "rb", closefd=True) as pipe:
            failure = pipe.read()
        self._failure = -1
        if failure:
            number, _, name = failure.decode().partition(" ")
            raise OSError(int(number), os.strerror(int(number)), name)
        self.started = True

    def signal(self, number: int) -> None:
        """Signal the program and all in its process group."""
        if self._group_gone:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            os.kill(self.pid, number)

    def reap(self) -> int | None:
        """Exit code, or minus the signal, once it has ended; None before that. What it left in its group is killed."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG | (os.WUNTRACED if leads_terminal() else 0))
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            # By Ctrl-Z, and there is no shell above to go on with it.
            self.signal(signal.SIGCONT)
            return None
        with contextlib.suppress(ProcessLookupError, PermissionError):  # another user's may be left, as of sudo
            os.killpg(self.pid, signal.SIGKILL)
        self._group_gone = True
        with contextlib.suppress(OSError):  # there is no guard any more
            os.write(self._lifeline, b"-")
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill what is left, and end the guard."""
        self.kill()
        for fd in (self._command, self._failure, self._lifeline):
            if fd >= 0:
                os.close(fd)
        self._command = self._failure = self._lifeline = -1
        for pid in (self.pid, self._guard):
            _wait(pid)


def leads_terminal() -> bool:
    """Whether this process leads the session of the terminal that it reads from."""
    return os.getsid(0) == os.getpid() and os.isatty(0)


def _wait(pid: int) -> None:
    """For a process that was killed, but not for ever: one that hangs in a driver can't be killed at all."""
    until = time.monotonic() + KILL_PATIENCE
    pause = 0.0005
    while time.monotonic() < until:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return
        except ChildProcessError:
            return
        time.sleep(pause)
        pause = min(0.05, pause * 2)


def _never_return(work: object) -> None:
    """Run the life of a forked process; whatever happens it must not fall back into the wrapper's own code."""
    try:
        work()  # type: ignore[operator]
    finally:
        os._exit(127)


def _become(
    wrapper: int, command_out: int, command_in: int, failure_out: int, failure_in: int, ignore: bool, terminal: bool
) -> None:
    os.close(command_in)
    os.close(failure_out)
    if terminal:
        os.setpgid(0, 0)
    else:
        os.setsid()
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    import ctypes  # here, beside the wrapper's own start rather than before it

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != wrapper:
        os._exit(127)  # it died before the line above
    with os.fdopen(command_out, "rb", closefd=True) as pipe:
        message = pipe.read()
    if not message:
        os._exit(127)  # nothing is to be started
    argv, environ = json.loads(message)
    if not ignore:
        for number in IGNORED:
            signal.signal(number, signal.SIG_DFL)
    if terminal:
        os.tcsetpgrp(0, os.getpid())  # not before: until the program starts, Ctrl-C is for the wrapper
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    # Python ignores these two for itself; programs expect them as the system has them.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environ)  # noqa: S606 - the program is what the user named
    except OSError as error:
        os.write(failure_in, f"{error.errno} {argv[0]}".encode())


def _guard(lifeline: int, group: int, leftovers: Sequence[str]) -> None:
    for number in (*IGNORED, signal.SIGINT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    if os.read(lifeline, 1):
        # The program has ended, and its group with it: the number may be another group's by the wrapper's end.
        os.read(lifeline, 1)
    else:  # the wrapper has ended before it, however it did
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for path in leftovers:
        with contextlib.suppress(OSError):
            Path(path).rmdir() if Path(path).is_dir() else Path(path).unlink()
    os._exit(0)
