"""For torch programs: the whole training state into the run's checkpoints, and back at the exact step.

::

    from job_wrapper.checkpoint import Checkpointer, ResumableSampler

    sampler = ResumableSampler(dataset, seed=1, batch_size=32)
    loader = DataLoader(dataset, batch_sampler=sampler)
    with Checkpointer(model=model, optimizer=optimizer, scheduler=scheduler, data=sampler) as checkpoint:
        while checkpoint.completed < steps:
            for batch in loader:
                …                       # forward, backward, optimizer.step(), scheduler.step()
                checkpoint.step()       # the save boundary

Under ``spotburst run`` this resumes, saves when the wrapper asks, and leaves when the node goes away. Elsewhere it does nothing.
"""

from __future__ import annotations

from job_wrapper.checkpoint.checkpointer import Checkpointer
from job_wrapper.checkpoint.committer import Committer, DirectCommitter, SocketCommitter
from job_wrapper.checkpoint.process import shield_worker
from job_wrapper.checkpoint.sampler import ResumableSampler
from job_wrapper.checkpoint.state import UnsupportedState

__all__ = [
    "Checkpointer",
    "Committer",
    "DirectCommitter",
    "ResumableSampler",
    "SocketCommitter",
    "UnsupportedState",
    "shield_worker",
]
