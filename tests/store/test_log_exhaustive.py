"""The log's protocol at small scope, every interleaving of it: two or three writers that claim, commit, collect and end; requests that
fail, whose answer is lost, that land late, reads and listings that lag. And the same walk over code that is wrong on purpose, in every
way that comes to mind: each must be found, or the walk proves nothing.

``SPOTBURST_MODEL_FAULTS`` (default 1) is the number of faults in one history; 2 takes minutes, 3 much longer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from job_wrapper.errors import ObjectMissing, StoreError
from job_wrapper.store import claim as claim_module
from job_wrapper.store import log as log_module
from job_wrapper.store import paths, retention
from job_wrapper.store.checkpoint_codec import decode_manifest, encode_manifest
from job_wrapper.store.checksum import checksum
from job_wrapper.store.claim import Claim
from job_wrapper.store.codec import decode_entry
from job_wrapper.store.io_types import Entry, Kind, Manifest, ObjectRef, Put, Summary, Writer
from job_wrapper.store.log import RunLog
from job_wrapper.store.read import read_manifest
from job_wrapper.store.retention import collect
from tests.store.checkpoints import RUN
from tests.store.explore import LOG, SPOILT, Explorer, Program, Teller
from tests.store.history import check_log

FAULTS = int(os.environ.get("SPOTBURST_MODEL_FAULTS", "1"))


def program(restart: int, plan: str, *, job: str = "12", step: int = 0, keep: int = 2, name: str = "") -> Program:
    """A writer that claims and then does ``plan``, a letter a thing: ``r`` restores, ``c`` commits, ``g`` collects, ``?`` checks,
    ``x`` notes a failed restore; and it ends with ``i`` interrupted, ``s`` suspended, ``e`` success, ``f`` failure.
    """
    writer = Writer("c", job, restart, step, "h", name or f"n{job}-{restart}-{step}")

    def run(teller: Teller) -> None:
        log = RunLog(teller.store, RUN, clock=lambda: 1.0, patience=teller.patience)
        claim = teller.call(lambda: log.claim(writer, keep=keep))
        if claim is None:
            return
        base: list[str] = []
        for number, act in enumerate(plan):
            if act == "c":
                _commit(teller, claim, 100 * restart + 10 * step + number + (1000 if job != "12" else 0), base)
            elif act == "r":
                _restore(teller, claim, base)
            elif act == "g":
                try:
                    collect(claim)
                except StoreError:
                    continue
            elif act == "?":
                claim.check()
            else:
                teller.call(_ending(claim, act))

    return run


def _commit(teller: Teller, claim: Claim, step: int, base: list[str]) -> None:
    """Data first. It points to a pack of what was restored, too: the weights that never change."""
    pack, key = (f"{claim.data_prefix}/{step}{end}" for end in (".pack", ".json"))
    manifest = encode_manifest(Manifest(RUN, claim.epoch, step, {}, (*base, pack)))
    try:
        claim.store.put(pack, b"x")
        claim.store.put(key, manifest)
    except StoreError:
        return
    ref = ObjectRef(key, len(manifest), checksum(manifest))
    teller.call(lambda: claim.commit(ref, step=step))


def _restore(teller: Teller, claim: Claim, base: list[str]) -> None:
    commits = claim.entry.summary.commits
    if commits:
        try:
            base[:] = read_manifest(claim.store, commits[-1].manifest).packs[:1]
        except ObjectMissing:
            teller.call(lambda: claim.restore_failed(commits[-1].seq, "gone"))
        except StoreError:
            return


def _ending(claim: Claim, act: str) -> Callable[[], Entry]:
    return {
        "i": lambda: claim.interrupted("reclaim"),
        "s": claim.suspended,
        "e": lambda: claim.end(0, "Completed", keep=1),
        "f": lambda: claim.end(3, "Failed"),
        "x": lambda: claim.restore_failed(
            claim.entry.summary.commits[-1].seq if claim.entry.summary.commits else 0, "bad"
        ),
    }[act]


class Check:
    """What must hold of everything that is ever stored at one time."""

    def __init__(self, keep: int = 2, data: bool = False) -> None:
        self._keep, self._data = keep, data
        self._logs: dict[tuple[bytes, ...], list[Entry]] = {}
        self._entries: dict[bytes, Entry] = {}

    def __call__(self, objects: dict[str, bytes]) -> None:
        keys = sorted(key for key in objects if key.startswith(LOG))
        stored = tuple(objects[key] for key in keys)
        entries = self._logs.get(stored)
        if entries is None:
            assert keys == [paths.log_key(RUN, seq) for seq in range(len(keys))], "there is a hole in the log"
            entries = self._logs[stored] = [self._entry(data, seq) for seq, data in enumerate(stored)]
            check_log(entries, [], self._keep)
        if self._data and entries:
            assert entries[-1].kind is not Kind.RESTORE_FAILED, "what the holder was to restore is gone"
            summary = entries[-1].summary
            for commit in summary.commits:
                manifest = objects.get(commit.manifest.key)
                assert manifest is not None, f"the manifest of commit {commit.seq} is not there"
                assert set(decode_manifest(manifest, "x").packs) <= set(objects), (
                    f"data of commit {commit.seq} is not there"
                )

    def _entry(self, data: bytes, seq: int) -> Entry:
        if data not in self._entries:
            self._entries[data] = decode_entry(data, str(seq), seq)
        return self._entries[data]


Scene = Callable[[], Explorer]


def two_attempts() -> Explorer:
    return Explorer([program(0, "c"), program(1, "c")], Check(), faults=FAULTS + 1)


def three_attempts() -> Explorer:
    """The first one stops for as long as it likes, and wakes."""
    return Explorer([program(0, "c"), program(1, "c?"), program(2, "e")], Check(), faults=FAULTS)


def the_same_attempt_twice() -> Explorer:
    return Explorer([program(0, "cf"), program(0, "ci", name="twin"), program(1, "c")], Check(), faults=FAULTS)


def two_steps_and_a_restart() -> Explorer:
    return Explorer([program(0, "ci"), program(0, "ce", step=1), program(1, "xc")], Check(), faults=FAULTS)


def two_jobs() -> Explorer:
    return Explorer([program(0, "c"), program(0, "", job="13"), program(1, "e")], Check(), faults=FAULTS)


def with_retention() -> Explorer:
    """The holder collects while its successor claims, restores, commits and collects."""
    writers = [program(0, "ccg", keep=1), program(1, "rcg", keep=1)]
    return Explorer(writers, Check(1, data=True), faults=FAULTS, private=False)


def with_retention_at_the_end() -> Explorer:
    writers = [program(0, "ccfg"), program(1, "rc")]
    return Explorer(writers, Check(data=True), faults=FAULTS, private=False)


SCENES: list[Scene] = [
    two_attempts,
    three_attempts,
    the_same_attempt_twice,
    two_steps_and_a_restart,
    two_jobs,
    with_retention,
    with_retention_at_the_end,
]


def walk(explorer: Explorer) -> None:
    """Raises ``AssertionError`` with the history that breaks a promise."""
    try:
        explorer.run()
    except AssertionError as error:
        raise AssertionError("\n".join([*explorer.trace, str(error)])) from error


def fencing_holds(objects: dict[str, bytes]) -> None:
    """As far as entries can be read: no epoch after a higher one, each claimed once, and no commit forgotten that is not spoilt."""
    holders: dict[int, str] = {}
    highest, newest = 0, None
    keys = sorted(key for key in objects if key.startswith(LOG))
    for seq, key in enumerate(keys):
        if objects[key] == SPOILT:
            continue
        entry = decode_entry(objects[key], key, seq, RUN)
        assert entry.epoch > highest if entry.kind is Kind.CLAIM else entry.epoch >= highest, (
            f"{key} is of an older epoch"
        )
        assert holders.setdefault(entry.epoch, entry.writer.nonce) == entry.writer.nonce, "two holders of one epoch"
        highest = entry.epoch
        newest = entry.seq if entry.kind is Kind.COMMIT else newest
        assert newest is None or newest in {c.seq for c in entry.summary.commits}, "a commit was forgotten"


def two_attempts_and_damage() -> Explorer:
    """Any entry of the log may turn out unreadable at any time: newer claims fence older holders all the same."""
    return Explorer([program(0, "c"), program(1, "c"), program(2, "c")], fencing_holds, faults=FAULTS, spoils=True)


SCENES.append(two_attempts_and_damage)


@pytest.mark.parametrize("scene", SCENES)
def test_no_interleaving_breaks_a_promise(scene: Scene) -> None:
    explorer = scene()
    walk(explorer)
    print(f"{scene.__name__}: {explorer.histories} histories over {explorer.states} states")
    assert explorer.states > 10_000


# The same walk over wrong code.


def _retries_without_looking(self: Claim, data: bytes, seq: int) -> None:
    self.entry = replace(self.entry, seq=seq)


def _exists_is_mine(store: Any, key: str, data: bytes, patience: Any) -> None:
    with contextlib.suppress(StoreError):
        store.put_if_absent(key, data)


def _exists_is_anothers(store: Any, key: str, data: bytes, patience: Any) -> bytes | None:
    return None if store.put_if_absent(key, data) is Put.CREATED else store.get(key)  # type: ignore[no-any-return]


def _lost_is_done(store: Any, key: str, data: bytes, patience: Any) -> bytes | None:
    try:
        return None if store.put_if_absent(key, data) is Put.CREATED else store.get(key)  # type: ignore[no-any-return]
    except StoreError:
        return None


def _never_finished(self: RunLog, last: Entry, *rest: Any) -> None:
    REFUSE(self, replace(last, summary=replace(last.summary, ended=None)), *rest)


REFUSE = RunLog._refuse
SUMMARY = log_module.claim_summary


def _same_epoch(*args: Any, **options: Any) -> Summary:
    summary = SUMMARY(*args, **options)
    return replace(summary, epoch=1)


def _forgets_packs(store: Any, commits: Any) -> set[str]:
    return {commit.manifest.key for commit in commits}


Mutation = tuple[Any, str, Any]
WRONG: dict[str, tuple[list[Mutation], Scene, str]] = {
    "retries after a conflict without looking for a newer claim": (
        [(Claim, "_take_in", _retries_without_looking)], three_attempts, "follows the claim of epoch"),
    "takes an object that exists for its own": (
        [(log_module, "decided_put", _exists_is_mine), (claim_module, "decided_put", _exists_is_mine)], two_attempts, "was lost"),
    "takes its own object for another's": (
        [(claim_module, "decided_put", _exists_is_anothers)], two_attempts, "stands in the log twice"),
    "takes a lost answer for success": (
        [(claim_module, "decided_put", _lost_is_done)], two_attempts, "was lost"),
    "lets any attempt claim": ([(log_module, "refusal", lambda *_: None)], three_attempts, "not newer than one before it"),
    "lets a finished run be claimed": ([(RunLog, "_refuse", _never_finished)], two_jobs, "ended successfully was claimed"),
    "claims without a new epoch": ([(log_module, "claim_summary", _same_epoch)], two_attempts, "summary of entry"),
    "deletes what a successor writes": ([(paths, "epoch_of", lambda run, key: 0)], with_retention, "is not there|is gone"),
    "deletes packs that are needed": ([(retention, "names", _forgets_packs)], with_retention, "data of commit"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_the_walk_finds_code_that(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutations, scene, message = WRONG[wrong]
    for owner, name, value in mutations:
        monkeypatch.setattr(owner, name, value)
    with pytest.raises(AssertionError, match=message):
        walk(scene())


def test_the_walk_finds_a_store_that_overwrites() -> None:
    with pytest.raises(AssertionError, match="was lost"):
        walk(Explorer([program(0, "c"), program(1, "c")], Check(), faults=1, overwrites=True))


def test_the_walk_finds_what_pruning_would_do() -> None:
    """A writer that believes in a number is let in where the entry of that number was deleted."""

    def known(objects: dict[str, bytes]) -> None:
        entries = [decode_entry(objects[key], key) for key in sorted(objects) if key.startswith(LOG)]
        for entry, later in pairwise(entries):
            if entry.kind is Kind.COMMIT:
                assert entry.seq in {c.seq for c in later.summary.commits}, "a commit that no later entry knows of"

    explorer = Explorer([program(0, "c"), program(1, "c")], known, faults=1, prunes=True)
    with pytest.raises(AssertionError, match="no later entry knows of"):
        walk(explorer)
