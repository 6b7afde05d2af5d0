"""What the other ranks of a step begin from: what rank 0 decided, whatever they see of the store themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from job_wrapper.errors import Damaged
from job_wrapper.node_config import NodeConfig
from job_wrapper.run.attempt import Attempt
from job_wrapper.run.follower import Follower
from job_wrapper.run.identity import identify
from job_wrapper.run.options import parse_options
from job_wrapper.store.codec import seal
from job_wrapper.store.log import RunLog
from job_wrapper.store.open import open_store
from tests.store.checkpoints import RUN, save, writer

SLURM = {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "c", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}


def attempt(kind: type[Attempt], uri: str, rank: int) -> Attempt:
    node = NodeConfig()
    options = parse_options(["--uri", uri, "--", "true"], node, {})
    who = identify({**SLURM, "SLURM_PROCID": str(rank), "SLURM_RESTART_COUNT": "1"}, node, "")
    return kind(options, who, node, None, lambda text: None)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Of a run whose newest checkpoint rank 0 finds damaged."""
    store = open_store(f"file://{tmp_path}")
    claim = RunLog(store, RUN).claim(writer(0))
    for step in (1, 2):
        entry = save(claim, step, {"w": bytes([step])})
    (tmp_path / entry.summary.commits[-1].manifest.key).write_bytes(b"{}")
    attempt(Attempt, f"file://{tmp_path}", 0).begin()
    return f"file://{tmp_path}"


def test_it_is_what_rank_0_restored(uri: str) -> None:
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
def test_a_damaged_word_of_rank_0_never_means_to_begin_anew(what: str, uri: str, tmp_path: Path) -> None:
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
        attempt(Follower, uri, 1).begin()
