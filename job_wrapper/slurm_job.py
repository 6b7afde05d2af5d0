"""The wrapper's own door to Slurm: how this one job stands, and its requeue.

squeue with named fields rather than ``scontrol show job``: no field here holds text of a user's own, so that no job name or comment
with ``=`` in it can be misread. (22.05's ``squeue --json`` passes over its filters and dumps every job; its scontrol has no JSON.)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from job_wrapper.notice.types import LAST_SECOND

_FIELDS = ("State", "RestartCnt", "PreemptTime", "Requeue", "BatchFlag", "StartTime", "EndTime", "PriorityLong")
_FORMAT = ",".join(f"{name}:;" for name in _FIELDS)
PATIENCE = 10.0
"""Seconds that one command may take. slurmctld answers in milliseconds, or its client tries again for a minute."""

_YEAR = 365 * 86400.0
_COMING_BACK = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING"})


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as squeue shows it. ``state`` is the base state (squeue shows COMPLETING in place of the base state while one
    attempt is taken down). Times are Unix seconds, None where Slurm has none."""

    state: str
    restart_count: int = 0
    preempt_time: float | None = None
    requeue: bool = True
    batch: bool = True
    start_time: float | None = None
    end_time: float | None = None
    held: bool = False
    """``scontrol hold``: of a job that runs, that it is not to start again once it is requeued."""

    @property
    def running(self) -> bool:
        """Runs, and is not on its way out."""
        return self.state in ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING")

    @property
    def time_limit(self) -> float | None:
        """Seconds from its start to its end as Slurm has set it; None without a limit (Slurm then puts the end a year ahead)."""
        if self.start_time is None or self.end_time is None or self.end_time <= self.start_time:
            return None
        seconds = self.end_time - self.start_time
        return seconds if seconds < _YEAR else None

    @property
    def coming_back(self) -> bool:
        """Waits for its next attempt."""
        return self.state in _COMING_BACK


def parse_view(line: str) -> JobView:
    """One line of squeue's answer. Raises ``ValueError`` for anything else."""
    values = line.strip().rstrip(";").split(";")
    if len(values) != len(_FIELDS):
        raise ValueError(f"squeue answered {line.strip()!r}, which has not the {len(_FIELDS)} fields asked for")
    state, restarts, preempt, requeue, batch, start, end, priority = (value.strip() for value in values)
    flags = state.upper().replace("+", ",").split(",")
    if not all(flag.replace("_", "").isalpha() for flag in flags):
        raise ValueError(f"squeue answered the job state {state!r}")
    return JobView(
        # Where Slurm shows several flags, the way out counts: a job that is COMPLETING does not run.
        state="COMPLETING" if "COMPLETING" in flags else flags[0],
        restart_count=int(restarts),
        preempt_time=_seconds(preempt),
        requeue=_flag(requeue),
        batch=_flag(batch),
        start_time=_seconds(start),
        end_time=_seconds(end),
        held=priority == "0",
    )


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() and 0 < int(text) <= LAST_SECOND else None


def _flag(text: str) -> bool:
    # BatchFlag is 2 and more once slurmctld has requeued the job for a launch that failed.
    return text.lower() in ("yes", "y", "true") or (text.isdecimal() and text.strip("0") != "")


def is_interactive(job: SlurmJob, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the job was started by srun or salloc. sbatch leaves a word in the environment, which spares the question."""
    if environ.get("ENVIRONMENT") == "BATCH":
        return False
    view = job.view()
    return view is not None and not view.batch


class SlurmJob:
    """Commands about one job. ``job_id`` is the plain number (``SLURM_JOB_ID``), which is right for an array task too."""

    def __init__(self, job_id: str, *, bin_dir: str = "", environ: Mapping[str, str] = os.environ) -> None:
        self.job_id = job_id
        self._bin = bin_dir
        # SLURM_TIME_FORMAT makes squeue print Unix seconds; variables that change its output or its filters are left out.
        self._environ = {k: v for k, v in environ.items() if not k.startswith(("SQUEUE_", "SLURM_CLUSTERS"))}
        self._environ["SLURM_TIME_FORMAT"] = "%s"

    def view(self, job_id: str | None = None) -> JobView | None:
        """How the job stands; None when Slurm does not answer or does not know it: nothing may be concluded then."""
        code, out, _ = self._run("squeue", "-h", "-t", "all", "-j", job_id or self.job_id, "-O", _FORMAT)
        lines = [line for line in out.splitlines() if line.strip()]
        if code != 0 or not lines:
            return None
        try:
            return parse_view(lines[0])
        except ValueError:
            return None

    def runs_here(self, name_id: str, restart_count: int) -> bool | None:
        """Whether Slurm runs that attempt of the job (as users name it: a number alone may be a whole array's) on this node.

        None where Slurm does not answer.
        """
        node = self._environ.get("SLURMD_NODENAME", "")
        if not node:
            return False
        code, out, err = self._run("squeue", "-h", "-t", "all", "-j", name_id, "-w", node, "-O", _FORMAT)
        if code != 0:
            return False if "invalid" in err.lower() else None
        views = []
        for line in out.splitlines():
            with contextlib.suppress(ValueError):
                views.append(parse_view(line))
        return any(v.restart_count == restart_count and (v.running or v.state == "CONFIGURING") for v in views)

    def in_parts(self, step_id: int) -> bool | None:
        """Whether that step of the job is a heterogeneous one (``srun … : …``), of which each part is launched by itself.

        None where Slurm does not answer.
        """
        code, out, _ = self._run("squeue", "-h", "-s", f"{self.job_id}.{step_id}", "-o", "%i")
        steps = out.split()  # 12.0+0 and 12.0+1
        return any("+" in step.rpartition(".")[2] for step in steps) if code == 0 and steps else None

    def alive(self, job_id: str) -> bool:
        """Whether another job may still run. A job that Slurm answers not to know is gone; no answer means that it may."""
        task = job_id
        code, out, err = self._run("squeue", "-h", "-t", "all", "-j", task, "-O", _FORMAT)
        if code != 0:
            return "invalid job id" not in err.lower()
        views = []
        for line in out.splitlines():
            if line.strip():
                try:
                    views.append(parse_view(line))
                except ValueError:
                    return True
        return any(v.running or v.coming_back or v.state == "COMPLETING" for v in views)

    def lost_nodes(self, nodes: str) -> tuple[str, ...]:
        """Those of the nodes (a hostlist) that are down, go down, or do not answer Slurm; none where Slurm does not tell."""
        stand = self._nodes(nodes)
        return tuple(name for name, state in stand.items() if state.startswith("down") or state[-1] in "*~%!")

    def out_of_use(self, nodes: str) -> frozenset[str]:
        """Those of the nodes (a hostlist) on which Slurm starts nothing: drained, down, or going off; none where Slurm does not tell."""
        stand = self._nodes(nodes)
        return frozenset(n for n, state in stand.items() if state.startswith(("drain", "down")) or state[-1] in "~%!")

    def _nodes(self, nodes: str) -> dict[str, str]:
        if not nodes:
            return {}  # sinfo would tell of all nodes
        _, out, _ = self._run("sinfo", "-h", "-N", "-n", nodes, "-o", "%N %T")
        return dict(line.split(maxsplit=1) for line in out.splitlines() if len(line.split()) == 2)

    def requeue(self, *, hold: bool = False) -> str:
        """``scontrol requeue``, or ``requeuehold``. Returns "" for done, otherwise Slurm's words."""
        what = "requeuehold" if hold else "requeue"
        code, out, err = self._run("scontrol", what, self.job_id)
        return "" if code == 0 else (err.strip() or out.strip() or f"scontrol {what} ended with {code}")

    def release(self, name_id: str) -> None:
        """``scontrol release`` of this job as users name it: the number of an array's last task is the whole array's, too.

        What fails is passed over: the job is held at its next requeue then, as it was marked.
        """
        self._run("scontrol", "release", name_id)

    def comment(self) -> str | None:
        """The job's comment, "" for none; None where Slurm does not answer. Asked for alone, since it may hold anything."""
        code, out, _ = self._run("squeue", "-h", "-t", "all", "-j", self.job_id, "-o", "%k")
        text = out.rstrip("\n")
        return None if code != 0 else "" if text == "(null)" else text

    def set_comment(self, comment: str) -> None:
        """Replace the job's comment. What fails is passed over: nothing hangs on it but words."""
        self._run("scontrol", "update", f"JobId={self.job_id}", f"Comment={comment}")

    def _run(self, command: str, *arguments: str) -> tuple[int, str, str]:
        import subprocess  # only in a Slurm job

        program = str(Path(self._bin) / command) if self._bin else command
        try:
            done = subprocess.run(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE,
                env=self._environ,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return 127, "", f"{program}: {error}"
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
