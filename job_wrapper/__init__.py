"""The node side of spotburst: the wrapper, the run's log, checkpoints and notices.

Nothing here imports ``slurm_plugin``, and importing this package imports neither torch nor any cloud SDK.

For Python programs that keep their state in files (for torch see ``job_wrapper.checkpoint``)::

    import job_wrapper

    job_wrapper.on_request(save)      # save() writes all state into job_wrapper.state_dir()
    for step in range(first, last):
        train(step)
        job_wrapper.requested()       # between steps: saves and commits when asked, ends the program when told to

A program that works off a list needs no files (``spotburst run --continuity restartable``)::

    for number in range(job_wrapper.completed(), total):
        work(number)
        job_wrapper.progress(number + 1, total)

Without a wrapper (no ``SPOTBURST_SOCKET``) these do nothing, so that the program also runs on a laptop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from job_wrapper.program import completed, log, on_request, progress, requested, restored, saved, state_dir

__all__ = ["completed", "log", "on_request", "progress", "requested", "restored", "saved", "state_dir"]


def __getattr__(name: str) -> Any:
    """The program's functions, imported when first used: the wrapper itself must start fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from job_wrapper import program

    return getattr(program, name)
