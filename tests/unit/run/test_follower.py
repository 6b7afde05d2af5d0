"""What the other ranks of a step begin from: what rank 0 decided, whatever they see of the store themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from job_wrapper.errors import Damaged, ExitCode, Fenced, RestoreFailed, RunHeld, StoreError
from job_wrapper.node_config import NodeConfig
from job_wrapper.run.attempt import Attempt
from job_wrapper.run.beginning import restored_key
from job_wrapper.run.follower import Follower, RankZeroEnded
from job_wrapper.run.identity import identify
from job_wrapper.run.options import parse_options
from job_wrapper.run.pulse import Heard
from job_wrapper.slurm_job import JobView, SlurmJob
from job_wrapper.store.codec import seal
from job_wrapper.store.log import RunFinished, RunLog
from job_wrapper.store.open import open_store
from job_wrapper.store.paths import data_prefix
from tests.store.checkpoints import RUN, save, writer

SLURM = {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "c", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}

A = TypeVar("A", bound=Attempt)


class Slurm(SlurmJob):
    """Runs this attempt here, and tells each time that it is asked whether the step is heterogeneous."""

    def __init__(self, *parts: bool | None) -> None:
        super().__init__("12")
        self.parts = list(parts)

    def view(self, job_id: str | None = None) -> JobView:
        return JobView("RUNNING", 1)

    def runs_here(self, name_id: str, restart_count: int) -> bool:
        return True

    def in_parts(self, step_id: int) -> bool | None:
        assert step_id == 0
        return self.parts.pop(0)


def attempt(
    kind: type[A], uri: str, rank: int, launcher: str = "40001", job: SlurmJob | None = None, turns: Turns | None = None
) -> A:
    """Of the launch by the srun that listens at that port."""
    node = NodeConfig()
    options = parse_options(["--uri", uri, "--", "true"], node, {})
    given = {"SLURM_PROCID": str(rank), "SLURM_RESTART_COUNT": "1", "SLURM_STEP_LAUNCHER_PORT": launcher}
    who = identify({**SLURM, **given}, node, "")
    more = {} if turns is None else {"steady": turns.steady}
    return kind(options, who, node, job, lambda text: None, **more)


def relaunched(uri: str, kind: type[A], turns: Turns | None = None) -> A:
    """Of a second launch on the same nodes."""
    return attempt(kind, uri, 0 if kind is Attempt else 1, "40002", Slurm(False), turns)


class Turns:
    """What happens each time that the follower has looked. Between two looks lie some seconds, as it sees it."""

    def __init__(self) -> None:
        self.acts: list[Callable[[], object]] = []
        self.now = 0.0

    def steady(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 3.0
        assert self.now < 3600, "it waits in vain"
        if self.acts:
            self.acts.pop(0)()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    made = Turns()
    monkeypatch.setattr("job_wrapper.run.follower.time.sleep", made.sleep)
    return made


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Of a run with one checkpoint, by an attempt before."""
    save(RunLog(open_store(f"file://{tmp_path}"), RUN).claim(writer(0)), 1, {"w": b"1"})
    return f"file://{tmp_path}"


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """Of a run whose newest checkpoint rank 0 finds damaged."""
    store = open_store(f"file://{tmp_path}")
    claim = RunLog(store, RUN).claim(writer(0))
    for step in (1, 2):
        entry = save(claim, step, {"w": bytes([step])})
    (tmp_path / entry.summary.commits[-1].manifest.key).write_bytes(b"{}")
    attempt(Attempt, f"file://{tmp_path}", 0).begin()
    return f"file://{tmp_path}"


def test_it_is_what_rank_0_restored(damaged: str) -> None:
    other = attempt(Follower, damaged, 1)
    other.begin()
    assert other.restored is not None and other.restored.step == 1


def test_one_that_is_late_finds_it_though_newer_ones_have_been_made(uri: str) -> None:
    first = attempt(Attempt, uri, 0)
    first.begin()
    for step in range(2, 8):
        entry = save(first._claim, step, {"w": bytes([step])})
    assert 1 not in {commit.step for commit in entry.summary.commits}
    other = attempt(Follower, uri, 1)
    other.begin()
    assert other.restored is not None and other.restored.step == 1


def test_a_damaged_end_of_the_log_is_left_to_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"file://{tmp_path}"
    claim = RunLog(open_store(uri), RUN).claim(writer(0))
    for step in (1, 2):
        entry = save(claim, step, {"w": bytes([step])})
    (tmp_path / f"{RUN}/log/{entry.seq:08d}.json").write_bytes(b"{}")
    looked = []

    def sleep(_: float) -> None:
        monkeypatch.undo()
        looked.append(attempt(Attempt, uri, 0).begin())

    monkeypatch.setattr("job_wrapper.run.follower.time.sleep", sleep)
    other = attempt(Follower, uri, 1)
    other.begin()
    assert looked and other.restored is not None and other.restored.step == 1


@pytest.mark.parametrize("what", ["one bit", "nothing", "an entry that is no commit"])
def test_a_damaged_word_of_rank_0_never_means_to_begin_anew(what: str, damaged: str, tmp_path: Path) -> None:
    (told,) = tmp_path.rglob("restored.json")
    data = told.read_bytes()
    told.write_bytes(
        {
            "one bit": data.replace(b'"entry":1', b'"entry":3'),
            "nothing": b"",
            "an entry that is no commit": seal("restored", {"entry": 99, "progress": None}),
        }[what]
    )
    assert told.read_bytes() != data
    with pytest.raises(Damaged, match=RUN):
        attempt(Follower, damaged, 1).begin()


def test_a_second_launch_on_the_same_nodes_waits_for_its_own_rank_0(uri: str, turns: Turns) -> None:
    """The first one's is what the log names until then, with the same job, restart count and step."""
    attempt(Attempt, uri, 0).begin()
    other = relaunched(uri, Follower, turns)
    turns.acts = [lambda: None, lambda: relaunched(uri, Attempt).begin()]
    other.begin()
    assert (other.epoch, turns.acts) == (3, [])
    assert other.restored is not None and other.restored.step == 1
    other.check()


def test_the_first_launch_leaves_the_run_to_the_second(uri: str, turns: Turns) -> None:
    """A rank of it that looks late as one that has begun; for the wrapper to be fenced means to leave the job alone."""
    attempt(Attempt, uri, 0).begin()
    begun, late = attempt(Follower, uri, 1), attempt(Follower, uri, 1, turns=turns)
    begun.begin()
    relaunched(uri, Attempt).begin()
    for look in (begun.check, late.begin):
        with pytest.raises(Fenced, match="epoch 3"):
            look()


@pytest.mark.parametrize("told_by", ["first", "second"])
def test_a_refusal_is_for_its_own_launch(told_by: str, uri: str, turns: Turns) -> None:
    first, second = attempt(Attempt, uri, 0), relaunched(uri, Attempt)
    if told_by == "first":
        first.tell_refused(ExitCode.RUN_HELD)
        refused, begins = attempt(Follower, uri, 1, turns=turns), relaunched(uri, Follower, turns)
        turns.acts = [lambda: None, second.begin]
    else:
        first.begin()
        second.tell_refused(ExitCode.RUN_HELD)
        refused, begins = relaunched(uri, Follower, turns), attempt(Follower, uri, 1, turns=turns)
    begins.begin()
    assert begins.epoch == 2
    with pytest.raises(RankZeroEnded, match="has begun nothing") as ended:
        refused.begin()
    assert ended.value.exit_code is ExitCode.RUN_HELD


def test_an_end_is_for_its_own_launch(uri: str, turns: Turns) -> None:
    first = attempt(Attempt, uri, 0)
    first.begin()
    first.end(int(ExitCode.CHECKPOINT_FAILED), "CheckpointFailed")

    def refuse() -> None:
        second = relaunched(uri, Attempt)
        with pytest.raises(RunHeld) as held:
            second.begin()
        second.tell_refused(int(held.value.exit_code))

    turns.acts = [lambda: None, refuse]
    for rank, code in (
        (attempt(Follower, uri, 1, turns=turns), ExitCode.CHECKPOINT_FAILED),
        (relaunched(uri, Follower, turns), ExitCode.RUN_HELD),
    ):
        with pytest.raises(RankZeroEnded) as ended:
            rank.begin()
        assert ended.value.exit_code is code
    assert not turns.acts


def test_of_a_finished_run_only_a_late_rank_of_its_own_launch_runs_its_program(uri: str, turns: Turns) -> None:
    first = attempt(Attempt, uri, 0)
    first.begin()
    first.end(0, "Finished")
    late = attempt(Follower, uri, 1, turns=turns)
    late.begin()
    assert late.epoch == 2
    with pytest.raises(RunFinished):
        relaunched(uri, Follower, turns).begin()


def test_it_ends_with_a_rank_0_that_has_claimed_the_run_and_can_restore_nothing(damaged: str, turns: Turns) -> None:
    """The same checkpoint fails for the second time."""
    second = relaunched(damaged, Attempt)
    with pytest.raises(RestoreFailed) as failed:
        second.begin()
    second.tell_refused(int(failed.value.exit_code))
    with pytest.raises(RankZeroEnded) as ended:
        relaunched(damaged, Follower, turns).begin()
    assert ended.value.exit_code is ExitCode.RESTORE_FAILED


def test_a_heterogeneous_step_is_launched_in_parts_each_with_a_port_of_its_own(uri: str, turns: Turns) -> None:
    """Slurm is asked until it answers, and once."""
    attempt(Attempt, uri, 0).begin()
    slurm = Slurm(None, None, True)
    other = attempt(Follower, uri, 1, "40002", slurm, turns)
    other.begin()
    assert (other.epoch, slurm.parts) == (2, [])


def test_the_tasks_of_a_heterogeneous_job_know_that_they_are() -> None:
    given = {**SLURM, "SLURM_HET_SIZE": "2"}
    launches = [
        identify({**given, "SLURM_PROCID": rank, "SLURM_STEP_LAUNCHER_PORT": port}, NodeConfig(), "").launch
        for rank, port in (("0", "40001"), ("1", "40002"))
    ]
    assert launches[0] == launches[1]


class Killed(BaseException):
    """As if by SIGKILL: nothing is told."""


def killed_in_its_restore(uri: str) -> Attempt:
    """Rank 0, of epoch 2."""

    def die() -> None:
        raise Killed

    first = attempt(Attempt, uri, 0)
    first._restore_newest = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        first.begin()
    return first


def test_a_rank_0_that_is_gone_after_its_claim_is_not_waited_for_for_ever(uri: str, turns: Turns) -> None:
    killed_in_its_restore(uri)
    with pytest.raises(StoreError, match="rank 0 has not told of its restore"):
        attempt(Follower, uri, 1, turns=turns).begin()


def test_a_rank_0_that_restores_is_waited_for(uri: str, turns: Turns) -> None:
    """As long as it says so now and then: here for half an hour and more."""
    store, first = open_store(uri), killed_in_its_restore(uri)

    def tell(number: int) -> None:
        store.put(f"{data_prefix(RUN, 2)}/gang/restoring-{number:08d}.json", seal("restoring", {}))

    def restored() -> None:
        store.put(restored_key(RUN, 2), seal("restored", {"entry": None, "progress": None, **first.identity.launch}))

    for number in range(4):
        turns.acts += [*[lambda: None] * 150, partial(tell, number)]
    turns.acts.append(restored)
    other = attempt(Follower, uri, 1, turns=turns)
    other.begin()
    assert (other.epoch, turns.acts, turns.now > 1800) == (2, [], True)


def test_a_restore_that_takes_long_is_told_of_until_it_is_over(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("job_wrapper.run.pulse.PAUSE", 0.01)
    first, heard = attempt(Attempt, uri, 0), Heard(open_store(uri), RUN)
    restore = first._restore_newest

    def slowly() -> None:
        assert heard.anew(first.epoch), "of an epoch that it did not know"
        for _ in range(3):
            until = time.monotonic() + 120
            while not heard.anew(first.epoch):
                assert time.monotonic() < until
        restore()

    first._restore_newest = slowly  # type: ignore[method-assign]
    first.begin()
    telling = [thread for thread in threading.enumerate() if thread.name == "spotburst-restoring"]
    for thread in telling:  # at its last, if it was at one
        thread.join(60)
    assert not any(thread.is_alive() for thread in telling)
