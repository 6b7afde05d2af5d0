"""Shapes, indexes and metadata that no version wrote: a typed error before any memory is taken for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from job_wrapper.checkpoint.bundles import decode_index
from job_wrapper.checkpoint.dcp_format import FORMAT, empty_for, metadata_from
from job_wrapper.checkpoint.loading import _checked
from job_wrapper.checkpoint.state import decode, parse
from job_wrapper.errors import Damaged, NewerFormat
from job_wrapper.store import Item, ItemKind, Segment

numbers = st.sampled_from(
    [0, 1, 2, 8, -1, 2**31, 2**40, 2**62, 2**63, 2**70, True, 1.0, float("inf"), "1", None, [], {}]
)
shapes = st.lists(numbers, max_size=4) | numbers
dtypes = st.sampled_from(["float32", "uint8", "no such", "load", "", 7, None])


@given(shapes, dtypes, st.sampled_from([0, 8]))
def test_any_shape_is_a_tensors_or_refused(shape: Any, dtype: Any, length: int) -> None:
    segments = (Segment("x.pack", 0, length, "xxh3-128:" + "0" * 32),) if length else ()
    item = Item("i", ItemKind.TENSOR, segments, {"shape": shape, "dtype": dtype})
    for read in (lambda: torch.empty(_checked(item, "x")[0], dtype=_checked(item, "x")[1]), lambda: empty_for(item)):
        try:
            tensor = read()
        except (Damaged, NewerFormat):
            continue
        assert tensor.nbytes == length


@given(shapes, dtypes, numbers, numbers)
def test_any_index_of_bundles_is_one_or_refused(shape: Any, dtype: Any, count: Any, run: Any) -> None:
    index = {"format": 1, "counts": [count], "names": ["a"], "dtypes": [[dtype, run]], "shapes": [[shape, run]]}
    try:
        rows = decode_index(json.dumps(index).encode(), "x")
    except (Damaged, NewerFormat):
        return
    for _, kind, dimensions in rows[0]:
        torch.empty(dimensions, dtype=kind, device="meta")


trees = st.fixed_dictionaries(
    {
        "format": st.sampled_from([FORMAT] * 5 + [FORMAT + 1, 0, "1", None, True]),
        "state": st.dictionaries(
            st.sampled_from(["a", "b"]),
            st.just("dcp-0")
            | numbers
            | st.fixed_dictionaries(
                {"dtype": st.sampled_from([torch.float32, "float32", None])},
                optional={
                    "grad": st.booleans(),
                    "size": shapes,
                    "chunks": st.lists(st.tuples(shapes, shapes, st.sampled_from(["dcp-0", 7])), max_size=2) | numbers,
                },
            ),
            max_size=2,
        )
        | numbers,
    },
    optional={"planner": st.none(), "version": st.none()},
)


@given(trees | numbers)
def test_any_metadata_is_read_or_refused(tree: Any) -> None:
    try:
        metadata, where = metadata_from(tree, "the/manifest")
    except (Damaged, NewerFormat) as error:
        assert str(error).startswith("the/manifest: ")
        return
    assert set(metadata.state_dict_metadata) == {name for name, _ in where} | {
        name for name, one in tree["state"].items() if not isinstance(one, str) and not one["chunks"]
    }


def test_metadata_of_a_newer_version_is_told_from_damage() -> None:
    with pytest.raises(NewerFormat, match=f"format {FORMAT + 1}"):
        metadata_from({"format": FORMAT + 1, "state": {}}, "x")
    with pytest.raises(Damaged):
        metadata_from({"format": "2", "state": {}}, "x")


@pytest.mark.parametrize("text", ['{"deque":[1],"maxlen":99999999999999999999}', '{"deque":[1],"maxlen":-1}'])
def test_numbers_that_no_container_takes(text: str) -> None:
    with pytest.raises(Damaged, match="can't be read"):
        decode(parse(text.encode()), {})
