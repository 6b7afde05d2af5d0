"""Prints by how many bytes a program's memory grows at most for its checkpoints: python -m tests.bench.peak_memory staged|waited BYTES FOLDER

``staged``: a save in the background, its staging memory included. ``waited``: an urgent save with ``staging=False``.
A process of its own, because the high-water mark is one of a process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from job_wrapper.checkpoint import Checkpointer, DirectCommitter


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))


def grown(staged: bool, size: int, folder: str) -> int:
    """Bytes."""
    # What the first checkpoint of a process imports is not the state's.
    with Checkpointer(x=torch.ones(1 << 20), committer=DirectCommitter.open(f"file://{folder}", "warm")) as checkpoint:
        checkpoint.step()
    state = {str(n): torch.ones(size // 16 // 4) for n in range(16)}
    committer = DirectCommitter.open(f"file://{folder}", f"peak-{staged}")
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    with Checkpointer(state=state, committer=committer, staging=staged) as checkpoint:
        for _ in range(3):
            for tensor in state.values():
                tensor.add_(1)
            committer.ask(urgent=not staged)
            checkpoint.step()
            checkpoint._wait_in_flight()
        return _status("VmHWM") - before


if __name__ == "__main__":
    print(grown(sys.argv[1] == "staged", int(sys.argv[2]), sys.argv[3]))
