"""What the rest of spotburst may ask of Slurm. Implemented over the commands (``cli``) and over pyslurm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.slurm.records import Job, Node, Partition, Start

__all__ = ["SlurmClient", "SlurmRefused", "SlurmUnavailable"]


class SlurmClient(Protocol):
    """A connection to one slurmctld. Every method raises ``SlurmUnavailable`` or ``SlurmRefused`` and nothing else.

    A record that can't be read is left out and logged; it never spoils the others. An answer that is broken as a whole is
    ``SlurmUnavailable``, never an empty list.
    """

    def version(self) -> tuple[int, int, int]:
        """Slurm's version: (22, 5, 8)."""
        ...

    def slurmctld_start(self) -> Start:
        """Of the slurmctld that answers. Of a backup: when its process began, not when it took over."""
        ...

    def jobs(self) -> tuple[Job, ...]:
        """All jobs that slurmctld has in memory, finished ones included (for MinJobAge seconds)."""
        ...

    def nodes(self) -> tuple[Node, ...]:
        """All nodes, powered-down cloud nodes included (22.05 shows these only with PrivateData=cloud)."""
        ...

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions."""
        ...

    def update_nodes(
        self,
        names: Iterable[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        """``scontrol update NodeName=… State=… Reason=… NodeAddr=…``, many nodes a call.

        ``state`` as scontrol spells it: power_up, power_down, power_down_force, down, drain, undrain, resume, idle.
        """
        ...

    def requeue(self, job_id: str, *, hold: bool = False) -> None:
        """``scontrol requeue`` (or requeuehold)."""
        ...

    def start_now(self, job_id: str) -> None:
        """Clear the begin time that a requeue sets (``StartTime=now``)."""
        ...

    def hold(self, job_id: str, *, releasable: bool = False) -> None:
        """``scontrol hold``; ``releasable``: as if its owner had held it (``uhold``), so that the owner can let it go."""
        ...

    def release(self, job_id: str) -> None:
        """``scontrol release``."""
        ...

    def cancel(self, job_id: str) -> None:
        """``scancel`` of a job that waits; one that has started meanwhile is left alone."""
        ...

    def end(self, job_id: str) -> None:
        """``scancel``, whatever the job's state."""
        ...

    def signal(self, job_id: str, name: str) -> None:
        """``scancel --signal``: to all steps of the job but its batch shell."""
        ...

    def comment(self, job_id: str) -> str | None:
        """The job's comment as it stands now; None where Slurm does not know the job."""
        ...

    def set_comment(self, job_id: str, comment: str) -> None:
        """Set the job's comment, the place where users look for why."""
        ...

    def set_admin_comment(self, job_id: str, comment: str) -> None:
        """Set the job's AdminComment: unlike the comment, the accounting keeps it wherever there is one."""
        ...
