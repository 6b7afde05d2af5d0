"""How long after a cloud's metadata tells of a reclaim a watcher has heard it.

python -m tests.bench.bench_notice
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from job_wrapper.node_config import NodeConfig
from job_wrapper.notice.choose import cloud_watcher
from job_wrapper.notice.types import Notice
from slurm_plugin.cloud.local import metadata
from tests.bench.table import Line

ROUNDS = 5
BARS = {"aws": 2.0, "gcp": 1.0, "azure": 1.0}
"""Seconds, for the slowest of the rounds."""


def heard_after(speaks: str, wait: float) -> float:
    """Seconds from the change to the call of ``emit``; the change comes ``wait`` seconds after the watcher's start."""
    control = metadata.Control()
    names = ("instance_id", "node", "address", "region", "zone", "instance_type")
    machine = {**dict.fromkeys(names, "i-1"), "market": "spot", "tags": {}, "speaks": speaks}
    server = metadata.serve("127.0.0.1", machine, control, port=0)
    settings = NodeConfig(provider=speaks, metadata_url=f"http://127.0.0.1:{server.server_port}", node="i-1")
    stop, heard = threading.Event(), threading.Event()
    times: list[float] = []

    def emit(_: Notice | None) -> None:
        times.append(time.perf_counter())
        heard.set()

    watcher = cloud_watcher(settings, speaks, lambda _: None)
    thread = threading.Thread(target=watcher.watch, args=(emit, stop.wait), daemon=True)
    thread.start()
    time.sleep(wait)
    changed, now = time.perf_counter(), time.time()
    control.replace({"reclaim": {"notice_id": "x", "noticed": now, "deadline": now + 30, "action": "terminate"}})
    heard.wait(20)
    stop.set()
    thread.join()
    server.shutdown()
    server.server_close()
    return times[0] - changed


def lines() -> Iterator[Line]:
    """The slowest of five, a fifth of a second apart in the watcher's round."""
    for speaks, bar in BARS.items():
        slowest = max(heard_after(speaks, 2.0 + 0.2 * number) for number in range(ROUNDS))
        yield Line(f"notice heard, {speaks}", slowest, f"{bar:g} s", bar, 1.0)


if __name__ == "__main__":
    for line in lines():
        print(line)
