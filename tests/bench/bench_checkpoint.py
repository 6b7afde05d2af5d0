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
from tests.bench.table import ROUNDS, Line, in_turns, size_text, timed

State = dict[str, torch.Tensor]
MIB = 1 << 20


class Copy:
    """One memcpy of so many bytes, between memory that has been touched."""

    def __init__(self, size: int) -> None:
        self.source, self.target = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)

    def __call__(self) -> float:
        return timed(lambda: ctypes.memmove(self.target.data_ptr(), self.source.data_ptr(), self.source.numel()))


class Weights(torch.nn.Module):
    """A model of so many bytes in 16 parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(size // 16 // 4)) for _ in range(16)])


Part = State | Weights


def tensors(part: Part) -> list[torch.Tensor]:
    """The live ones."""
    return list((part.state_dict() if isinstance(part, Weights) else part).values())


class Saves:
    """A training whose every byte changes between saves."""

    def __init__(self, folder: Path, name: str, part: Part, changing: int | None = None) -> None:
        self.folder, self.name, self.part = folder, name, part
        self.changing = tensors(part)[:changing]
        self.committer = DirectCommitter.open(f"file://{folder}", name)
        self.checkpoint = Checkpointer(part=part, data=False, committer=self.committer)
        time.sleep(1)  # the first step of a training is no faster
        self.whole: list[float] = []

    def save(self) -> float:
        """Seconds that the training stops; ``whole`` gets the time to the commit."""
        for tensor in self.changing:
            tensor.add_(1)
        self.committer.ask()
        began = time.perf_counter()
        self.checkpoint.step()
        stop = time.perf_counter() - began
        while (saving := self.checkpoint._saving) is not None and saving.outcome is None:
            time.sleep(0.0005)
        self.whole.append(time.perf_counter() - began)
        while self.checkpoint._saving is not None:
            time.sleep(0.0005)
        self.committer.collected()  # or what is measured next would be slowed by it
        return stop

    def restore(self, fresh: Part) -> float:
        """Seconds until a new attempt has its state, verified."""
        committer = DirectCommitter.open(f"file://{self.folder}", self.name)
        began = time.perf_counter()
        checkpoint = Checkpointer(part=fresh, data=False, committer=committer, staging=False)
        seconds = time.perf_counter() - began
        checkpoint.close()
        assert all(map(torch.equal, tensors(fresh)[:100], tensors(self.part)[:100]))
        for tensor in tensors(fresh):
            tensor.fill_(7)
        return seconds

    def stored(self) -> int:
        """Bytes of packs in the store."""
        return sum(path.stat().st_size for path in (self.folder / "local" / self.name).rglob("*.pack"))


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


def dcp_stop(state: State, folder: Path) -> float:
    """Seconds that ``dcp.async_save`` stops the training."""
    began = time.perf_counter()
    future = dcp.async_save(state, checkpoint_id=folder / "async")
    stop = time.perf_counter() - began
    future.result()
    return stop


def first_saves(folder: Path, size: int) -> Iterator[Line]:
    """Each in a run of its own, asked for at the first step."""
    copy, model = Copy(size), Weights(size)
    numbers = iter(range(ROUNDS))

    def first() -> float:
        saves = Saves(folder, f"first{next(numbers)}", model)
        stop = saves.save()
        saves.checkpoint.close()
        shutil.rmtree(folder / "local" / saves.name)
        return stop

    stop, reference = in_turns(first, copy)
    yield Line("training stops, first save", stop, "memcpy", reference, 1.15)


def large_state(folder: Path, size: int) -> Iterator[Line]:
    """16 tensors."""
    copy, model = Copy(size), Weights(size)
    state = model.state_dict()
    saves = Saves(folder, "large", model)
    source = folder / "source"
    write_and_sync(memoryview(bytearray(os.urandom(MIB) * (size // MIB))), source)
    stop, reference, disk, other = in_turns(
        saves.save, copy, lambda: dd(source, folder / "copy"), lambda: dcp_stop(state, folder)
    )
    yield Line("training stops, later saves", stop, "memcpy", reference, 1.15)
    yield Line("", stop, "dcp.async_save", other, 0.25)
    yield Line("durable save, until the commit", statistics.median(saves.whole), "dd conv=fsync", disk, 1.0)
    saves.checkpoint.close()
    fresh = Weights(size)
    saves.restore(fresh)  # fills the page cache
    loaded = {key: torch.ones_like(tensor) for key, tensor in state.items()}
    dcp.save(state, checkpoint_id=folder / "dcp")
    restore, reference, other = in_turns(
        lambda: saves.restore(fresh), copy, lambda: timed(lambda: dcp.load(loaded, checkpoint_id=folder / "dcp"))
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
    fresh = {str(n): torch.zeros(1024) for n in range(20_000)}
    restore, reference = in_turns(lambda: saves.restore(fresh), Copy(size))
    yield Line("20,000 tensors of 4 KiB: restore", restore, "memcpy", reference, None)


def frozen(folder: Path) -> Iterator[Line]:
    """Nine of ten tensors never change: of 8 MiB each, and of 4 KiB each."""
    for what, count, length in (("8 MiB", 10, 8 * MIB), ("4 KiB", 10_000, 4096)):
        saves = Saves(folder, f"frozen{length}", {str(n): torch.randn(length // 4) for n in range(count)}, count // 10)
        saves.save()
        before = saves.stored()
        saves.save()
        written = saves.stored() - before
        saves.checkpoint.close()
        yield Line(
            f"bytes written, 90 % frozen, tensors of {what}",
            written,
            "bytes changed",
            length * count // 10,
            1.05,
            bytes=True,
        )


def memory(folder: Path, size: int) -> Iterator[Line]:
    """Beyond the program's own, in processes of their own."""
    for kind, what, against, bar in (
        ("staged", "peak memory of a save in the background", size, 1.1),
        ("waited", "peak memory of a save that is waited for", 256 * MIB, 1.0),
    ):
        command = [sys.executable, "-m", "tests.bench.peak_memory", kind, str(size), str(folder)]
        grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        yield Line(what, grown, size_text(against), against, bar, bytes=True)


def lines(size: int = 256 * MIB, folder: str | None = None) -> Iterator[Line]:
    """All of them."""
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield Line("step() with nothing asked", steps_without_a_request(place), "2 us", 2e-6, 1.0)
        for some in (first_saves(place, size), large_state(place, size), many_small(place), frozen(place)):
            yield from some
        yield from memory(place, 2 * size)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    for one in lines(int(sys.argv[1] if len(sys.argv) > 1 else 256) * MIB, sys.argv[2] if len(sys.argv) > 2 else None):
        print(one, flush=True)
