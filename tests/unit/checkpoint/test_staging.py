"""What a save copies: each tensor once, in few pieces, written while the rest is copied; and what happens when it can't be copied."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from job_wrapper.checkpoint import Checkpointer, UnsupportedState, copying, staging
from job_wrapper.checkpoint.bundles import ALIGNMENT, BELOW, SIZE, aligned
from job_wrapper.checkpoint.layout import BLOCK, blocks_of, lay_out
from job_wrapper.checkpoint.memory import Pages
from job_wrapper.errors import CheckpointFailed
from tests.unit.checkpoint.test_checkpointer import Gate, Recorder, gated, settled, stored
from tests.unit.checkpoint.training import assert_equal

runs = st.lists(st.tuples(st.integers(0, BELOW - 1), st.integers(1, 3000)), max_size=6)


@pytest.fixture
def committer(tmp_path: Any) -> Recorder:
    return Recorder.open(f"file://{tmp_path}", "test")  # type: ignore[return-value]


@given(runs)
def test_every_small_tensor_has_a_place_of_its_own_in_one_bundle(some: list[tuple[int, int]]) -> None:
    lengths = [length for length, count in some for _ in range(count)]
    done = 0
    for first, last in blocks_of(lengths):
        assert first == done < last
        block, done = lengths[first:last], last
        assert sum(map(aligned, block)) <= BLOCK
        alike = [n for n in range(len(block)) if not n or block[n] != block[n - 1]]
        laid, spans = lay_out(zip(alike, [*alike[1:], len(block)], strict=True), block)
        places = [run.begin + n * aligned(run.length) for run in laid for n in range(run.last - run.first)]
        assert all(place % ALIGNMENT == 0 for place in places)
        ends = [place + length for place, length in zip(places, block, strict=True)]
        assert all(end <= place for end, place in zip(ends, places[1:], strict=False))
        assert [span.first for span in spans] == [0, *(span.last for span in spans)][:-1] and spans[-1].last == len(
            block
        )
        for span in spans:
            assert span.begin == places[span.first] and span.end == ends[span.last - 1] <= span.begin + SIZE
    assert done == len(lengths)


def many() -> dict[str, torch.Tensor]:
    """More than one block."""
    return {str(n): torch.full((16,), float(n)) for n in range(5000)}


def test_what_is_copied_is_written_while_the_rest_is_copied(
    committer: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate: Gate = gated(committer)
    gate.open.set()
    written: list[bool] = []
    copy = staging.copy_large

    def slow(*arguments: Any) -> None:
        written.append(gate.reached.wait(120))
        copy(*arguments)

    monkeypatch.setattr(staging, "copy_large", slow)
    small, large = many(), torch.ones(1 << 20)
    with Checkpointer(small=small, large=large, committer=committer) as checkpoint:
        committer.ask()
        checkpoint.step()
        for tensor in (*small.values(), large):
            tensor.add_(1)
        settled(checkpoint)
        assert written == [True]
        assert_equal(stored(committer, "small")[1], many())
        assert stored(committer, "large")[1].eq(1).all()


@pytest.mark.parametrize("error", [MemoryError("none left"), RuntimeError("the device is gone"), KeyboardInterrupt()])
def test_a_state_that_cannot_be_copied_is_not_committed_and_the_next_one_is(
    committer: Recorder, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*arguments: Any) -> None:
        raise error

    with Checkpointer(small=many(), large=torch.ones(1 << 20), committer=committer) as checkpoint:
        with monkeypatch.context() as patch:
            patch.setattr(staging, "copy_large", fail)
            committer.ask()
            with pytest.raises(CheckpointFailed if isinstance(error, MemoryError) else type(error)):
                checkpoint.step()
        assert checkpoint._saving is None
        checkpoint.step()  # it was told once
        committer.ask()
        checkpoint.step()
        settled(checkpoint)
        assert committer.commits == [(3, 2)]
        assert_equal(stored(committer, "small")[3], many())
    packs = {info.key for info in committer.store.list(committer.run) if info.key.endswith(".pack")}
    assert packs <= {key for part in stored_packs(committer) for key in part}


def test_where_no_more_threads_are_to_be_had_one_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(copying, "processors", lambda: 4)
    monkeypatch.setattr(copying, "_PER_THREAD", 1000)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    tensor = torch.randn(5000)
    pages = Pages(tensor.nbytes)
    copying.copy_large(pages, [(tensor, 0, tensor.nbytes)])
    assert torch.equal(pages.bytes[: tensor.nbytes].view(torch.float32), tensor)


def stored_packs(committer: Recorder) -> list[tuple[str, ...]]:
    from job_wrapper.store import read_manifest

    return [read_manifest(committer.store, c.manifest).packs for c in committer._claim.entry.summary.commits]


def test_tensors_without_content_are_named(committer: Recorder) -> None:
    base = torch.empty(20, device="meta")
    with pytest.raises(UnsupportedState, match=r"state\.model\.w0: a tensor on the meta device"):
        Checkpointer(model={f"w{n}": base[n + 1 :] for n in range(10)}, committer=committer)


@pytest.mark.parametrize("count", [1, 20])
def test_a_tensor_whose_memory_was_given_back_is_named(committer: Recorder, count: int) -> None:
    """As sharding libraries do between the uses of a weight."""
    state = {f"w{n}": torch.ones(100) for n in range(count)}
    state["w0"].untyped_storage().resize_(0)
    with pytest.raises(UnsupportedState, match=r"state\.model\.w0: a tensor whose memory"):
        Checkpointer(model=state, committer=committer)
