"""``spotburst run``: from arguments and environment to a running wrapper."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from job_wrapper.errors import SpotburstError
from job_wrapper.interval import SHORTEST, rate_of
from job_wrapper.node_config import load_node_config
from job_wrapper.notice.choose import wrapper_watchers
from job_wrapper.run.attempt import Attempt
from job_wrapper.run.child import Child
from job_wrapper.run.identity import identify
from job_wrapper.run.loop import Wrapper, leave
from job_wrapper.run.machine import Machine
from job_wrapper.run.options import parse_options
from job_wrapper.run.rules import Rules
from job_wrapper.run.server import socket_path
from job_wrapper.slurm_job import SlurmJob, is_interactive

if TYPE_CHECKING:
    from job_wrapper.run.following import Following
    from job_wrapper.run.gang import Gang
    from job_wrapper.run.interactive import Session


def _sayer(prefix: str) -> Callable[[str], None]:
    def say(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{prefix}{text}\n")
            sys.stderr.flush()

    return say


def main(argv: Sequence[str] | None = None) -> int:
    """Run the wrapper; returns its exit code (errors.ExitCode, or the program's own)."""
    say = _sayer("spotburst: ")
    try:
        node = load_node_config()
        options = parse_options(sys.argv[1:] if argv is None else argv, node)
        identity = identify(os.environ, node, options.run)
        if identity.tasks > 1:
            say = _sayer(f"spotburst: rank {identity.rank}: ")
        path = socket_path()
        child = Child.prepare(leftovers=(path, str(Path(path).parent)))
    except SpotburstError as error:
        say(str(error))
        return int(error.exit_code)
    try:
        job = SlurmJob(identity.job_id, bin_dir=node.slurm_bin) if identity.in_slurm else None
        session: Session | None = None
        if job is not None and is_interactive(job):
            from job_wrapper.run.interactive import begin_session

            session = begin_session(sys.argv[1:] if argv is None else argv, options, identity, say)
            options = replace(options, requeue=False)
        make: type[Attempt] = Attempt
        if identity.rank > 0:
            from job_wrapper.run.follower import Follower

            make = Follower
        attempt = make(options, identity, node, job, say)
        rules = Rules(
            interval=options.interval,
            rate=rate_of(node.interruption_rate, node.offering, identity.nodes),
            state_dirs=bool(options.state_dirs),
            in_slurm=identity.in_slurm,
            requeue=options.requeue,
            commits=attempt.commits and options.continuity != "ephemeral",
            restart_count=identity.restart_count,
            patience=options.patience,
            counters=options.continuity == "restartable",
            peers=identity.peers,
        )
        if 0 < options.interval < SHORTEST and rules.commits:
            say(
                f"a checkpoint every {options.interval:g} s is for trials only, since each leaves an entry in the run's log for good; "
                f"else write --interval {SHORTEST / 60:g}m or more, or auto"
            )
        watchers = wrapper_watchers(node, say)
        if job is not None and identity.in_batch_step:
            from job_wrapper.notice.slurm import PreemptWatcher

            say(
                "this is the batch script itself, which Slurm does not signal before preemption: put `srun` before `spotburst run`; "
                "watching the job's preempt time instead"
            )
            watchers.append(PreemptWatcher(job.view, identity.restart_count))
        if session is not None:
            watchers = [session.watched(watcher) for watcher in watchers]
        machine: Machine | Following = Machine(rules)
        gang: Gang | None = None
        if identity.rank > 0:
            from job_wrapper.run.following import Following
            from job_wrapper.run.gang import Telling

            machine, gang = Following(rules), Telling(identity, node.here)
        elif identity.peers:
            from job_wrapper.run.gang import Listening

            gang = Listening(identity.step_nodes - 1)
        wrapper = Wrapper(attempt, machine, child, watchers, say, path, gang)
    except SpotburstError as error:
        child.close()
        say(str(error))
        return int(error.exit_code)
    code = wrapper.run()
    if session is not None:
        session.end(attempt.newest is not None)
    if wrapper.by_hand and code != 0 and attempt.commits:
        say(f"ended by Ctrl-C; {attempt.how_to_go_on()}")
    return leave(code, wrapper.quiet)
