"""What a checkpoint costs, each figure beside a reference measured in the same run.

python tests/bench/bench_checkpoint.py [MiB] [FOLDER]
"""

from __future__ import annotations

import ctypes
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from job_wrapper.checkpoint import Checkpointer, DirectCommitter, ResumableSampler

ROUNDS = 5


def seconds(act: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def line(what: str, value: float, reference: str, ref: float, bar: str) -> None:
    print(f"{what:52} {value * 1000:10.1f} ms   {value / ref:6.2f} x {reference} ({ref * 1000:.1f} ms)   bar {bar}")


def memcpy(size: int) -> float:
    source, target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
    return seconds(lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), size))


def save_and_sync(state: Any, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def write_and_sync(data: memoryview, path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while data:
            data = data[file.write(data) :]
        os.fsync(file.fileno())


def stops(folder: Path, state: dict[str, torch.Tensor], name: str) -> tuple[list[float], list[float], float]:
    """(time that training stops, time to the commit) of some saves whose bytes are all new, and the time of a restore."""
    committer = DirectCommitter.open(f"file://{folder}", name)
    stall, whole = [], []
    checkpoint = Checkpointer(state=state, committer=committer)
    checkpoint.step()
    time.sleep(1)  # the arena is made beside the training
    for _ in range(ROUNDS):
        for tensor in state.values():
            tensor.add_(1)
        committer.ask()
        began = time.perf_counter()
        checkpoint.step()
        stall.append(time.perf_counter() - began)
        while checkpoint._saving is not None:
            time.sleep(0.0005)
        whole.append(time.perf_counter() - began)
    checkpoint.close()
    fresh = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    began = time.perf_counter()
    Checkpointer(state=fresh, committer=DirectCommitter.open(f"file://{folder}", name))
    return stall, whole, time.perf_counter() - began


def steps_without_a_request(folder: Path) -> float:
    """Seconds a step, beyond the loop itself."""
    length = 200_000
    sampler = ResumableSampler(length, seed=1, batch_size=1, shuffle=False)
    committer = DirectCommitter.open(f"file://{folder}", "flag")
    with Checkpointer(data=DataLoader(range(length), batch_sampler=sampler), committer=committer) as checkpoint:
        batches = iter(sampler)
        next(batches)
        checkpoint.step()
        sampler._issued = length  # measure step(), not the loader
        began = time.perf_counter()
        for _ in range(length - 1):
            checkpoint.step()
        step = (time.perf_counter() - began) / (length - 1)
        began = time.perf_counter()
        for _ in range(length - 1):
            pass
        return step - (time.perf_counter() - began) / (length - 1)


def main() -> None:
    """Print the table."""
    size = int(sys.argv[1] if len(sys.argv) > 1 else 512) << 20
    folder = Path(tempfile.mkdtemp(dir=sys.argv[2] if len(sys.argv) > 2 else None))
    try:
        flag = steps_without_a_request(folder)
        print(f"{'step() with nothing asked':52} {flag * 1e6:10.2f} us   bar under 2 us")
        copy = memcpy(size)
        state = {str(n): torch.randn(size // 16 // 4) for n in range(16)}
        stall, whole, restore = stops(folder, state, "large")
        line("training stops, first save", stall[0], "memcpy", copy, "1.15 x")
        line("training stops, later saves", statistics.median(stall[1:]), "memcpy", copy, "1.15 x")
        written = seconds(lambda: write_and_sync(memoryview(bytearray(size)), folder / "w"), 3)
        saved = seconds(lambda: save_and_sync(state, folder / "t"), 3)
        line("save, until the commit", statistics.median(whole), "write + fsync", written, "1.0 x")
        line("", statistics.median(whole), "torch.save + fsync", saved, "-")
        line("verified restore from page cache", restore, "memcpy", copy, "2 x")
        line("", restore, "torch.load", seconds(lambda: torch.load(folder / "t", weights_only=True), 3), "-")
        small = {str(n): torch.randn(1024) for n in range(20_000)}
        together = 20_000 * 4096
        written = seconds(lambda: write_and_sync(memoryview(bytearray(together)), folder / "w"), 3)
        stall, whole, restore = stops(folder, small, "small")
        line("20,000 tensors of 4 KiB: training stops", statistics.median(stall), "memcpy", memcpy(together), "-")
        line("20,000 tensors of 4 KiB: until the commit", statistics.median(whole), "write + fsync", written, "1.5 x")
        line("20,000 tensors of 4 KiB: restore", restore, "memcpy", memcpy(together), "-")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
