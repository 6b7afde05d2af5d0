"""Two ranks under torchrun: one fails at a word, while the other waits for it in a collective."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from job_wrapper.checkpoint import torchrun
from job_wrapper.checkpoint.dcp import DistributedRun

folder, how = Path(sys.argv[1]), sys.argv[2]
if how == "train":
    torchrun.WAIT = 20.0  # the test may be kept from sending one signal right after the other
dist.init_process_group("gloo")
run = DistributedRun.open()
assert run is not None
state = {"step": 0, "weights": torch.zeros(2)}
run.load(state)
dist.barrier()
if dist.get_rank() == 0:
    (folder / f"began-{state['step']}").touch()
if how == "fail" and dist.get_rank() == 1:
    while not (folder / "now").exists():
        time.sleep(0.05)
    sys.exit(7)
if how == "fail":
    time.sleep(1000)
while state["step"] < 100000:
    state["step"] += 1
    time.sleep(0.02)
    if run.wanted():
        run.save(state, state["step"])
        run.wanted()
