"""Deleting what no kept commit names (DESIGN §4): after a newer one is committed, and only by the epoch that holds the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from job_wrapper.errors import Damaged, ObjectMissing
from job_wrapper.store import paths
from job_wrapper.store.claim import Claim
from job_wrapper.store.io_types import CommitRef, Kind, ObjectStore
from job_wrapper.store.read import read_manifest


@runtime_checkable
class LeavesUnfinished(Protocol):
    """A store on which an interrupted write leaves something that listings don't show."""

    def discard_unfinished(self, *prefixes: str, older_than: float = 0.0) -> list[str]:
        """Remove what interrupted writes under the ``prefixes`` left ``older_than`` seconds ago or earlier; returns its names."""
        ...


def collect(claim: Claim) -> list[str]:
    """Delete what no kept commit names, leftovers of earlier epochs included; returns the deleted keys.

    Kept are the commits that the newest entry names, since another may be about to restore any of them. Nothing is deleted when a kept
    manifest can't be read, since it can't be told what that one needs. Raises ``Fenced`` before anything is deleted if a newer epoch
    holds the run, and ``StoreError``.

    Safe also for a holder that is fenced the moment after: what it deletes was written by itself or by earlier epochs and is named
    by no commit that a later epoch could have started from.
    """
    if claim.entry.kind is not Kind.END:
        claim.check()
    dropped = list(claim.dropped)  # before what is needed: another thread may commit meanwhile
    entry = claim.entry
    ended = entry.kind is Kind.END
    store, run = claim.store, claim.run
    try:
        needed = names(store, entry.summary.commits)
    except (Damaged, ObjectMissing):
        return []
    mine: set[str] = set()
    for commit in dropped:
        try:
            mine |= names(store, [commit])
        except (Damaged, ObjectMissing):
            continue  # collected by a later epoch, or already gone
    doomed = []
    for info in store.list(paths.data_root(run)):
        epoch = paths.epoch_of(run, info.key)
        if epoch is None or info.key in needed or epoch > claim.epoch:
            continue
        # Of its own epoch only what it once committed: other processes of this attempt may be writing the next checkpoint.
        if epoch < claim.epoch or ended or info.key in mine:
            doomed.append(info.key)
    # Manifests last: a commit whose manifest is there still tells what is left of it to delete.
    doomed.sort(key=lambda key: ("/manifest-" in key, key))
    store.delete(doomed)
    del claim.dropped[: len(dropped)]
    if isinstance(store, LeavesUnfinished):
        # Once will do for the dead: on a bucket each look is a request.
        dead = range(claim.swept + 1, claim.epoch + ended)
        doomed += store.discard_unfinished(*(paths.data_prefix(run, epoch) + "/" for epoch in dead))
        claim.swept = claim.epoch - 1
        # Others may be writing these just now.
        pointers = paths.pointer_of_run(run, claim.writer.job_id).rpartition("/")[0] + "/"
        doomed += store.discard_unfinished(paths.log_prefix(run), pointers, older_than=3600.0)
    return doomed


def names(store: ObjectStore, commits: Iterable[CommitRef]) -> set[str]:
    """Keys of everything that the given commits need: manifests, parts, packs. Raises as ``read_manifest``."""
    keys: set[str] = set()
    for commit in commits:
        manifest = read_manifest(store, commit.manifest)
        keys.add(commit.manifest.key)
        keys.update(manifest.packs)
        keys.update(ref.key for ref in manifest.parts.values())
    return keys
