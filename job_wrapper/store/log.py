"""The run's log: one append-only sequence of entries, each created once (DESIGN §3). Reading it, and claiming the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from job_wrapper.errors import Damaged, ExitCode, NewerFormat, ObjectMissing, RunHeld, SpotburstError, StoreRefused
from job_wrapper.store import paths
from job_wrapper.store.claim import Claim
from job_wrapper.store.codec import MAX_ENTRY, decode_entry, encode_entry, seal, unseal
from job_wrapper.store.decided_put import Patience, decided_put, patiently
from job_wrapper.store.io_types import Entry, Kind, ObjectStore, Summary, Writer

_T = TypeVar("_T")

MAX_CONFLICTS = 1000
"""Conflicts in a row at one claim before it gives up: a log can't grow by that much while it is being read."""


class RunFinished(SpotburstError):
    """The run has ended successfully; ``entry`` is the one that says so. Nothing is left to do: exit 0."""

    exit_code = ExitCode.OK
    reason = "Finished"

    def __init__(self, entry: Entry, where: str) -> None:
        super().__init__(
            f"{where}: this run has ended successfully, so nothing is started; to begin anew give another --run, "
            "and to a second program of one job a --name of its own"
        )
        self.entry = entry


class RunLog:
    """The log of one run. Reading needs no claim; ``claim`` makes this process the run's holder."""

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        *,
        clock: Callable[[], float] = time.time,
        patience: Patience | None = None,
        readers: int = 8,
    ) -> None:
        """``readers``: how many entries of a long log are asked for at a time; with 1, each request follows the answer to the last."""
        self.store = store
        self.run = run
        self._readers = readers
        self._clock = clock
        self._patience = patience or Patience()
        self._too_large: dict[int, int] = {}

    def _where(self, seq: int) -> str:
        return f"{self.store.uri}/{paths.log_key(self.run, seq)}"

    def seqs(self) -> list[int]:
        """Sequence numbers of all entries, in order: one listing. Foreign objects are passed over."""
        found = [(paths.seq_of(info.key), info.size) for info in self.store.list(paths.log_prefix(self.run))]
        sizes = {seq: size for seq, size in found if seq is not None}
        self._too_large = {seq: size for seq, size in sizes.items() if size > MAX_ENTRY}
        return sorted(sizes)

    def read(self, seq: int) -> Entry:
        """One entry. Raises ``ObjectMissing``, ``Damaged``, ``NewerFormat``, ``StoreError``.

        One that the listing shows to be larger than any entry is refused unread: whoever can write to the store must not be able to take all
        memory of whoever looks at it.
        """
        if seq in self._too_large:
            raise _oversize(self._where(seq), self._too_large[seq])
        return self._decode(self.store.get(paths.log_key(self.run, seq)), seq)

    def _decode(self, data: bytes, seq: int) -> Entry:
        return decode_entry(data, self._where(seq), seq, self.run)

    def tail(self) -> Entry | None:
        """The newest entry, which tells the whole state; None for a run that never started. One listing and one read.

        A damaged newest entry raises ``Damaged`` naming its key: to pass it over would be to forget a claim.
        """
        seqs = self.seqs()
        return self.read(seqs[-1]) if seqs else None

    def newest(self) -> tuple[Entry | None, list[Damaged]]:
        """The newest entry that can be read, and what is wrong with those after it: for whoever claims the run without them.

        Where some are damaged, the entry stands in for all up to the last (see ``stand_in``). Raises ``Damaged`` where nothing can be
        read or an entry is missing, ``NewerFormat`` (a newer spotburst is at work on this run), and as ``read``.
        """
        seqs = self.seqs()
        self._refuse_holes(seqs)
        damaged: list[Damaged] = []
        for seq in reversed(seqs):
            try:
                entry = self.read(seq)
            except NewerFormat:
                raise
            except Damaged as error:
                damaged.append(error)
                continue
            return (stand_in(entry, seqs[-1]) if damaged else entry), damaged
        if damaged:
            raise damaged[-1]
        return None, []

    def _refuse_holes(self, seqs: Sequence[int]) -> None:
        """A missing entry would let in a writer that believes in its number. Raises ``Damaged`` naming it."""
        present = set(seqs)
        for seq in range(seqs[-1] + 1 if seqs else 0):
            if seq not in present:
                try:
                    self.store.get(paths.log_key(self.run, seq))  # a listing may lag
                except ObjectMissing:
                    raise Damaged(
                        f"{self._where(seq)}: this log entry is missing, though a later one is there; entries are never deleted. "
                        "Put it back from a copy, or begin another run (--name, --run)"
                    ) from None

    def entries(self) -> list[Entry]:
        """The whole log, oldest first. Raises ``Damaged`` for a damaged or a missing entry, naming its key."""
        seqs = self.seqs()
        self._refuse_holes(seqs)
        return self._each(self.read, seqs)

    def _each(self, read: Callable[[int], _T], seqs: Sequence[int]) -> list[_T]:
        if self._readers == 1 or len(seqs) < 8:
            return [read(seq) for seq in seqs]
        from concurrent.futures import ThreadPoolExecutor  # costs as much to import as all the rest here

        with ThreadPoolExecutor(self._readers, "spotburst-log") as pool:
            return list(pool.map(read, seqs))

    def _readable(self, seq: int) -> Entry | None:
        try:
            return self.read(seq)
        except NewerFormat:
            raise
        except Damaged:
            return None

    def claim(
        self,
        writer: Writer,
        *,
        alive: Callable[[str], bool] = lambda job_id: False,
        forgotten: Callable[[Entry], bool] = lambda entry: False,
        keep: int = 3,
        command_digest: str | None = None,
        body: Mapping[str, Any] | None = None,
        bounded: bool = True,
    ) -> Claim:
        """Become the run's holder under a new epoch.

        ``alive(job_id)`` tells whether Slurm still shows that job; it is asked only about another job that holds the run.
        ``forgotten(entry)`` tells whether Slurm knows nothing any more of the attempt of this job that wrote the entry; it is asked only
        where that attempt would refuse this one.
        ``keep`` is how many commits later summaries name; ``body`` goes into the claim's entry. Without ``bounded``
        attempts that made no commit are not counted: none is expected of them. Raises ``RunFinished``,
        ``RunHeld``, and the store's errors; after ``StoreError`` the same process may call again.

        Damaged entries at the log's end are passed over (``Claim.passed_over``): the run goes on from the newest commit that is known
        without them. Who is to be refused is then only known as far as the others tell; that older holders are fenced is not in doubt.
        """
        patiently(partial(self._point, writer), self._patience)
        last, damaged = patiently(self.newest, self._patience)
        history: list[Entry | None] = []

        def held(entry: Entry) -> Claim:
            return Claim(
                self.store, self.run, entry, keep=keep, clock=self._clock, patience=self._patience, passed_over=damaged
            )

        for _ in range(MAX_CONFLICTS):
            if last is not None:
                if not damaged and self._already_ours(last, writer):
                    return held(last)
                self._refuse(last, writer, alive, forgotten, history)
            entry = Entry(
                seq=last.seq + 1 if last else 0,
                kind=Kind.CLAIM,
                epoch=last.summary.epoch + 1 if last else 1,
                writer=writer,
                time=self._clock(),
                summary=claim_summary(last, writer, command_digest, bounded=bounded),
                body={**(body or {}), **({"damaged": [str(error)[:500] for error in damaged]} if damaged else {})},
            )
            key = paths.log_key(self.run, entry.seq)
            found = decided_put(self.store, key, encode_entry(entry, self.run), self._patience)
            if found is None:
                return held(entry)
            try:
                last = self._decode(found, entry.seq)
            except NewerFormat:
                raise
            except Damaged as error:
                if last is None:
                    raise
                damaged.append(error)
                last = stand_in(last, entry.seq)
        raise StoreRefused(
            f"{self.store.uri}/{self.run}: the log grew {MAX_CONFLICTS} times while this attempt tried to claim the run"
        )

    def _point(self, writer: Writer) -> None:
        """Let ``find_runs`` find this run by the job. Before the claim, so that a crash between leaves no run that can't be found."""
        key = paths.pointer_of_run(self.run, writer.job_id)
        data = seal("pointer", {"run": self.run})
        try:
            if self.store.get(key) == data:
                return
        except ObjectMissing:
            pass
        self.store.put(key, data)

    def _already_ours(self, last: Entry, writer: Writer) -> bool:
        """Whether the newest entry is a claim that this very process made without learning of it (a put that landed late)."""
        return last.kind is Kind.CLAIM and last.writer == writer

    def _refuse(
        self,
        last: Entry,
        writer: Writer,
        alive: Callable[[str], bool],
        forgotten: Callable[[Entry], bool],
        history: list[Entry | None],
    ) -> None:
        """Raise if ``writer`` may not claim after ``last``. ``history``: entries read by earlier calls, to which this adds."""
        where = f"{self.store.uri}/{self.run}"
        if last.summary.ended == 0:
            raise RunFinished(last, where)

        def refused(entry: Entry) -> str | None:
            why = refusal(entry, writer)
            return None if why is not None and forgotten(entry) else why

        held = refused(last)
        if held is None and last.writer.job_id != writer.job_id:
            # The newest entry does not tell what this job did before another one took over: read on. Rare, and only once a claim.
            history += self._each(self._readable, range(len(history), last.seq))
            for entry in history:
                if entry is not None and entry.kind is Kind.CLAIM and entry.writer.job_id == writer.job_id:
                    held = held or refused(entry)
            if held is None and last.kind is not Kind.END and alive(last.writer.job_id):
                holder = f"it is held by job {last.writer.job_id} on {last.writer.host} (epoch {last.epoch}), which "
                held = holder + (
                    "still runs there. Wait for it or end it, or give this program a --name of its own"
                    if last.writer.job_id.startswith("local-")
                    else f"Slurm still shows. Wait for that job or cancel it (scancel {last.writer.job_id}), or give this program a "
                    "--name of its own"
                )
        if held is not None:
            raise RunHeld(f"{where}: {held}")


def stand_in(entry: Entry, seq: int) -> Entry:
    """``entry``, for itself and for the unreadable ones after it up to ``seq``: with the highest epoch that those can have. Pure.

    A claim is one above the entry before it, so each entry raises the epoch by one at most. What is claimed after this is above all
    of them, and whoever wrote them finds it where his next entry should go.
    """
    epoch = entry.summary.epoch + seq - entry.seq
    return replace(entry, seq=seq, summary=replace(entry.summary, epoch=epoch))


def refusal(last: Entry, writer: Writer) -> str | None:
    """Why ``writer`` may not claim after ``last``, the newest entry of its own job; None if it may, or if the job is another. Pure.

    Slurm raises a job's restart count with each requeue, while the old attempt may still run; so of two attempts of one job the one
    with the higher count is the newer. Within one attempt, a later step may follow one that has ended.
    """
    old = last.writer
    if old.job_id != writer.job_id or writer.restart_count > old.restart_count:
        return None
    if writer.restart_count < old.restart_count:
        return (
            f"a newer attempt of job {writer.job_id} (restart {old.restart_count}, on {old.host}) has claimed it; "
            f"this one is restart {writer.restart_count} and must not go on"
        )
    closed = last.kind in (Kind.END, Kind.INTERRUPTED, Kind.SUSPENDED)
    if closed and writer.step_id > old.step_id:
        return None
    return (
        f"step {old.step_id} of this attempt of job {writer.job_id} (restart {old.restart_count}, on {old.host}) has claimed it already. "
        "A second program of one job needs a --name of its own"
    )


def claim_summary(last: Entry | None, writer: Writer, command_digest: str | None, *, bounded: bool = True) -> Summary:
    """The summary that a claim after ``last`` carries. Pure.

    ``recoveries`` counts claims of the same job after its first; ``barren`` counts attempts in a row that made no commit. Both begin
    again with another job; an attempt that its user suspended counts for neither.
    """
    if last is None:
        return Summary(epoch=1, command_digest=command_digest)
    old = last.summary
    same = last.writer.job_id == writer.job_id
    progressed = bool(old.commits) and old.commits[-1].epoch == last.epoch
    recovers = last.kind is not Kind.SUSPENDED  # else its user stopped it, and nothing has to be recovered from
    barren = old.barren + (1 if recovers else 0)
    return replace(
        old,
        epoch=old.epoch + 1,
        recoveries=old.recoveries + (1 if recovers else 0) if same else 0,
        barren=barren if same and bounded and not progressed else 0,
        ended=None,
        command_digest=command_digest if command_digest is not None else old.command_digest,
    )


def find_runs(store: ObjectStore, cluster: str, job_id: str) -> list[str]:
    """Paths of the runs that a job has claimed, in order. Raises ``Damaged`` or ``StoreError``."""
    found = list(store.list(paths.job_pointer(cluster, job_id, "")))
    for info in found:
        if info.size > MAX_ENTRY:
            raise _oversize(f"{store.uri}/{info.key}", info.size)
    return [run_of_pointer(store, info.key) for info in found]


def _oversize(where: str, size: int) -> Damaged:
    return Damaged(f"{where}: damaged: {size} bytes, where spotburst writes at most {MAX_ENTRY}")


def run_of_pointer(store: ObjectStore, key: str) -> str:
    """Path of the run that a job's pointer names. Raises ``Damaged``, ``ObjectMissing`` or ``StoreError``."""
    run = unseal(store.get(key), "pointer", f"{store.uri}/{key}").get("run")
    if not isinstance(run, str) or not paths.is_run(run) or paths.pointer_of_run(run, key.split("/")[-2]) != key:
        raise Damaged(f"{store.uri}/{key}: damaged: it points to {paths.short(run)}, which is no run of that name")
    return run
