"""One of two ranks of which the second is killed between its write and the commit: `python dcp_lost_rank.py FOLDER RANK`."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor

from job_wrapper.checkpoint import DirectCommitter
from job_wrapper.checkpoint.dcp import DistributedRun


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=200)
    )
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    state: dict[str, Any] = {"x": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
    run = DistributedRun.open(committer=DirectCommitter.open(f"file://{folder}/store", "test") if rank == 0 else None)
    assert run is not None
    dcp.save(state, storage_writer=run.writer(1))
    state["x"] += 100
    writer = run.writer(2)
    if rank == 1:
        write = writer.write_data

        def write_and_die(*args: Any) -> Any:
            write(*args)
            os.kill(os.getpid(), signal.SIGKILL)

        writer.write_data = write_and_die  # type: ignore[method-assign]
    try:
        dcp.save(state, storage_writer=writer)
    except BaseException as error:
        (folder / "said").write_text(json.dumps([type(error).__name__, str(error)]))
        os._exit(3)  # the other rank is gone, and with it every collective


if __name__ == "__main__":
    main()
