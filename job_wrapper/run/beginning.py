"""How an attempt begins: look, claim, restore. The half of `attempt` that comes before the program starts."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from job_wrapper.curves import Curves
from job_wrapper.errors import (
    Damaged,
    NewerFormat,
    ObjectMissing,
    RestoreFailed,
    SpotburstError,
    StoreError,
    UsageError,
)
from job_wrapper.node_config import NodeConfig
from job_wrapper.run.asked import HEARS
from job_wrapper.run.bounds import Bounds, check_bounds
from job_wrapper.run.counters import ATTRIBUTE as PROGRESS
from job_wrapper.run.counters import Counters, counters_of
from job_wrapper.run.identity import Identity
from job_wrapper.run.local_job import local_job_alive, local_job_id
from job_wrapper.run.options import CHECKPOINT, EPHEMERAL, RESTARTABLE, Options
from job_wrapper.run.preflight import (
    command_digest,
    lost_before,
    refuse_other_command,
    require_own,
    require_requeueable,
)
from job_wrapper.run.pulse import Restoring
from job_wrapper.run.relaunch import OnlyOne, is_forgotten
from job_wrapper.run.rules import FAIL, ON_INTERRUPTION
from job_wrapper.slurm_job import SlurmJob
from job_wrapper.store.codec import seal
from job_wrapper.store.decided_put import Patience, patiently
from job_wrapper.store.io_types import CommitRef, Entry, ObjectRef, ObjectStore, Summary, Writer
from job_wrapper.store.log import RunFinished, RunLog
from job_wrapper.store.open import open_store
from job_wrapper.store.paths import data_prefix, run_path

STORE_PATIENCE = 60.0
"""Seconds that an unreachable store is tried for before a job's first attempt gives up: a wrong URI is to be said soon."""
FAILURES = 2
"""How often one checkpoint may fail to restore."""

T = TypeVar("T")


def restored_key(run: str, epoch: int) -> str:
    """Where rank 0 tells the other ranks of a step that the restore is done, and from which entry."""
    return f"{data_prefix(run, epoch)}/restored.json"


def refused_key(run: str, rank: Identity) -> str:
    """Where rank 0 tells the other ranks of its step that it has begun nothing. It may have no epoch, and no claim has the number 0."""
    return f"{data_prefix(run, 0)}/refused-{rank.job_id}-{rank.restart_count}-{rank.step_id}.json"


class Beginning:
    """What `Attempt` is built on. Called in a worker thread; every call may be slow."""

    commits = True
    """This rank claims and commits."""

    def __init__(
        self,
        options: Options,
        identity: Identity,
        node: NodeConfig,
        job: SlurmJob | None,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` tells what time it is, ``steady`` how long something takes: a node's clock is set while it boots."""
        self.options = options
        self.identity = identity
        self.node = node
        self.job = job
        self.say = say
        self.clock, self.steady = clock, steady
        self.run = run_path(identity.cluster, options.run or identity.name_id, options.name)
        self.roots: tuple[Path, ...] = ()
        self.epoch = 0
        self.restored: CommitRef | None = None
        self.parts: dict[str, ObjectRef] = {}
        """The program's own parts in the newest commit."""
        self.counters: Counters | None = None
        """How far the program is, as it told; at first as the restored commit tells."""
        self._kept: Counters | None = None
        """What the newest commit holds of that."""
        self.curves = Curves(clock)
        """What the program tells of its training, and the log does not hold yet."""
        self._resumed: dict[str, Any] = {}
        """What the next entry tells of the restore, once the program is going again."""
        self._going = False
        self._store: ObjectStore | None = None
        self._claim: Any = None
        self._base: ObjectRef | None = None
        self.started = clock()
        self._lost: SpotburstError | None = None
        self.limit: float | None = None
        """Seconds that Slurm gives the job; None where it sets no limit, or was not asked."""

    @property
    def marks(self) -> dict[str, Any]:
        """What each entry of an open run tells of how it is to end."""
        return {} if self.options.requeue or not self.identity.in_slurm else {ON_INTERRUPTION: FAIL}

    @property
    def _mark(self) -> str:
        """Of the cluster's own store, where this is it."""
        return self.node.store_mark if self.options.uri == self.node.uri else ""

    # Before the program starts

    def begin(self) -> None:
        """Check, claim, restore. Raises ``SpotburstError``, whose exit code and text are for the user."""
        if self.job is not None and self.options.requeue:
            view = require_requeueable(self.job, self.say)
            self.limit = None if view is None else view.time_limit
        self._check_roots()
        back = self.identity.restart_count > 0
        self._store = self._patiently(
            lambda: open_store(self.options.uri, endpoint_url=self.options.endpoint_url, used=back, mark=self._mark)
        )
        require_own(self.store, self.run, self.identity.name_id if self.identity.in_slurm else "")
        self._claim = self._make_claim()
        self.epoch = self._claim.epoch
        for damaged in self._claim.passed_over:
            self.say(f"passed over: {damaged}")
        summary: Summary = self._claim.entry.summary
        self.say(self._claimed_text(summary))
        bounds = Bounds(
            self.node.max_attempts_multi_node if self.identity.nodes > 1 else self.node.max_attempts,
            self.node.barren_attempts,
        )
        refused = self._lost or check_bounds(summary, bounds)
        if refused is not None:
            self._claim.end(int(refused.exit_code), refused.reason)
            raise refused
        if self.identity.tasks == 1:
            self._restore_newest()
            return
        # The other ranks start when this one's files are in place, and from the commit that it found to be good.
        with Restoring(self.store, self.run, self.epoch):
            self._restore_newest()
            seq = None if self.restored is None else self.restored.seq
            progress = None if self.counters is None else self.counters.told()
            told = seal("restored", {"entry": seq, "progress": progress, **self.identity.launch})
            self._patiently(lambda: self.store.put(restored_key(self.run, self.epoch), told))

    def _restore_newest(self) -> None:
        if self.options.continuity != EPHEMERAL:
            self._restore(None)

    def tell_refused(self, code: int) -> None:
        """``begin`` has failed, and this wrapper ends with that exit code: the other ranks need not wait. Raises ``SpotburstError``."""
        if self.commits and self.identity.tasks > 1 and code:
            store = self._store or open_store(self.options.uri, endpoint_url=self.options.endpoint_url, prove=False)
            store.put(refused_key(self.run, self.identity), seal("refused", {"code": code, **self.identity.launch}))

    def _check_roots(self) -> None:
        if self.options.state_dirs:
            from job_wrapper.state_dirs import check_paths

            self.roots = check_paths(self.options.state_dirs)

    def _make_claim(self) -> Any:
        identity, digest = self.identity, command_digest(self.options.command)
        log = RunLog(self.store, self.run, clock=self.clock)
        # Outside Slurm every start is a job of its own, so that a second one can follow a first.
        job_id = identity.name_id if identity.in_slurm else local_job_id(os.getpid())
        writer = Writer(
            cluster=identity.cluster,
            job_id=job_id,
            restart_count=identity.restart_count,
            step_id=identity.step_id,
            host=socket.gethostname(),
            nonce=os.urandom(8).hex(),
        )
        body = {
            "command": list(self.options.command)[:64],
            "node": self.node.here,
            "nodeset": self.node.nodeset,
            "offering": self.node.offering,
            "machines": identity.nodes,
            "started_at": self.started,
            "slurm_job_id": identity.job_id,
            HEARS: 1,
        }
        body |= self.marks
        if self.options.continuity != CHECKPOINT:
            body["continuity"] = self.options.continuity
        mine = (job_id, identity.restart_count)
        self._only_one = OnlyOne(self.options.uri, self.run)

        def forgotten(entry: Entry) -> bool:
            return is_forgotten(entry, writer, digest, identity, self.job, only_one=self._only_one.mine)

        self._lost = self._patiently(lambda: self._look(log, mine, digest, forgotten))
        alive = self.job.alive if self.job is not None else local_job_alive
        try:
            return self._patiently(
                lambda: log.claim(
                    writer,
                    alive=alive,
                    forgotten=forgotten,
                    keep=self.options.keep,
                    command_digest=digest,
                    body=body,
                    bounded=self.options.continuity != EPHEMERAL,
                )
            )
        except RunFinished as finished:
            refuse_other_command(log, finished.entry, mine, digest, forgotten)
            raise

    def _look(
        self, log: RunLog, mine: tuple[str, int], digest: str, forgotten: Callable[[Entry], bool]
    ) -> SpotburstError | None:
        """At the run before it is claimed: whether it may be, and whether ``--on-interruption fail`` ends it here. Raises as ``begin``."""
        last = log.newest()[0]
        refuse_other_command(log, last, mine, digest, forgotten)
        return None if self.options.requeue else lost_before(last, mine)

    def _claimed_text(self, summary: Summary) -> str:
        text = f"run {self.run}, epoch {self.epoch}"
        if summary.recoveries:
            text += f", recovery {summary.recoveries}"
        if self.options.continuity == EPHEMERAL:
            text += ", begins anew (--continuity ephemeral)"
        elif not summary.commits:
            text += ", no checkpoint yet"
        return text

    def _restore(self, below: int | None) -> None:
        """Restore the state directories from the newest commit that verifies; what the program restores it verifies itself.

        ``below``: only commits of earlier entries. Sets ``restored``; None when there is no checkpoint at all.
        """
        claim = self._claim
        commits: tuple[CommitRef, ...] = claim.entry.summary.commits
        for commit in reversed(commits):
            if below is not None and commit.seq >= below:
                continue
            try:
                self._patiently(lambda commit=commit: self._restore_from(commit))  # type: ignore[misc]
                return
            except NewerFormat:
                raise
            except (Damaged, ObjectMissing) as error:
                self._count_failure(commit.seq, str(error))
        if commits:
            which = "its only checkpoint can't" if len(commits) == 1 else f"none of its {len(commits)} checkpoints can"
            failed = RestoreFailed(
                f"{self.run}: {which} be restored (`spotburst checkpoints` tells why). "
                "Nothing was started from scratch; a run with another --name or --run begins anew"
            )
            claim.end(int(failed.exit_code), failed.reason)
            raise failed
        self.restored = None

    def _restore_from(self, commit: CommitRef) -> None:
        from job_wrapper.state_dirs import PART
        from job_wrapper.store.read import read_manifest, read_part

        began = self.steady()
        manifest = read_manifest(self.store, commit.manifest)
        reference = manifest.parts.get(PART)
        self.parts = {name: ref for name, ref in manifest.parts.items() if name != PART}
        self._base = reference
        self.counters = self._kept = counters_of(manifest.attributes.get(PROGRESS))
        if manifest.parts and self.options.continuity == RESTARTABLE:
            raise UsageError(
                f"{self.run}: its checkpoint (entry {commit.seq}) holds a program's state, which --continuity restartable would drop: "
                "leave that option out, or begin anew under another --name or --run"
            )
        if reference is not None and self.roots:
            from job_wrapper.state_restore import restore
            from job_wrapper.transfer import Shown, may_draw

            try:
                shown = Shown("restoring", self.say, bar=may_draw())
                aside = restore(self.store, self.roots, read_part(self.store, reference), shown)
            except OSError as error:
                raise UsageError(
                    f"a state directory can't be restored: {error.filename or ''}: {error.strerror}"
                ) from error
            if aside:
                self.say(f"files that the checkpoint does not have were moved to .spotburst-set-aside: {aside}")
        self.restored = commit
        step = "" if commit.step is None else f" of step {commit.step}"
        self.say(f"going on from the checkpoint{step} (entry {commit.seq}), read in {self.steady() - began:.1f} s")
        self._resumed = {"restored_entry": commit.seq, "restored_step": commit.step}

    def _count_failure(self, seq: int, error: str) -> None:
        self.say(f"the checkpoint of entry {seq} can't be restored: {error}")
        entry = self._claim.restore_failed(seq, error)
        if entry.summary.failed_restores.get(seq, 0) >= FAILURES:
            failed = RestoreFailed(f"{self.run}: the checkpoint of entry {seq} has failed to restore twice: {error}")
            self._claim.end(int(failed.exit_code), failed.reason)
            raise failed

    def restore_older(self, seq: int, error: str) -> None:
        """The program says that the commit of entry ``seq`` is damaged: note it, restore the next older. Raises ``RestoreFailed``."""
        self._count_failure(seq, error)
        self._restore(seq)

    # What else needs the store

    @property
    def store(self) -> ObjectStore:
        """The store, once it is open."""
        if self._store is None:
            raise StoreError("the store is not open yet")
        return self._store

    @property
    def claimed(self) -> bool:
        """Entries can be written."""
        return self._claim is not None

    @property
    def waits(self) -> bool:
        """There is work to lose: a store that is away is waited for as long as ``--store-patience`` says."""
        return self.claimed or self.identity.restart_count > 0

    def _patiently(self, work: Callable[[], T]) -> T:
        """A store that can't be reached is tried again for some time; one that refuses is not."""
        patience = Patience(
            self.options.patience if self.waits else min(STORE_PATIENCE, self.options.patience),
            first=1.0,
            longest=5.0,
            now=self.steady,
            sleep=time.sleep,
        )
        return patiently(work, patience, lambda error: self.say(f"the store does not answer, trying again: {error}"))
