"""A site with burst.yaml and a real store in a folder, and runs written to it as the wrapper writes them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from job_wrapper.store import PartWriter, RunLog, open_store, run_path, write_manifest
from job_wrapper.store.claim import Claim
from job_wrapper.store.io_types import Entry, ObjectStore, Writer
from slurm_plugin.cli.app import start
from slurm_plugin.slurm import command

BURST = """\
cluster: demo
state_dir: {folder}/state
slurm: {{conf: {folder}/slurm.conf}}
checkpoints: {{uri: "file://{folder}/store"}}
providers: {{local: {{type: local}}}}
nodesets:
  - {{name: spot, nodes: "spot-[1-3]", cpus: 1, memory_mb: 500, offerings: [{{provider: local, instance_type: small}}]}}
partitions: [{{name: spot, nodesets: [spot]}}]
"""
START = 1_800_000_000.0


@dataclass
class Site:
    """Time goes on only when ``tick`` is called."""

    folder: Path
    now: float = START
    store: ObjectStore = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "burst.yaml").write_text(BURST.format(folder=self.folder))
        self.uri = f"file://{self.folder}/store"
        self.store = open_store(self.uri, prove=False, create=True)

    def tick(self, seconds: float) -> float:
        self.now += seconds
        return self.now

    def claim(
        self,
        job: str,
        restart: int = 0,
        node: str = "spot-1",
        name: str = "main",
        step: int = 0,
        run: str | None = None,
        machines: int = 1,
    ) -> Claim:
        log = RunLog(self.store, run or run_path("demo", job, name), clock=lambda: self.now)
        writer = Writer("demo", job, restart, step, f"{node}.example", os.urandom(8).hex())
        body = {
            "node": node,
            "offering": "local/local/a/small/spot",
            "started_at": self.now - 0.5,
            "machines": machines,
        }
        return log.claim(writer, keep=2, body=body)

    def commit(
        self,
        claim: Claim,
        step: int | None,
        content: bytes,
        *,
        resumed: int | None = -1,
        urgent: bool = False,
        total: int | None = None,
    ) -> Entry:
        """``resumed``: the step that the program went on from (None: from the start); -1: told already."""
        writer = PartWriter(self.store, claim.data_prefix, "rank-0")
        writer.add_bytes("state", content)
        part = writer.finish()
        manifest = write_manifest(
            self.store, claim.run, claim.epoch, claim.data_prefix, step=step, parts={"rank-0": part}
        )
        body: dict[str, object] = {"reason": "reclaim" if urgent else "interval", "urgent": urgent, "seconds": 0.25}
        if resumed != -1:
            body |= {"resumed_at": self.now - 1.0, "restored_step": resumed}
        if total is not None:
            body["progress"] = {"completed": step, "total": total}
        return claim.commit(manifest, step=step, body=body)

    def reclaimed_twice(self, job: str = "123", keep: int | None = None) -> Claim:
        """Attempt 1 is reclaimed with notice, attempt 2 vanishes, attempt 3 finishes."""
        first = self.claim(job)
        for step in (10, 20, 30):
            self.tick(10)
            self.commit(first, step, b"x" * (1000 + step), resumed=None if step == 10 else -1)
        arrived = self.tick(5)
        self.tick(1)
        self.commit(first, 35, b"y" * 2000, urgent=True)
        self.tick(0.5)
        notice = {
            "provider": "aws",
            "kind": "reclaim",
            "source_id": "s",
            "arrived": arrived,
            "deadline": arrived + 120,
            "text": "",
        }
        first.interrupted("aws reclaim", {"arrived": arrived, "notice": notice})
        self.tick(4)
        second = self.claim(job, 1, "spot-2")
        self.tick(10)
        self.commit(second, 40, b"z" * 3000, resumed=35)
        self.tick(60)
        third = self.claim(job, 2, "spot-3")
        self.tick(10)
        self.commit(third, 50, b"w" * 4000, resumed=40)
        self.tick(1)
        third.end(0, "finished", keep=keep)
        return third


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for variable in ("SLURM_CONF", "SPOTBURST_NODE_CONFIG", "SLURM_CLUSTER_NAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SPOTBURST_CONFIG", str(tmp_path / "burst.yaml"))
    run = command.run

    def patiently(words: Sequence[str], *, env: Mapping[str, str], timeout: float) -> str:
        """A test's own command that has to wait for this machine's processors is no slurmctld that hangs."""
        return run(words, env=env, timeout=120.0 if words[0].startswith(str(tmp_path)) else timeout)

    monkeypatch.setattr(command, "run", patiently)
    with pytest.MonkeyPatch.context() as zone:
        zone.setenv("TZ", "UTC")
        time.tzset()  # the C library looks at TZ once only, if it isn't told to
        yield Site(tmp_path)
    time.tzset()


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def spotburst(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*arguments: str) -> Said:
        sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # as a program's is
        code = start(arguments)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return call
