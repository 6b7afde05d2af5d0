from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_wrapper.errors import Damaged, NewerFormat, SpotburstError
from job_wrapper.store.checkpoint_codec import decode_manifest, decode_part, encode_manifest, encode_part
from job_wrapper.store.checksum import checksum
from job_wrapper.store.codec import decode_entry, encode_entry, seal, unseal
from job_wrapper.store.io_types import CommitRef, Entry, Kind, Manifest, ObjectRef, Summary, Writer

numbers = st.integers(0, 1 << 40)
refs = st.builds(
    ObjectRef,
    st.from_regex(r"[a-z0-9]{1,8}/data/e[0-9]{8}/[a-z]{1,8}\.json", fullmatch=True),
    numbers,
    st.binary(max_size=5).map(checksum),
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 60), 1 << 60)
    | st.text(max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
bodies = st.dictionaries(st.text(max_size=8), json_values, max_size=4)
commits = st.builds(
    CommitRef, st.integers(0, 99_999_999), st.integers(1, 1 << 40), st.none() | numbers, st.floats(0, 4e9), refs
)
summaries = st.builds(
    Summary,
    epoch=numbers,
    recoveries=numbers,
    barren=numbers,
    commits=st.lists(commits, max_size=4).map(tuple),
    failed_restores=st.dictionaries(st.integers(0, 9999), st.integers(0, 9), max_size=3),
    ended=st.none() | st.integers(-255, 255),
    command_digest=st.none() | st.text(max_size=10),
)
entries = st.builds(
    Entry,
    seq=st.integers(0, 99_999_999),
    kind=st.sampled_from(list(Kind)),
    epoch=st.integers(1, 1 << 40),
    writer=st.builds(Writer, st.text(), st.text(), numbers, st.integers(-5, 1 << 32), st.text(), st.text()),
    time=st.floats(0, 4e9),
    summary=summaries,
    body=bodies,
)
ENTRY = Entry(3, Kind.CLAIM, 2, Writer("c", "12", 1, 0, "h", "n"), 1.5, Summary(epoch=2))


def reseal(data: bytes, **changes: object) -> bytes:
    """The same object with other fields, its seal right again: not damage, but foreign or hostile."""
    obj = json.loads(data)
    del obj["checksum"]
    obj.update(changes)
    content = json.dumps(obj, separators=(",", ":")).encode()[:-1]
    return content + f',"checksum":"{checksum(content)}"}}'.encode()


@given(entries)
def test_an_entry_is_read_as_it_was_written(entry: Entry) -> None:
    assert decode_entry(encode_entry(entry), "x", entry.seq) == entry


@given(entries, st.data())
def test_any_changed_byte_is_found(entry: Entry, data: st.DataObject) -> None:
    stored = bytearray(encode_entry(entry))
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged, match="the/key"):
        decode_entry(bytes(stored), "the/key")


@given(entries, st.data())
def test_any_cut_or_tail_is_found(entry: Entry, data: st.DataObject) -> None:
    stored = encode_entry(entry)
    for other in (stored[: data.draw(st.integers(0, len(stored) - 1))], stored + b"\n", stored + stored, b" " + stored):
        with pytest.raises(Damaged):
            decode_entry(other, "x")


@given(st.binary(max_size=200) | bodies.map(lambda b: json.dumps(b).encode()) | bodies.map(lambda b: seal("entry", b)))
def test_foreign_bytes_never_raise_anything_else(data: bytes) -> None:
    for decode in (decode_entry, decode_part, decode_manifest):
        with pytest.raises(Damaged):
            decode(data, "x")


@given(st.dictionaries(st.sampled_from(list(json.loads(encode_entry(ENTRY)))), json_values, min_size=1))
def test_wrong_fields_are_refused_or_read_as_the_right_type(changes: dict[str, object]) -> None:
    changes.pop("checksum", None)
    try:
        entry = decode_entry(reseal(encode_entry(ENTRY), **changes), "x")
    except Damaged:
        return
    assert (
        isinstance(entry.seq, int)
        and isinstance(entry.time, float)
        and isinstance(entry.body, dict)
        and entry.epoch > 0
    )


def test_newer_format_is_told_from_damage() -> None:
    newer = reseal(encode_entry(ENTRY), format=2)
    with pytest.raises(NewerFormat, match=r"the/key: written in format 2 by a newer spotburst"):
        decode_entry(newer, "the/key")
    with pytest.raises(NewerFormat):
        decode_entry(b'{"format":7,"something":"else"}', "x")
    flipped = newer.replace(b'"seq":3', b'"seq":2')
    with pytest.raises(Damaged) as caught:
        decode_entry(flipped, "x")
    assert not isinstance(caught.value, NewerFormat)


def test_unknown_fields_are_passed_over() -> None:
    assert decode_entry(reseal(encode_entry(ENTRY), added_later=[1]), "x") == ENTRY


def test_an_entry_under_another_number_is_refused() -> None:
    with pytest.raises(Damaged, match="holds entry 3"):
        decode_entry(encode_entry(ENTRY), "x", 4)


def test_an_object_of_another_type_is_refused() -> None:
    with pytest.raises(Damaged, match="not a spotburst manifest"):
        unseal(encode_entry(ENTRY), "manifest", "x")


@pytest.mark.parametrize("body", [{"a": object()}, {"a": float("nan")}, {"a": "x" * (2 << 20)}, {"a": b"x"}])
def test_a_body_that_cannot_be_stored_is_one_clear_error(body: dict[str, object]) -> None:
    with pytest.raises(SpotburstError, match=r"log entry 3 \(claim\)"):
        encode_entry(Entry(3, Kind.CLAIM, 2, ENTRY.writer, 1.5, ENTRY.summary, body))


BAD_KEYS = ["../x", "/etc/passwd", "a/../../x", "a//b", "", "a/b~", "a\x00b", "a/..", "x" * 1100, 7, None]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_no_stored_key_is_trusted(key: object) -> None:
    ref = {"key": key, "length": 1, "checksum": checksum(b"")}
    manifest = encode_manifest(Manifest("c/1/main", 1, None, {}, ()))
    part = encode_part("p", {"c/1/main/data/e00000001/x.pack": 8}, [["i", "bytes", {}, 0, 0, 8, "0" * 32]], {})
    assert decode_part(part, "x").items[0].length == 8
    for bad in (reseal(manifest, parts={"p": ref}), reseal(manifest, packs=[key]), reseal(manifest, run=key)):
        with pytest.raises(Damaged):
            decode_manifest(bad, "x")
    with pytest.raises(Damaged):
        decode_part(reseal(part, packs=[[key, 8]]), "x")


@pytest.mark.parametrize(
    "row",
    [
        ["i", "bytes", {}, 1, 0, 8, "0" * 32],  # no such pack
        ["i", "bytes", {}, -1, 0, 8, "0" * 32],
        ["i", "bytes", {}, 0, -8, 8, "0" * 32],
        ["i", "bytes", {}, 0, 4, 8, "0" * 32],  # past its end
        ["i", "bytes", {}, 0, 0, 0, "0" * 32],
        ["i", "bytes", {}, 0, 0, 8, "0" * 31],
        ["i", "bytes", {}, 0, 0, 8],
        ["i", "socket", {}],
        [1, "bytes", {}],
        ["i", "bytes", []],
        ["i"],
        "row",
        None,
        ["i", "bytes", {}, "0", 0, 8, "0" * 32],
        ["i", "bytes", {}, 0, 0.5, 8, "0" * 32],
    ],
)  # fmt: skip
def test_no_stored_item_is_trusted(row: object) -> None:
    part = encode_part("p", {"c/1/main/data/e00000001/x.pack": 8}, [], {})
    with pytest.raises(Damaged):
        decode_part(reseal(part, items=[row]), "x")


def test_two_items_of_one_name_are_refused() -> None:
    part = encode_part("p", {}, [["i", "bytes", {}], ["i", "file", {}]], {})
    with pytest.raises(Damaged, match="same name"):
        decode_part(part, "x")
