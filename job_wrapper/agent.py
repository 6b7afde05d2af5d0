"""``spotburst agent``: runs as root on a node, hears its reclaim notice, tells the jobs on it and drains the node.

The notice goes into a file that every wrapper on the node watches (`notice.file`); the drain keeps new jobs away and shows the
administrator why. A step that failed is tried again until it is done: a notice is never lost on the way.

Told to end, as at a shutdown, it looks once more (Compute Engine's notice comes together with the shutdown), and while the node is being
taken away it stays until the job steps here have ended: its unit holds the network, munge and the file systems that they save with.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from job_wrapper.errors import SpotburstError, UsageError
from job_wrapper.node_config import NodeConfig, load_node_config
from job_wrapper.notice.choose import cloud_watcher, find_provider
from job_wrapper.notice.file import HEARTBEAT_SECONDS, beat, read_notice, write_notice
from job_wrapper.notice.types import TAKES_AWAY, Notice
from job_wrapper.notice.watch import CloudWatcher

OURS = "spotburst: "
"""Reasons that begin with this are set, and may be cleared, by the agent."""
RETRY_SECONDS = 1.0
SCONTROL_SECONDS = 20.0
LAST_LOOK_SECONDS = 2.5
STAY_SECONDS = 30.0
"""How long a node that goes away is held for its steps where no deadline is told."""
LONGEST_STAY = 150.0


def drain_reason(notice: Notice) -> str:
    """Such as ``spotburst: aws reclaim by 2026-05-02T08:22:00Z``."""
    by = ""
    if notice.deadline is not None:
        by = " by " + time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(notice.deadline))
    return f"{OURS}{notice.provider} {notice.kind}{by}"


class Drain(Enum):
    """What the node should be."""

    LEAVE = "leave"
    DRAINED = "drained"
    UNDRAINED = "undrained"


@dataclass(slots=True)
class Wanted:
    """What is still to be done for the newest notice."""

    drain: Drain = Drain.LEAVE
    reason: str = ""
    notice: Notice | None = None
    write: bool = False


class Node:
    """``scontrol`` about one node. Returns "" for done, otherwise what went wrong."""

    def __init__(self, name: str, slurm_bin: str = "") -> None:
        self.name = name
        self._scontrol = str(Path(slurm_bin) / "scontrol") if slurm_bin else "scontrol"
        self._sinfo = str(Path(slurm_bin) / "sinfo") if slurm_bin else "sinfo"

    def drain(self, reason: str) -> str:
        """Drain with a reason. A node that is drained for another reason keeps that one."""
        state, standing = self._stands()
        if state.startswith("drain") and not standing.startswith(OURS):
            return ""
        return self._run(self._scontrol, "update", f"NodeName={self.name}", "State=DRAIN", f"Reason={reason}")[1]

    def undrain(self) -> str:
        """Undrain if the reason is ours."""
        state, standing = self._stands()
        if not state:
            return standing
        if not standing.startswith(OURS):
            return ""
        return self._run(self._scontrol, "update", f"NodeName={self.name}", "State=UNDRAIN")[1]

    def _stands(self) -> tuple[str, str]:
        """The node's state and reason; ("", what went wrong) when Slurm does not tell."""
        code, text = self._run(self._sinfo, "-h", "-N", "-n", self.name, "-o", "%T;%E")
        state, _, reason = (text.splitlines() or [""])[0].partition(";")
        if code != 0 or not state:
            return "", text or f"sinfo does not know the node {self.name}"
        return state.strip().lower(), reason.strip()

    def _run(self, *command: str) -> tuple[int, str]:
        """Exit code, and what it answered; for a command without an answer "" means that it is done."""
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SCONTROL_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return 127, f"{command[0]}: {error}"
        if done.returncode == 0:
            return 0, done.stdout.decode(errors="replace").strip()
        text = (done.stderr or done.stdout).decode(errors="replace").strip()
        return done.returncode, text or f"{command[0]} ended with {done.returncode}"


class Agent:
    """The loop. ``heard`` may be called from another thread."""

    def __init__(self, node: NodeConfig, slurm: Node, log: Callable[[str], None]) -> None:
        self._file = Path(node.notice_file)
        self._slurm = slurm
        self._log = log
        self._changed = threading.Condition()
        self._wanted = Wanted()
        self._ended = False

    def heard(self, notice: Notice | None) -> None:
        """A notice, or None: it is withdrawn. The newest one is what counts."""
        with self._changed:
            if notice is None:
                self._wanted = Wanted(Drain.UNDRAINED, "", None, True)
                self._log("the notice was withdrawn")
            else:
                going = notice.kind in TAKES_AWAY
                reason = drain_reason(notice)
                if not going and self._wanted.notice is not None and self._wanted.notice.kind in TAKES_AWAY:
                    return  # a mere warning does not stand before a reclaim
                self._wanted = Wanted(Drain.DRAINED if going else Drain.LEAVE, reason, notice, True)
                self._log(f"notice: {reason.removeprefix(OURS)}")
            self._changed.notify_all()

    def end(self) -> None:
        """Make ``run`` return."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def leaving(self) -> Notice | None:
        """The notice that takes the node away; None while it stays."""
        with self._changed:
            notice = self._wanted.notice
        return notice if notice is not None and notice.kind in TAKES_AWAY else None

    def run(self) -> None:
        """Do what is wanted until ``end``."""
        while True:
            with self._changed:
                ended, wanted = self._ended, self._wanted
            again = self._do(wanted)
            if ended:
                return
            with contextlib.suppress(OSError):  # then the wrappers ask the cloud themselves
                beat(self._file)
            with self._changed:
                if not self._ended and self._wanted is wanted:
                    self._changed.wait(RETRY_SECONDS if again else HEARTBEAT_SECONDS)

    def _do(self, wanted: Wanted) -> bool:
        """The file first: the jobs' time is short. Returns whether something is to be tried again."""
        if wanted.write:
            try:
                if wanted.notice is None:
                    self._file.unlink(missing_ok=True)
                else:
                    write_notice(self._file, wanted.notice)
                wanted.write = False
            except OSError as error:
                self._log(f"{self._file}: {error.strerror}; trying again")
        if wanted.drain is not Drain.LEAVE:
            failed = self._slurm.drain(wanted.reason) if wanted.drain is Drain.DRAINED else self._slurm.undrain()
            if failed:
                self._log(f"{failed}; trying again")
            else:
                self._log(f"node {self._slurm.name} {wanted.drain.value}")
                wanted.drain = Drain.LEAVE
        return wanted.write or wanted.drain is not Drain.LEAVE


def parser() -> argparse.ArgumentParser:
    """Of the agent's arguments."""
    made = argparse.ArgumentParser(
        prog="spotburst agent",
        description="Watch this node's cloud for reclaim notices, tell the jobs on it, and drain it.",
    )
    made.add_argument("--node", default="", help="Slurm's name of this node (default: the node's settings)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """``spotburst agent``: returns the exit code. Ends on SIGTERM or SIGINT."""
    arguments = parser().parse_args(argv)

    def log(text: str) -> None:
        print(f"spotburst agent: {text}", file=sys.stderr, flush=True)

    try:
        settings = load_node_config()
        name = arguments.node or settings.node
        if not name:
            raise UsageError("this node's name is not known: give --node NAME, or put it into /etc/spotburst/node.json")
        done = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: done.set())
        provider = find_provider(settings, done.wait)
        if not provider:
            raise UsageError(
                f"this node's settings name no provider (node.json: provider), and none answers at {settings.metadata_url}: "
                "there is nothing to watch"
            )
        # A notice that an earlier agent put there stands until the cloud no longer gives it.
        known = read_notice(Path(settings.notice_file))
        watcher = cloud_watcher(settings, provider, log, known=known)
        agent = Agent(settings, Node(name, settings.slurm_bin), log)
        if known is not None:
            agent.heard(known)  # its drain may not have been done
        log(f"watching {provider} for node {name}")
        return _serve(agent, watcher, done, log)
    except SpotburstError as error:
        log(str(error))
        return int(error.exit_code)


def _serve(agent: Agent, watcher: CloudWatcher, done: threading.Event, log: Callable[[str], None]) -> int:
    """Until ``done``, and then as long as a node that goes away needs it."""

    def start(target: Callable[..., None], *given: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=given, daemon=True, name="spotburst-agent")
        thread.start()
        return thread

    threads = [start(watcher.watch, agent.heard, done.wait), start(agent.run)]
    while not done.wait(1.0):
        if not all(thread.is_alive() for thread in threads):
            log("a thread has ended unexpectedly")
            return 1  # systemd starts it again
    threads[0].join(LAST_LOOK_SECONDS)
    if not threads[0].is_alive():
        over = threading.Event()
        looks, until = watcher.looks, time.monotonic() + LAST_LOOK_SECONDS
        threads[0] = start(watcher.watch, agent.heard, over.wait)
        while watcher.looks == looks and time.monotonic() < until:
            time.sleep(0.02)
        _stay(agent, log)
        over.set()
    agent.end()
    threads[1].join(SCONTROL_SECONDS)
    return 0


def _stay(agent: Agent, log: Callable[[str], None]) -> None:
    """While the node is being taken away and steps run on it."""
    said = False
    longest = time.monotonic() + LONGEST_STAY
    while (notice := agent.leaving()) is not None and time.monotonic() < longest:
        deadline = notice.deadline if notice.deadline is not None else notice.arrived + STAY_SECONDS
        if time.time() >= deadline or not steps_here():
            return
        if not said:
            said = True
            log("told to end; staying for the job steps of this node, which is being taken away")
        time.sleep(0.2)


def steps_here(proc: Path = Path("/proc")) -> bool:
    """Whether Slurm runs a job step on this node: each has a ``slurmstepd``."""
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if (folder / "comm").read_text(encoding="utf-8", errors="replace").strip() == "slurmstepd":
                    return True
    return False
