"""Who this wrapper is: which job, attempt, step and rank. Pure, from the environment that Slurm gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from job_wrapper.errors import UsageError
from job_wrapper.node_config import NodeConfig

_NO_STEP = frozenset({"", "4294967291", "4294967290", "batch", "extern"})
"""Slurm sets no step id in a batch shell (22.05.8); 4294967291 (0xfffffffb) is its number for a batch step."""
LOCAL = "local"
"""Cluster name of runs outside Slurm."""
BATCH_STEP = -1


@dataclass(frozen=True, slots=True)
class Identity:
    """``job_id`` is Slurm's number, for its commands; ``name_id`` is what users type and what the run is named after (``123_4``)."""

    cluster: str
    job_id: str
    name_id: str
    restart_count: int
    step_id: int
    rank: int
    tasks: int
    nodes: int
    step_nodes: int = 1
    """Nodes of this step, which may be fewer than the job's."""
    node_index: int = 0
    """This node's place among them."""
    local_rank: int = 0
    """This task's place among those of its node."""
    node_list: str = ""
    """The step's nodes, as Slurm's commands take them."""
    launcher: str = ""
    """The port at which the srun that launched the step listens: one for all tasks, but for each part of a heterogeneous step its own."""

    @property
    def launch(self) -> dict[str, str]:
        """What rank 0 tells of the step's launch: one attempt may be launched twice, on other nodes or on the same ones (``relaunch``)."""
        return {"nodes": self.node_list, "launcher": self.launcher}

    @property
    def peers(self) -> bool:
        """The step has tasks on other nodes."""
        return self.tasks > 1 and self.step_nodes > 1

    @property
    def speaks(self) -> bool:
        """It tells rank 0 of its node's notices: the first task of a node other than rank 0's."""
        return self.peers and self.local_rank == 0 and self.node_index > 0

    @property
    def in_slurm(self) -> bool:
        """Started by Slurm."""
        return bool(self.job_id)

    @property
    def in_batch_step(self) -> bool:
        """Started by the batch script itself rather than by srun."""
        return self.in_slurm and self.step_id == BATCH_STEP


def identify(environ: Mapping[str, str], node: NodeConfig, run: str) -> Identity:
    """Raises ``UsageError`` for an environment that can't be read, or one outside Slurm without a run's name."""
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id:
        if not run:
            raise UsageError(
                "this is no Slurm job, so the run needs a name: spotburst run --run NAME --uri URI -- COMMAND. "
                "The same name goes on from the last checkpoint"
            )
        return Identity(node.cluster or LOCAL, "", run, 0, BATCH_STEP, 0, 1, 1)
    cluster = environ.get("SLURM_CLUSTER_NAME") or node.cluster
    if not cluster:
        raise UsageError("SLURM_CLUSTER_NAME is not set, and this node's settings name no cluster")
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
    batch = step in _NO_STEP
    return Identity(
        cluster=cluster,
        job_id=str(_number(environ, "SLURM_JOB_ID", 0)),
        name_id=f"{array}_{task}" if array and task else job_id,
        restart_count=_number(environ, "SLURM_RESTART_COUNT", 0),
        step_id=BATCH_STEP if batch else _number({"SLURM_STEP_ID": step}, "SLURM_STEP_ID", 0),
        # In a batch shell SLURM_NTASKS tells of the job's tasks, but there is only this one process.
        rank=0 if batch else _number(environ, "SLURM_PROCID", 0),
        tasks=1 if batch else _number(environ, "SLURM_STEP_NUM_TASKS", _number(environ, "SLURM_NTASKS", 1)),
        nodes=_number(environ, "SLURM_JOB_NUM_NODES", _number(environ, "SLURM_NNODES", 1)),
        step_nodes=1 if batch else _number(environ, "SLURM_STEP_NUM_NODES", _number(environ, "SLURM_NNODES", 1)),
        node_index=0 if batch else _number(environ, "SLURM_NODEID", 0),
        local_rank=0 if batch else _number(environ, "SLURM_LOCALID", 0),
        node_list="" if batch else environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST", "")),
        # Slurm tells the tasks of a heterogeneous job that they are some (22.05.8, 24.11.5), and not those of a heterogeneous step.
        launcher="" if batch or "SLURM_HET_SIZE" in environ else environ.get("SLURM_STEP_LAUNCHER_PORT", ""),
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise UsageError(f"{name}={text!r} is not a number: this environment was not made by Slurm")
    return int(text)
