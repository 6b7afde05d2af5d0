"""What a checkpoint costs, each figure beside a reference measured in turns with it.

python -m tests.bench.bench_checkpoint [MiB] [FOLDER]
"""

from __future__ import annotations

import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader

from job_wrapper.checkpoint import Checkpointer, DirectCommitter, ResumableSampler
from tests.bench.table import Line, in_turns, timed

State = dict[str, torch.Tensor]
MIB = 1 << 20


class Copy:
    """One memcpy of so many bytes, between memory that has been touched."""

    def __init__(self, size: int) -> None:
        self.source, self.target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)

    def __call__(self) -> float:
        return timed(lambda: ctypes.memmove(self.target.data_ptr(), self.source.data_ptr(), self.source.numel()))


class Saves:
    """A training whose every byte changes between saves."""

    def __init__(self, folder: Path, name: str, state: State) -> None:
        self.uri, self.name, self.state = f"file://{folder}", name, state
        self.committer = DirectCommitter.open(self.uri, name)
        self.checkpoint = Checkpointer(state=state, committer=self.committer)
        self.checkpoint.step()
        time.sleep(1)  # the arena is made beside the training
        self.whole: list[float] = []

    def save(self) -> float:
        """Seconds that the training stops; ``whole`` gets the time to the commit."""
        for tensor in self.state.values():
            tensor.add_(1)
        self.committer.ask()
        began = time.perf_counter()
        self.checkpoint.step()
        stop = time.perf_counter() - began
        while self.checkpoint._saving is not None:
            time.sleep(0.0005)
        self.whole.append(time.perf_counter() - began)
        return stop

    def restore(self) -> float:
        """Seconds until a new attempt has its state, verified."""
        fresh = {key: torch.empty_like(tensor) for key, tensor in self.state.items()}
        committer = DirectCommitter.open(self.uri, self.name)
        seconds = timed(lambda: Checkpointer(state=fresh, committer=committer))
        assert all(torch.equal(fresh[key], self.state[key]) for key in list(fresh)[:100])
        return seconds


def write_and_sync(data: memoryview, path: Path) -> float:
    """One write of all bytes, and fsync."""
    path.unlink(missing_ok=True)

    def act() -> None:
        left = data
        with path.open("wb", buffering=0) as file:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())

    return timed(act)


def dd(source: Path, target: Path) -> float:
    """``dd conv=fsync``."""
    target.unlink(missing_ok=True)
    command = ["dd", f"if={source}", f"of={target}", "bs=16M", "conv=fsync", "status=none"]
    return timed(lambda: subprocess.run(command, check=True))


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


def large_state(folder: Path, size: int) -> Iterator[Line]:
    """16 tensors."""
    copy = Copy(size)
    state = {str(n): torch.randn(size // 16 // 4) for n in range(16)}
    saves = Saves(folder, "large", state)
    first, reference = saves.save(), statistics.median(copy() for _ in range(3))
    yield Line("training stops, first save", first, "memcpy", reference, 1.15)
    saves.whole.clear()
    source = folder / "source"
    write_and_sync(memoryview(bytearray(os.urandom(MIB) * (size // MIB))), source)
    stop, reference, disk = in_turns(saves.save, copy, lambda: dd(source, folder / "copy"))
    yield Line("training stops, later saves", stop, "memcpy", reference, 1.15)
    yield Line("durable save, until the commit", statistics.median(saves.whole), "dd conv=fsync", disk, 1.0)
    saves.checkpoint.close()
    saves.restore()  # fills the page cache
    loaded = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    dcp.save(state, checkpoint_id=folder / "dcp")
    restore, reference, other = in_turns(
        saves.restore, copy, lambda: timed(lambda: dcp.load(loaded, checkpoint_id=folder / "dcp"))
    )
    yield Line("verified restore from page cache", restore, "memcpy", reference, 2.0)
    yield Line("", restore, "dcp.load (verifies nothing)", other, 0.2)


def many_small(folder: Path) -> Iterator[Line]:
    """20,000 tensors of 4 KiB."""
    size = 20_000 * 4096
    saves = Saves(folder, "small", {str(n): torch.randn(1024) for n in range(20_000)})
    data = memoryview(bytearray(size))
    stop, reference, disk = in_turns(saves.save, Copy(size), lambda: write_and_sync(data, folder / "w"))
    yield Line(
        "20,000 tensors of 4 KiB: until the commit", statistics.median(saves.whole), "one write + fsync", disk, 1.5
    )
    yield Line("20,000 tensors of 4 KiB: training stops", stop, "memcpy", reference, None)
    saves.checkpoint.close()
    restore, reference = in_turns(saves.restore, Copy(size))
    yield Line("20,000 tensors of 4 KiB: restore", restore, "memcpy", reference, None)


def lines(size: int = 256 * MIB, folder: str | None = None) -> Iterator[Line]:
    """All of them."""
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield Line("step() with nothing asked", steps_without_a_request(place), "2 us", 2e-6, 1.0)
        yield from large_state(place, size)
        yield from many_small(place)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    for one in lines(int(sys.argv[1] if len(sys.argv) > 1 else 256) * MIB, sys.argv[2] if len(sys.argv) > 2 else None):
        print(one, flush=True)
