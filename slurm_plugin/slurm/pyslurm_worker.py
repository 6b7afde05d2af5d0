"""The process that holds libslurm for ``pyslurm_client``: one request in, one answer out. Nothing else imports pyslurm.

Apart, because libslurm ends its process over a slurm.conf that it can't read, keeps the interpreter's lock while it waits for an
answer, and reads slurm.conf only once.

Requests and answers are JSON. Jobs and nodes are answered in the keys that ``squeue --json`` and ``scontrol show nodes --json`` have, so
that ``parse`` makes records of both. Written for pyslurm's objects (Jobs, Nodes, Partitions), the same from 22.5.1 to 25.11.2.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any


def job_of(job: Any, tres: Mapping[str, Any]) -> dict[str, Any]:
    """A ``pyslurm.Job`` in ``squeue --json``'s keys. ``tres``: what it asked for, where the object doesn't tell."""
    array, task, waiting = job.array_id, job.array_task_id, job.array_tasks_waiting
    if array and task is None and not waiting:
        task = 0  # pyslurm takes a 0 for "not set"
    return {
        "job_id": job.id,
        "job_state": job.state,
        "state_reason": job.state_reason,
        "partition": job.partition,
        "user_name": job.user_name,
        "user_id": job.user_id,
        "nodes": job.allocated_nodes,
        "node_count": job.num_nodes,
        "restart_cnt": job.requeue_count,
        "requeue": job.is_requeueable,
        "batch_flag": job.is_batch_job,
        "priority": job.priority,
        "submit_time": job.submit_time,
        "eligible_time": job.eligible_time,
        "start_time": job.start_time,
        "end_time": job.end_time,
        "preempt_time": job.preempt_time,
        "deadline": job.deadline,
        "time_limit": job.time_limit if isinstance(job.time_limit, int) else None,
        "exit_code": {"return_code": job.exit_code, "signal": job.exit_code_signal},
        "comment": job.comment,
        "admin_comment": getattr(job, "admin_comment", None),
        "name": job.name,
        "features": ",".join(job.constraints or ()),
        "required_nodes": job.required_nodes,
        "excluded_nodes": job.excluded_nodes,
        "array_job_id": array,
        "array_task_id": task,
        "array_task_string": waiting and _with_limit(waiting, job.array_tasks_parallel),
        "het_job_id": job.heterogeneous_id,
        "het_job_offset": job.heterogeneous_offset,
        "tasks": job.ntasks,
        **tres,
    }


def _with_limit(waiting: str, parallel: int | None) -> str:
    return f"{waiting}%{parallel}" if parallel else waiting


def node_of(node: Any) -> dict[str, Any]:
    """A ``pyslurm.Node`` in ``scontrol show nodes --json``'s keys."""
    return {
        "name": node.name,
        "state": node.state,
        "reason": node.reason,
        "address": node.address,
        "hostname": node.hostname,
        "port": node.slurmd_port,
        "partitions": node.partitions,
        "active_features": node.active_features or node.available_features,
        "gres": ",".join(f"{name}:{count}" for name, count in (node.configured_gres or {}).items()),
        "cpus": node.total_cpus,
        "boot_time": node.boot_time,
        "last_busy": node.last_busy_time,
        "slurmd_start_time": node.slurmd_start_time,
    }


def partition_of(partition: Any) -> dict[str, Any]:
    """A ``pyslurm.Partition`` by the names of ``records.Partition``, its nodes still a hostlist."""
    return {
        "name": partition.name,
        "nodes": partition.nodes,
        "priority_tier": partition.priority_tier or 0,
        "grace_time": partition.preemption_grace_time or 0,
        "preempt_mode": partition.preempt_mode,
        "default": partition.is_default,
    }


class Calls:
    """What may be asked. ``pyslurm`` is the module."""

    def __init__(self, pyslurm: Any) -> None:
        self._pyslurm = pyslurm

    def version(self) -> str:
        """pyslurm's: the first two numbers are those of the Slurm that it was built for."""
        return str(self._pyslurm.version() if hasattr(self._pyslurm, "version") else self._pyslurm.__version__)

    def jobs(self) -> dict[str, Any]:
        """As ``squeue --json``."""
        jobs = self._all(self._pyslurm.Jobs.load())
        told = hasattr(self._pyslurm.Job, "tres_per_job")
        # Before 24.5 the objects don't tell how GPUs were asked for, but the older interface does.
        older = {} if told or not jobs else self._pyslurm.job().get()
        return {"jobs": [job_of(job, _tres_of(job) if told else _tres_among(older, job)) for job in jobs]}

    def nodes(self) -> dict[str, Any]:
        """As ``scontrol show nodes --json``."""
        return {"nodes": [node_of(node) for node in self._all(self._pyslurm.Nodes.load())]}

    def partitions(self) -> list[dict[str, Any]]:
        """As ``partition_of`` has them."""
        return [partition_of(partition) for partition in self._all(self._pyslurm.Partitions.load())]

    def update_nodes(self, names: str, state: str | None, reason: str | None, address: str | None) -> None:
        """``names`` is a hostlist."""
        wanted = {"state": state, "reason": reason, "address": address}
        changes = self._pyslurm.Node(**{key: value for key, value in wanted.items() if value is not None})
        self._pyslurm.Node(names).modify(changes)

    def requeue(self, job_id: int, hold: bool) -> None:
        """``hold``: it stays in the queue until it is released."""
        self._pyslurm.Job(job_id).requeue(hold=hold)

    def update_job(self, job_id: int, changes: dict[str, Any]) -> None:
        """``changes`` by the names of ``pyslurm.JobSubmitDescription``."""
        self._pyslurm.Job(job_id).modify(self._pyslurm.JobSubmitDescription(**changes))

    def hold(self, job_id: int) -> None:
        """As an administrator's hold, like ``scontrol hold``."""
        self._pyslurm.Job(job_id).hold()

    def release(self, job_id: int) -> None:
        """Let it be scheduled again."""
        self._pyslurm.Job(job_id).release()

    @staticmethod
    def _all(records: Any) -> list[Any]:
        return list(records.values())


def _tres_of(job: Any) -> dict[str, Any]:
    return {
        "tres_per_node": _text(job.tres_per_node),
        "tres_per_job": _text(job.tres_per_job),
        "tres_per_task": _text(job.tres_per_task),
        "tres_req_str": _text(job.requested_tres),
    }


def _text(tres: Any) -> str:
    """The GPUs of a ``TrackableResources``, as Slurm writes them."""
    found = getattr(tres, "gres", None) or {}
    return ",".join(f"{name}:{getattr(one, 'count', one)}" for name, one in found.items())


def _tres_among(older: Mapping[Any, Mapping[str, Any]], job: Any) -> dict[str, Any]:
    record = older.get(job.id) or older.get(str(job.id)) or {}
    return {key: record.get(key) for key in ("tres_per_node", "tres_per_job", "tres_per_task", "tres_req_str")}


def answer(calls: Calls, request: bytes) -> bytes:
    """One request's answer: ``{"result": …}``, or ``{"error": …}`` with Slurm's words."""
    try:
        asked = json.loads(request)
        call: Callable[..., Any] = getattr(calls, asked["call"])
        return json.dumps({"result": call(**asked["arguments"])}).encode()
    except Exception as error:  # whatever pyslurm raises is the caller's to judge
        return json.dumps({"error": str(error) or type(error).__name__}).encode()


def main() -> None:
    """Until the other end closes the pipe, whose number is the argument."""
    os.dup2(2, 1)  # libslurm and pyslurm print
    import pyslurm

    calls = Calls(pyslurm)
    with Connection(int(sys.argv[1])) as pipe:
        while True:
            try:
                request = pipe.recv_bytes()
            except EOFError:
                return
            pipe.send_bytes(answer(calls, request))


if __name__ == "__main__":
    main()
