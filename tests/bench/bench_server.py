"""Saves to a real S3 server and restores from it, beside the fastest raw client on the same server.

python -m tests.bench.bench_server [MiB] [FOLDER]
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

from job_wrapper.store import ObjectRef, PartWriter, open_store, read_items_into, read_part
from tests.bench.clients import KEY, clients
from tests.bench.staged import staged
from tests.bench.table import Line, in_turns, timed
from tests.fixtures.seaweedfs import S3Server, seaweedfs, weed_program

MIB = 1 << 20


def lines(size: int = 64 * MIB, folder: str | None = None) -> Iterator[Line]:
    """A line for each client, the fastest first; only that one has a bar."""
    if weed_program() is None:
        print("no weed here: nothing is measured against SeaweedFS")
        return
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        seaweedfs(Path(place) / "weed") as server,
    ):
        kept = {name: os.environ.get(name) for name in server.environment}
        os.environ.update(server.environment)
        try:
            yield from _against(server, size, Path(memory))
        finally:
            for name, value in kept.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def _against(server: S3Server, size: int, folder: Path) -> Iterator[Line]:
    data, target = staged(size), staged(size)
    others = clients(server, data, target, folder)
    store = open_store(f"{server.uri}/bench", prove=False)
    epochs, saved = count(1), dict[str, ObjectRef]()

    def save() -> None:
        with PartWriter(store, f"run/data/e{next(epochs)}", "rank-0") as writer:
            writer.add_tensor("x", data, dtype="uint8", shape=[size])
            saved["part"] = writer.finish()

    def restore() -> None:
        part = read_part(store, saved["part"])
        read_items_into(store, [(part.items[0], target)])

    for act in (save, restore, *(client.put for client in others)):
        act()  # connections, and the server's own start
    assert target == data
    yield from _lines("S3 save, SeaweedFS", *_times(save, {client.name: client.put for client in others}))
    open_store(server.uri, prove=False).put(KEY, data)
    yield from _lines("S3 restore, SeaweedFS", *_times(restore, {client.name: client.get for client in others}))


def _times(act: Callable[[], object], others: dict[str, Callable[[], object]]) -> tuple[float, dict[str, float]]:
    ours, *theirs = in_turns(*(partial(timed, one) for one in (act, *others.values())))
    return ours, dict(zip(others, theirs, strict=True))


def _lines(what: str, ours: float, theirs: dict[str, float]) -> Iterator[Line]:
    bar: float | None = 1 / 0.95
    for name, seconds in sorted(theirs.items(), key=lambda pair: pair[1]):
        yield Line(what if bar else "", ours, name, seconds, bar)
        bar = None


if __name__ == "__main__":
    for one in lines(int(sys.argv[1] if len(sys.argv) > 1 else 64) * MIB, sys.argv[2] if len(sys.argv) > 2 else None):
        print(one, flush=True)
