"""Who may claim a run, and what the log says of it: DESIGN §3, rule by rule."""

from __future__ import annotations

import pytest

from job_wrapper.errors import Damaged, Fenced, ObjectMissing, RunHeld, SpotburstError, StoreError, StoreRefused
from job_wrapper.store import paths
from job_wrapper.store.claim import Claim
from job_wrapper.store.codec import encode_entry
from job_wrapper.store.decided_put import Patience
from job_wrapper.store.io_types import CommitRef, Entry, Kind, ObjectRef, Summary
from job_wrapper.store.log import RunFinished, RunLog, find_runs
from tests.store.checkpoints import QUICK, RUN, writer
from tests.store.faulty import MemoryStore

SUM = "xxh3-128:" + "0" * 32


def manifest(claim: Claim, n: int = 0) -> ObjectRef:
    return ObjectRef(f"{claim.data_prefix}/manifest-{n}.json", 1, SUM)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def log(store: MemoryStore) -> RunLog:
    return RunLog(store, RUN, clock=lambda: 5.0, patience=QUICK)


def test_the_first_claim(log: RunLog, store: MemoryStore) -> None:
    assert log.tail() is None and log.entries() == []
    claim = log.claim(writer(), command_digest="abc")
    assert (claim.epoch, claim.entry.seq, claim.data_prefix) == (1, 0, f"{RUN}/data/e00000001")
    assert claim.entry.summary == Summary(epoch=1, command_digest="abc")
    assert log.tail() == claim.entry
    assert find_runs(store, "c", "12") == [RUN]


def test_a_requeued_job_takes_over_and_the_old_attempt_is_fenced(log: RunLog) -> None:
    old = log.claim(writer(0))
    first = old.commit(manifest(old), step=10)
    new = log.claim(writer(1))
    assert new.epoch == 2 and new.entry.summary.commits == first.summary.commits
    assert (new.entry.summary.recoveries, new.entry.summary.barren) == (1, 0)
    for act in (
        lambda: old.commit(manifest(old), step=11),
        old.check,
        lambda: old.end(0, "done"),
        lambda: old.interrupted("x"),
    ):
        with pytest.raises(Fenced, match=r"epoch 2 \(job 12, restart 1, on node-1\)"):
            act()
    assert [e.kind for e in log.entries()] == [Kind.CLAIM, Kind.COMMIT, Kind.CLAIM]
    new.commit(manifest(new), step=20)
    new.check()


@pytest.mark.parametrize("restart", [0, 1])
def test_an_attempt_that_is_not_newer_is_refused(log: RunLog, restart: int) -> None:
    log.claim(writer(1))
    with pytest.raises(RunHeld, match=r"c/12/main: .*restart 1, on node-1"):
        log.claim(writer(restart, step=5))
    assert len(log.entries()) == 1


@pytest.mark.parametrize("restart", [0, 1])
def test_an_attempt_that_slurm_has_forgotten_is_fenced_by_one_that_is_not_newer(log: RunLog, restart: int) -> None:
    old = log.claim(writer(1))
    first = old.commit(manifest(old), step=10)
    asked = []
    new = log.claim(writer(restart), forgotten=lambda one: asked.append(one) is None)
    assert asked == [first]
    assert new.epoch == 2 and new.entry.summary.commits == first.summary.commits
    with pytest.raises(Fenced):
        old.commit(manifest(old), step=11)
    log.claim(writer(2), forgotten=lambda one: pytest.fail("a higher restart count needs no leave"))


@pytest.mark.parametrize("close", ["end", "interrupted", "suspended"])
def test_a_later_step_of_one_attempt_follows_one_that_closed(log: RunLog, close: str) -> None:
    first = log.claim(writer(0, step=3))
    with pytest.raises(RunHeld, match="--name"):
        log.claim(writer(0, step=4))
    {
        "end": lambda: first.end(1, "failed"),
        "interrupted": lambda: first.interrupted("x"),
        "suspended": first.suspended,
    }[close]()
    with pytest.raises(RunHeld):
        log.claim(writer(0, step=2))
    assert log.claim(writer(0, step=4)).epoch == 2


def test_a_run_that_ended_with_0_is_finished_for_everyone(log: RunLog) -> None:
    claim = log.claim(writer(0))
    end = claim.end(0, "Completed")
    for other in (writer(1), writer(0, job="13"), writer(0, step=9)):
        with pytest.raises(RunFinished) as caught:
            log.claim(other)
        assert caught.value.entry == end and caught.value.exit_code == 0
    assert claim.end(0, "again") == end
    with pytest.raises(SpotburstError, match="has ended"):
        claim.commit(manifest(claim), step=1)


def test_a_run_that_failed_is_claimed_again(log: RunLog) -> None:
    assert log.claim(writer(0)).end(3, "Failed").summary.ended == 3
    assert log.claim(writer(1)).entry.summary.ended is None


def test_another_job_waits_while_slurm_shows_the_holder(log: RunLog) -> None:
    holder = log.claim(writer(0, job="12"))
    asked: list[str] = []

    def alive(job: str) -> bool:
        asked.append(job)
        return job == "12"

    for _ in range(2):
        with pytest.raises(RunHeld, match=r"held by job 12 on node-0.*scancel 12"):
            log.claim(writer(0, job="13"), alive=alive)
        holder.interrupted("reclaim")  # it will come back: still held
    assert set(asked) == {"12"}
    taken = log.claim(writer(0, job="13"), alive=lambda job: False)
    assert (taken.epoch, taken.entry.summary.recoveries, taken.entry.summary.barren) == (2, 0, 0)
    with pytest.raises(RunHeld, match="restart 0"):
        log.claim(writer(0, job="12"))  # its own old attempt, after another job took over
    with pytest.raises(RunHeld, match="held by job 13"):
        log.claim(writer(1, job="12"), alive=lambda job: True)


def test_an_ended_run_is_free_though_its_job_still_shows(log: RunLog) -> None:
    log.claim(writer(0, job="12")).end(1, "Failed")
    assert log.claim(writer(0, job="13"), alive=lambda job: True).epoch == 2


def test_recoveries_and_barren_attempts_are_counted(log: RunLog) -> None:
    counts = []
    for restart, progress in enumerate([False, False, True, False, False]):
        claim = log.claim(writer(restart))
        counts.append((claim.entry.summary.recoveries, claim.entry.summary.barren))
        if progress:
            claim.commit(manifest(claim), step=restart)
    assert counts == [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1)]
    other = log.claim(writer(0, job="13"))
    assert (other.entry.summary.recoveries, other.entry.summary.barren) == (0, 0)


def test_commits_kept_are_the_newest_good_ones(log: RunLog) -> None:
    claim = log.claim(writer(), keep=2)
    seqs = [claim.commit(manifest(claim, n), step=n).seq for n in range(3)]
    assert [c.seq for c in claim.entry.summary.commits] == seqs[1:]
    failed = claim.restore_failed(seqs[2], "damaged")
    claim.restore_failed(seqs[2], "damaged")
    assert claim.entry.summary.failed_restores == {seqs[2]: 2}
    assert failed.body == {"entry": seqs[2], "error": "damaged"}
    last = claim.commit(manifest(claim, 9), step=9)
    assert [c.seq for c in last.summary.commits] == [seqs[1], last.seq]
    assert last.summary.failed_restores == {}
    assert last.summary.commits[-1] == CommitRef(last.seq, 1, 9, 5.0, manifest(claim, 9))


def test_only_its_own_data_can_be_committed(log: RunLog) -> None:
    old = log.claim(writer(0))
    new = log.claim(writer(1))
    with pytest.raises(SpotburstError, match="not written by epoch 2"):
        new.commit(manifest(old), step=1)


def test_a_claim_that_landed_unknown_to_its_process_is_found_again(store: MemoryStore) -> None:
    class Silent(MemoryStore):
        down = True

        def put_if_absent(self, key: str, data: bytes):  # type: ignore[no-untyped-def]
            result = super().put_if_absent(key, data)
            if self.down:
                raise StoreError("no answer")
            return result

        def get(self, key: str) -> bytes:
            if self.down and "/log/" in key:
                raise StoreError("no answer")
            return super().get(key)

    silent = Silent()
    log = RunLog(silent, RUN, patience=QUICK)
    me = writer()
    with pytest.raises(StoreError, match="can't tell whether"):
        log.claim(me)
    silent.down = False
    claim = log.claim(me)
    assert claim.epoch == 1 and len(log.entries()) == 1
    claim.commit(manifest(claim), step=1)


def test_a_commit_that_lands_late_counts_and_the_next_follows_it(store: MemoryStore) -> None:
    log = RunLog(store, RUN, patience=Patience(seconds=0))
    claim = log.claim(writer())
    kept = {}

    def late(key: str, data: bytes) -> None:
        kept[key] = data
        raise StoreError("no answer")

    store.put_if_absent = late  # type: ignore[method-assign,assignment]
    with pytest.raises(StoreError):
        claim.commit(manifest(claim, 1), step=1)
    del store.put_if_absent
    store.objects.update(kept)
    entry = claim.commit(manifest(claim, 2), step=2)
    assert [c.step for c in entry.summary.commits] == [1, 2]
    assert [e.kind for e in log.entries()] == [Kind.CLAIM, Kind.COMMIT, Kind.COMMIT]


def test_a_foreign_or_damaged_next_entry_stops_the_holder_for_good(log: RunLog, store: MemoryStore) -> None:
    claim = log.claim(writer())
    key = paths.log_key(RUN, 1)
    store.objects[key] = b"garbage"
    for act in (lambda: claim.commit(manifest(claim), step=1), claim.check):
        with pytest.raises(Fenced, match=r"log/00000001\.json"):
            act()
    del store.objects[key]
    with pytest.raises(Fenced):
        claim.commit(manifest(claim), step=1)


@pytest.mark.parametrize("epoch", [1, 2])
def test_two_holders_of_one_epoch_are_the_stores_fault(log: RunLog, store: MemoryStore, epoch: int) -> None:
    log.claim(writer(0))
    claim = log.claim(writer(1))
    twin = Entry(2, Kind.COMMIT, epoch, writer(1), 5.0, claim.entry.summary)
    store.objects[paths.log_key(RUN, 2)] = encode_entry(twin)
    with pytest.raises(StoreRefused, match="does not honour put-if-absent"):
        claim.commit(manifest(claim), step=1)
    with pytest.raises(Fenced):
        claim.check()


def test_foreign_objects_in_the_log_are_passed_over(log: RunLog, store: MemoryStore) -> None:
    log.claim(writer())
    store.objects[f"{RUN}/log/.nfs000001"] = b"x"
    store.objects[f"{RUN}/log/README"] = b"x"
    tail = log.tail()
    assert tail is not None and tail.seq == 0


def test_a_gap_in_the_log_is_damage(log: RunLog, store: MemoryStore) -> None:
    claim = log.claim(writer())
    claim.commit(manifest(claim), step=1)
    del store.objects[paths.log_key(RUN, 0)]
    with pytest.raises(Damaged, match=r"00000000\.json"):
        log.entries()


def test_runs_of_a_job_are_found_by_any_name(store: MemoryStore) -> None:
    RunLog(store, "c/12/main").claim(writer())
    RunLog(store, "c/12/eval").claim(writer())
    RunLog(store, "c/llama/main").claim(writer())
    RunLog(store, "c/13/main").claim(writer(job="13"))
    assert find_runs(store, "c", "12") == ["c/12/eval", "c/llama/main", "c/12/main"]
    assert find_runs(store, "c", "14") == []
    store.objects["c/jobs/13/main"] = b"{}"
    with pytest.raises(Damaged, match="c/jobs/13/main"):
        find_runs(store, "c", "13")


def test_reading_what_is_not_there(log: RunLog) -> None:
    with pytest.raises(ObjectMissing):
        log.read(0)


def older(store: MemoryStore, upto: int) -> None:
    """The server has lost power, and comes back without the entries from ``upto`` on."""
    store.delete([info.key for info in list(store.list(paths.log_prefix(RUN))) if int(info.key[-13:-5]) >= upto])


@pytest.mark.parametrize("left", [0, 1, 2, 4])
def test_a_server_that_comes_back_with_older_data_shuts_no_later_attempt_out(
    log: RunLog, store: MemoryStore, left: int
) -> None:
    claim = log.claim(writer())
    for step in range(4):
        claim.commit(manifest(claim, step), step=step)
    whole = log.entries()
    older(store, left)
    claim.commit(manifest(claim, 4), step=4)
    claim.check()
    assert log.entries()[:-1] == whole
    assert log.claim(writer(1)).entry.summary.commits == claim.entry.summary.commits


def test_a_claim_made_on_older_data_fences_the_one_whose_entries_were_lost(log: RunLog, store: MemoryStore) -> None:
    claim = log.claim(writer())
    for step in range(4):
        claim.commit(manifest(claim, step), step=step)
    older(store, 2)
    new = log.claim(writer(1))
    for _ in range(2):
        with pytest.raises(Fenced):
            claim.check()
    assert new.commit(manifest(new), step=9).seq == 3


def test_damage_to_an_old_entry_fences_nobody(log: RunLog, store: MemoryStore) -> None:
    claim = log.claim(writer())
    claim.commit(manifest(claim), step=1)
    claim.commit(manifest(claim, 1), step=2)
    store.put(paths.log_key(RUN, 1), b"junk")
    claim.check()
    claim.commit(manifest(claim, 2), step=3)
