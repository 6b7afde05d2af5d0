"""Making and reading small checkpoints in the tests of the store."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import count

from job_wrapper.store.checksum import checksum
from job_wrapper.store.claim import Claim
from job_wrapper.store.decided_put import Patience
from job_wrapper.store.io_types import Entry, ObjectRef, ObjectStore, Part, Writer
from job_wrapper.store.read import read_item, read_manifest, read_part
from job_wrapper.store.write import PartWriter, write_manifest

RUN = "c/12/main"
_LOOKS = count()
QUICK = Patience(seconds=20.0, first=0.0, now=lambda: float(next(_LOOKS)), sleep=lambda _: None)
"""A second passes with each look at the clock, however long the machine takes."""


def writer(restart: int = 0, job: str = "12", step: int = 0, nonce: str = "") -> Writer:
    return Writer("c", job, restart, step, f"node-{restart}", nonce or os.urandom(8).hex())


def save(claim: Claim, step: int, items: Mapping[str, bytes], base: Part | None = None) -> Entry:
    """One whole save, as a program and its wrapper make it."""
    with PartWriter(claim.store, claim.data_prefix, "rank-0", base=base, threads=2) as part:
        for name, data in items.items():
            part.add_tensor(name, memoryview(data), dtype="uint8", shape=[len(data)])
        ref = part.finish({"step": step})
    manifest = write_manifest(
        claim.store,
        claim.run,
        claim.epoch,
        claim.data_prefix,
        step=step,
        parts={"rank-0": ref},
        attributes={"by": "test"},
    )
    return claim.commit(manifest, step=step)


def load(store: ObjectStore, manifest: ObjectRef) -> dict[str, bytes]:
    """All items of part ``rank-0``."""
    part = load_part(store, manifest)
    return {item.name: read_item(store, item) for item in part.items}


def load_part(store: ObjectStore, manifest: ObjectRef) -> Part:
    return read_part(store, read_manifest(store, manifest).parts["rank-0"])


def reseal(data: bytes, **changes: object) -> bytes:
    """The same stored object with other fields, its seal right again: not damage, but foreign or hostile."""
    obj = json.loads(data)
    del obj["checksum"]
    obj.update(changes)
    content = json.dumps(obj, separators=(",", ":")).encode()[:-1]
    return content + f',"checksum":"{checksum(content)}"}}'.encode()
