"""What a save costs a training that goes on meanwhile: where it stops, and how much longer the next iterations take.

python -m tests.bench.bench_overlap [FOLDER]
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from job_wrapper.checkpoint import Checkpointer, DirectCommitter
from tests.bench.table import Line

ROUNDS = 7
WIDTH, LAYERS, BATCH = 2048, 5, 256
"""240 MiB of parameters and AdamW's moments; an iteration takes some 200 ms on two processors."""
AFTER = 3
"""Iterations after the save that may take longer."""

How = Literal[True, "overlap", "dcp", None]
EVERY: tuple[How, ...] = (None, True, "overlap", "dcp")


class Training:
    """One that is saved by a `Checkpointer` with this ``staging``, by ``dcp.async_save``, or not at all."""

    def __init__(self, folder: Path, how: How) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.data = torch.randn(BATCH, WIDTH)
        self.how, self.folder = how, folder / str(how)
        self.stops: list[float] = []
        self.windows: list[float] = []
        self.iterate()
        if how is True or how == "overlap":
            self.committer = DirectCommitter.open(f"file://{self.folder}", "run")
            self.checkpoint = Checkpointer(
                model=self.model, optimizer=self.optimizer, data=False, committer=self.committer, staging=how
            )
            self.checkpoint.step()
            time.sleep(1)  # its memory is touched meanwhile

    def iterate(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.data).square().mean().backward()
        self.optimizer.step()

    def window(self) -> None:
        """An iteration, a save, and the iterations after it; then the rest of the save, which is not counted."""
        began = time.perf_counter()
        self.iterate()
        stopped = time.perf_counter()
        rest = self.save()
        self.stops.append(time.perf_counter() - stopped)
        for _ in range(AFTER):
            self.iterate()
        self.windows.append(time.perf_counter() - began)
        rest()

    def save(self) -> Callable[[], object]:
        """Begins one; returns what waits for its end."""
        if self.how is None:
            return lambda: None
        if self.how == "dcp":
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            saving: Any = dcp.async_save(state, checkpoint_id=self.folder)
            wait: Callable[[], object] = saving.result
            return wait
        self.committer.ask()
        self.checkpoint.step()
        return self._wait

    def _wait(self) -> None:
        while self.checkpoint._saving is not None:
            time.sleep(0.001)
        self.committer.collected()


def lines(folder: str | None = None) -> Iterator[Line]:
    """In turns."""
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        every = {how: Training(place, how) for how in EVERY}
        for _ in range(ROUNDS):
            for one in every.values():
                one.window()
        stops = {how: statistics.median(one.stops) for how, one in every.items()}
        windows = {how: statistics.median(one.windows) for how, one in every.items()}
        yield Line('training stops, staging="overlap"', stops["overlap"], "dcp.async_save", stops["dcp"], 0.25)
        yield Line("training stops, staging=True", stops[True], "dcp.async_save", stops["dcp"], None)
        for how in EVERY[1:]:
            name = how if how == "dcp" else f"staging={how!r}"
            yield Line(f"a save and {AFTER + 1} iterations, {name}", windows[how], "no save", windows[None], None)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    for one in lines(*sys.argv[1:]):
        print(one, flush=True)
