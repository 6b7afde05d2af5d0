"""Slurm by pyslurm: no process is started for each question, and orders are typed values instead of words."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slurm_plugin.slurm import command, orders, parse
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.records import Job, Node, Partition, Start
from slurm_plugin.slurm.worker import Worker


def installed() -> bool:
    """Whether there is a pyslurm to import; it is not imported."""
    return importlib.util.find_spec("pyslurm") is not None


class PyslurmClient:
    """``SlurmClient`` over pyslurm, in a process of its own. Safe to use from several threads; ``timeout`` in seconds bounds each answer.

    What pyslurm's objects can't say goes by Slurm's commands in ``bin_dir``: orders for array tasks and parts of heterogeneous jobs,
    which it knows by number only, ``scancel`` of a job only if it waits, AdminComment, and slurmctld's version and start.
    """

    def __init__(self, bin_dir: Path | None = None, conf: Path | None = None, timeout: float = 10.0) -> None:
        self._commands = CliClient(bin_dir, conf, timeout)
        self._worker = Worker(command.environment(os.environ, conf), timeout)

    def built_for(self) -> tuple[int, int]:
        """The Slurm that pyslurm was built for: (22, 5). Raises ``SlurmUnavailable`` when it can't be imported."""
        version = str(self._worker.ask("pyslurm", "version"))
        major, minor = re.findall(r"\d+", version)[:2]
        return int(major), int(minor)

    def version(self) -> tuple[int, int, int]:
        """slurmctld's."""
        return self._commands.version()

    def slurmctld_start(self) -> Start:
        """By ``scontrol``."""
        return self._commands.slurmctld_start()

    def jobs(self) -> tuple[Job, ...]:
        """All jobs in slurmctld's memory. A requeued job that still completes is COMPLETING alone, as in 22.05's squeue."""
        return parse.records_of(self._worker.ask("pyslurm jobs", "jobs"), "jobs", parse.job, "pyslurm jobs")

    def nodes(self) -> tuple[Node, ...]:
        """All nodes."""
        return parse.records_of(self._worker.ask("pyslurm nodes", "nodes"), "nodes", parse.node, "pyslurm nodes")

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions, hidden ones included."""
        return tuple(
            Partition(**{**one, "nodes": parse.hosts(one["nodes"]), "preempt_mode": one["preempt_mode"].upper()})
            for one in self._worker.ask("pyslurm partitions", "partitions")
        )

    def update_nodes(
        self,
        names: Iterable[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        """As ``CliClient.update_nodes``."""
        if state == "idle":  # pyslurm knows it only as a state that Slurm shows
            self._commands.update_nodes(names, state=state, reason=reason, address=address)
            return
        reason = None if reason is None else orders.one_line(reason)

        def tell(hostlist: str) -> None:
            shown = f"update NodeName={hostlist}" + (f" State={state}" if state is not None else "")
            self._worker.ask(shown, "update_nodes", names=hostlist, state=state, reason=reason, address=address)

        orders.in_batches(names, tell)

    def requeue(self, job_id: str, *, hold: bool = False) -> None:
        """As ``scontrol requeue`` or ``requeuehold``."""
        if not self._order(job_id, "requeue", hold=hold):
            self._commands.requeue(job_id, hold=hold)

    def start_now(self, job_id: str) -> None:
        """As ``StartTime=now``."""
        if not self._order(job_id, "update_job", changes={"begin_time": int(time.time())}):
            self._commands.start_now(job_id)

    def hold(self, job_id: str, *, releasable: bool = False) -> None:
        """As ``scontrol hold`` or ``uhold``."""
        if releasable or not self._order(job_id, "hold"):
            self._commands.hold(job_id, releasable=releasable)

    def release(self, job_id: str) -> None:
        """As ``scontrol release``."""
        if not self._order(job_id, "release"):
            self._commands.release(job_id)

    def cancel(self, job_id: str) -> None:
        """``scancel --state=PENDING``."""
        self._commands.cancel(job_id)

    def end(self, job_id: str) -> None:
        """``scancel``."""
        self._commands.end(job_id)

    def signal(self, job_id: str, name: str) -> None:
        """``scancel --signal``."""
        self._commands.signal(job_id, name)

    def comment(self, job_id: str) -> str | None:
        """By ``squeue``."""
        return self._commands.comment(job_id)

    def set_comment(self, job_id: str, comment: str) -> None:
        """Line breaks become spaces, and what is longer than Slurm takes is cut."""
        if not self._order(job_id, "update_job", changes={"comment": orders.comment_of(comment)}):
            self._commands.set_comment(job_id, comment)

    def set_admin_comment(self, job_id: str, comment: str) -> None:
        """By ``scontrol``."""
        self._commands.set_admin_comment(job_id, comment)

    def close(self) -> None:
        """End pyslurm's process; the next question starts another."""
        self._worker.close()

    def _order(self, job_id: str, call: str, **arguments: Any) -> bool:
        """False if it takes the commands. Raises ``SlurmRefused`` for what is no job id."""
        if not orders.checked(job_id).isdecimal():
            return False
        self._worker.ask(f"{call} {job_id}", call, job_id=int(job_id), **arguments)
        return True
