"""The ways in which a checkpoint is made, each as its users make it: for tests that break them off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from job_wrapper import state_dirs, state_restore
from job_wrapper.checkpoint.committer import DirectCommitter
from job_wrapper.node_config import NodeConfig
from job_wrapper.run.attempt import Attempt
from job_wrapper.run.events import Save
from job_wrapper.run.identity import identify
from job_wrapper.run.options import parse_options
from job_wrapper.store.io_types import CommitRef, ObjectRef, ObjectStore, Part
from job_wrapper.store.log import RunLog
from job_wrapper.store.read import read_item, read_manifest, read_part
from job_wrapper.store.retention import collect
from job_wrapper.store.write import PartWriter, write_manifest
from tests.store.checkpoints import QUICK, RUN, writer

KEEP = 2


class Saver:
    """One attempt that saves tensors, files or both, and collects after each commit."""

    tensors, files = True, False

    def __init__(self, store: ObjectStore, restart: int, root: Path) -> None:
        self.store, self.root = store, root
        self.claim = RunLog(store, RUN, patience=QUICK).claim(writer(restart), keep=KEEP)
        commits = self.claim.entry.summary.commits
        self.base = read_manifest(store, commits[-1].manifest).parts if commits else {}

    def content(self, step: int) -> dict[str, bytes]:
        return {"frozen": b"f" * 5000, "weight": bytes([step]) * (3000 + step), "empty": b""}

    def write_files(self, step: int) -> None:
        """The program's own work."""
        (self.root / "deep").mkdir(exist_ok=True)
        for name, data in self.content(step).items():
            (self.root / "deep" / name).write_bytes(data)
        with contextlib.suppress(FileExistsError):
            (self.root / "link").symlink_to("deep/weight")

    def part(self, step: int) -> ObjectRef:
        with PartWriter(self.store, self.claim.data_prefix, "rank-0", base=self._base("rank-0")) as part:
            for name, data in self.content(step).items():
                part.add_tensor(name, memoryview(data), dtype="uint8", shape=[len(data)])
            return part.finish({"step": step})

    def _base(self, name: str) -> Part | None:
        return read_part(self.store, self.base[name]) if name in self.base else None

    def save(self, step: int) -> None:
        self._commit(step, {"rank-0": self.part(step)})

    def _commit(self, step: int, parts: dict[str, ObjectRef]) -> None:
        manifest = write_manifest(self.store, RUN, self.claim.epoch, self.claim.data_prefix, step=step, parts=parts)
        self.claim.commit(manifest, step=step)
        self.base = parts

    def collect(self) -> None:
        collect(self.claim)

    def check(self, commit: CommitRef, fresh: Path) -> None:
        """``commit`` holds all of its step. ``fresh`` is an empty folder."""
        assert commit.step is not None
        parts, content = read_manifest(self.store, commit.manifest).parts, self.content(commit.step)
        if self.tensors:
            part = read_part(self.store, parts["rank-0"])
            assert {item.name: read_item(self.store, item) for item in part.items} == content
        if self.files:
            state_restore.restore(self.store, [fresh], read_part(self.store, parts[state_dirs.PART]))
            assert {p.name: p.read_bytes() for p in (fresh / "deep").iterdir()} == content
            assert (fresh / "link").readlink() == Path("deep/weight")


class Files(Saver):
    """A state directory."""

    tensors, files = False, True

    def save(self, step: int) -> None:
        self.write_files(step)
        part = state_dirs.save(self.store, self.claim.data_prefix, [self.root], base=self._base(state_dirs.PART))
        self._commit(step, {state_dirs.PART: part})


class Direct(Saver):
    """A program without a wrapper; its committer collects by itself, beside the program."""

    def __init__(self, store: ObjectStore, restart: int, root: Path) -> None:
        super().__init__(store, restart, root)
        self.committer = DirectCommitter(self.claim)

    def _commit(self, step: int, parts: dict[str, ObjectRef]) -> None:
        self.committer.commit(step, parts, None)
        self.base = parts

    def collect(self) -> None:
        self.committer.collected()


class Wrapped(Saver):
    """A program's part and a state directory, committed by the wrapper."""

    files = True

    def __init__(self, store: ObjectStore, restart: int, root: Path) -> None:
        super().__init__(store, restart, root)
        node = NodeConfig()
        options = parse_options(["--uri", "file:///x", "--keep", str(KEEP), "--", "true"], node, {})
        slurm = {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "c", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
        self.attempt = Attempt(options, identify(slurm, node, ""), node, None, lambda text: None)
        self.attempt._store, self.attempt._claim = store, self.claim
        self.attempt.epoch, self.attempt.roots = self.claim.epoch, (root,)
        self.attempt._base = self.base.get(state_dirs.PART)
        assert self.attempt.run == RUN

    def save(self, step: int) -> None:
        self.write_files(step)
        parts = {"rank-0": self.part(step)}
        self.attempt.commit(Save(None, step, parts, "interval", False), None)
        self.base = {**parts, **({state_dirs.PART: self.attempt._base} if self.attempt._base else {})}

    def collect(self) -> None:
        self.attempt.collect()


WAYS: dict[str, type[Saver]] = {"tensors": Saver, "files": Files, "direct": Direct, "wrapped": Wrapped}


def fresh_folders(parent: Path) -> Iterator[Path]:
    """Empty folders, one after the other."""
    for number in range(1 << 30):
        folder = parent / str(number)
        folder.mkdir(parents=True)
        yield folder
