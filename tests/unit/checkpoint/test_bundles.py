"""Small tensors in bundles: all of them come back, and a foreign index is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from job_wrapper.checkpoint import Checkpointer
from job_wrapper.checkpoint.bundles import SIZE, decode_index, encode_index, unpack
from job_wrapper.checkpoint.staging import Arena
from job_wrapper.checkpoint.state import encode
from job_wrapper.errors import Damaged, NewerFormat
from job_wrapper.store import read_manifest, read_part
from tests.unit.checkpoint.training import assert_equal, open_run

sizes = st.lists(
    st.tuples(st.sampled_from([torch.uint8, torch.float16, torch.float64]), st.integers(0, 40_000)), max_size=40
)


@given(sizes)
def test_every_tensor_comes_back_from_its_bundle(kinds: list[tuple[torch.dtype, int]]) -> None:
    tensors = {str(n): (torch.arange(count) % 251).to(dtype) for n, (dtype, count) in enumerate(kinds)}
    arena = Arena()  # owns the memory that the batch lies in
    batch = arena.open(encode(tensors))
    batch.copy()
    assert all(len(bundle.data) <= SIZE for bundle in batch.bundles)
    rows = decode_index(encode_index(batch.bundles), "here")
    found = {
        name: tensor
        for row, bundle in zip(rows, batch.bundles, strict=True)
        for name, tensor in unpack(row, bytearray(bundle.data), "here")
    }
    large = {one.name for one in batch.tensors}
    assert {*found} | large == {*tensors}
    assert not {*found} & large
    assert_equal(found, {name: tensors[name] for name in found})
    arena.release()


def test_thousands_of_small_tensors_are_few_items_and_unchanged_ones_are_not_written_again(tmp_path: Path) -> None:
    committer = open_run(tmp_path)
    state = {f"layer {n}": torch.randn(500) for n in range(3000)}
    with Checkpointer(state=state, committer=committer) as checkpoint:
        committer.ask(urgent=True)
        checkpoint.step()
        state["layer 2999"].add_(1)
        committer.ask(urgent=True)
        checkpoint.step()
        commits = committer._claim.entry.summary.commits
        parts = [
            read_part(committer.store, read_manifest(committer.store, c.manifest).parts["rank-0"]) for c in commits
        ]
    assert all(len(part.items) < 40 for part in parts)
    first, second = (
        {(s.pack, s.offset, s.length) for item in part.items for s in item.segments} for part in parts[-2:]
    )
    assert sum(length for _, _, length in second - first) < 2 * SIZE
    fresh = {name: torch.zeros(500) for name in state}
    Checkpointer(state=fresh, committer=open_run(tmp_path)).close()
    assert_equal(fresh, state)


GOOD: dict[str, Any] = {"format": 1, "counts": [2], "names": ["a", "b"], "dtypes": [["uint8", 2]], "shapes": [[[3], 2]]}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": 2}, NewerFormat),
        ({"format": True}, Damaged),
        ({"dtypes": [["uint1024", 2]]}, NewerFormat),
        ({"counts": [3]}, Damaged),
        ({"counts": [1]}, Damaged),
        ({"counts": [-1, 3]}, Damaged),
        ({"names": ["a", "a"]}, Damaged),
        ({"names": ["a", 1]}, Damaged),
        ({"names": [[], {}]}, Damaged),
        ({"dtypes": [["uint8", 10**12]]}, Damaged),
        ({"shapes": [[[-1], 2]]}, Damaged),
        ({"shapes": [[[3.0], 2]]}, Damaged),
        ({"shapes": 5}, Damaged),
    ],
    ids=str,
)
def test_a_foreign_index_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="there" if error is Damaged else None):
        decode_index(json.dumps({**GOOD, **change}).encode(), "there")


@pytest.mark.parametrize("length", [0, 3, 66, 68, 1 << 20])
def test_a_bundle_of_another_length_is_refused(length: int) -> None:
    (rows,) = decode_index(json.dumps(GOOD).encode(), "there")
    assert [name for name, _ in unpack(rows, bytearray(67), "there")] == ["a", "b"]
    with pytest.raises(Damaged):
        list(unpack(rows, bytearray(length), "there"))
