"""Stored objects whose seal is right and whose content is not ours: foreign, hostile, or of a version that had a fault.

Whatever they hold, reading them gives a value of the right types or ``Damaged`` (``NewerFormat``), naming them; never another error.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_wrapper.errors import Damaged, NewerFormat, ObjectMissing, SpotburstError
from job_wrapper.store.checkpoint_codec import decode_manifest, decode_part, encode_manifest, encode_part
from job_wrapper.store.checksum import checksum
from job_wrapper.store.claim import Claim
from job_wrapper.store.codec import decode_entry, encode_entry, seal, unseal
from job_wrapper.store.io_types import CommitRef, Entry, Kind, Manifest, ObjectRef, Summary, Writer
from job_wrapper.store.log import RunLog, find_runs
from job_wrapper.store.read import read_items_into, read_part, verify_checkpoint
from tests.store.checkpoints import RUN, writer
from tests.store.faulty import MemoryStore

PACK = f"{RUN}/data/e00000001/x.pack"
REF = ObjectRef(f"{RUN}/data/e00000001/manifest-1.json", 5, checksum(b"x"))
SAMPLES = {
    "entry": encode_entry(
        Entry(
            3,
            Kind.COMMIT,
            2,
            Writer("c", "12", 1, 0, "h", "n"),
            1.5,
            Summary(2, 1, 0, (CommitRef(3, 2, 7, 1.5, REF),), {3: 1}, None, "d"),
            {"step": 7},
        ),
        RUN,
    ),
    "manifest": encode_manifest(Manifest(RUN, 1, 7, {"rank-0": REF}, (PACK,), {"a": 1})),
    "part": encode_part("p", {PACK: 8}, [["i", "tensor", {"shape": [8]}, 0, 0, 8, "0" * 32]], {"step": 7}),
}
DECODE: dict[str, Any] = {"entry": decode_entry, "manifest": decode_manifest, "part": decode_part}
every_kind = pytest.mark.parametrize("kind", SAMPLES)


def sealed(text: str) -> bytes:
    """A JSON object's text as a stored object."""
    content = text.rstrip()[:-1].encode()
    return content + f',"checksum":"{checksum(content)}"}}'.encode()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there is anything in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def with_text(sample: bytes, place: tuple[Any, ...], text: str) -> bytes:
    """The sample with any text, JSON or not, at ``place``."""
    obj = json.loads(sample)
    del obj["checksum"]
    if not place:
        return sealed(text)
    at = obj
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = "\ufffftext"
    return sealed(json.dumps(obj, separators=(",", ":")).replace('"\\uffff' + 'text"', text))


def read(kind: str, data: bytes) -> Any:
    """None if it is refused as it should be."""
    try:
        return DECODE[kind](data, "the/key")
    except Damaged as error:
        assert str(error).startswith("the/key: ") and len(str(error)) < 1000
        return None


odd_texts = st.sampled_from(
    [
        "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "-0", "1.0", "0.0", "1e3", "true", "null", '""', '"\\ud800"', '"a\\u0000b"',
        "9" * 30, "-" + "9" * 30, "9" * 5000, "[]", "{}", "[[]]", '{"a":1,"a":2}', '"../x"', '"/etc/passwd"', "[null]", "01", "", "{", '"x',
    ]
)  # fmt: skip
json_texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
).map(json.dumps)


@every_kind
@given(data=st.data())
def test_anything_in_any_place(kind: str, data: st.DataObject) -> None:
    sample = SAMPLES[kind]
    obj = json.loads(sample)
    del obj["checksum"]
    place = data.draw(st.sampled_from(places(obj)))
    value = read(kind, with_text(sample, place, data.draw(odd_texts | json_texts)))
    if isinstance(value, Entry):  # what was read can be written: a claim carries the summary on
        assert decode_entry(encode_entry(value), "x") == value


def test_a_number_that_is_too_large_is_no_infinity() -> None:
    assert read("entry", with_text(SAMPLES["entry"], ("body", "step"), "1e999")) is None


@every_kind
def test_any_depth_in_any_place(kind: str) -> None:
    sample = SAMPLES[kind]
    obj = json.loads(sample)
    for place in places(obj)[1:]:
        if place == ("checksum",):
            continue
        for depth in (100, 300, 600, 900, 990, 1500, 100_000):
            for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
                read(kind, with_text(sample, place, text))


@every_kind
def test_a_field_given_twice_or_not_at_all(kind: str) -> None:
    obj = json.loads(SAMPLES[kind])
    del obj["checksum"]
    for name in obj:
        less = json.dumps({k: v for k, v in obj.items() if k != name})
        read(kind, sealed(less))
        for value in ("null", "[]", '{"x":1}', "7", '"y"'):
            read(kind, sealed(json.dumps(obj)[:-1] + f',"{name}":{value}' + "}"))


@given(st.text(max_size=30) | json_texts | odd_texts)
def test_any_text_with_a_right_seal(text: str) -> None:
    for kind in SAMPLES:
        read(kind, sealed(text + "}"))
    for kind in ("pointer", "proof"):
        try:
            unseal(sealed(text + "}"), kind, "the/key")
        except Damaged:
            continue


rows = st.lists(
    st.sampled_from(
        ["i", "tensor", "file", {}, {"holes": [[0, 1]]}, 0, 1, 8, -1, 0.0, 8.0, True, "0" * 32, None, [], 1 << 61]
    ),
    max_size=12,
)


@given(
    st.lists(rows, max_size=3),
    st.lists(st.tuples(st.sampled_from([PACK, "c/x", 7]), st.sampled_from([8, 1 << 61, -1, 0.5])), max_size=2),
)
def test_what_a_foreign_part_names_is_read_or_refused(rows: list[Any], packs: list[Any]) -> None:
    """Types are right all the way down: reading what it names gives bytes, ``Damaged`` or ``ObjectMissing``."""
    store = MemoryStore()
    store.put(PACK, b"12345678")
    data = seal("part", {"name": "p", "packs": [list(p) for p in packs], "items": rows, "attributes": {}})
    store.put("part", data)
    try:
        part = read_part(store, ObjectRef("part", len(data), checksum(data)))
        small = [item for item in part.items if item.length < 1000]
        read_items_into(store, [(item, memoryview(bytearray(item.length))) for item in small])
    except (Damaged, ObjectMissing):
        return


def test_one_segment_cannot_ask_for_all_memory() -> None:
    foreign = encode_part("p", {PACK: 1 << 61}, [["i", "bytes", {}, 0, 0, 1 << 60, "0" * 32]], {})
    with pytest.raises(Damaged):
        decode_part(foreign, "x")


def test_a_manifest_of_parts_that_are_others_is_refused() -> None:
    store = MemoryStore()
    data = encode_part("other", {}, [], {})
    store.put(f"{RUN}/data/e00000001/p.part", data)
    part = ObjectRef(f"{RUN}/data/e00000001/p.part", len(data), checksum(data))
    manifest = encode_manifest(Manifest(RUN, 1, 1, {"rank-0": part}, ()))
    store.put("m", manifest)
    with pytest.raises(Damaged, match="holds part 'other', not 'rank-0'"):
        verify_checkpoint(store, ObjectRef("m", len(manifest), checksum(manifest)))


@pytest.mark.parametrize("step", [1 << 70, -(1 << 70), True, 1.5, "7"])
def test_nothing_is_committed_that_could_not_be_read_again(step: Any) -> None:
    store = MemoryStore()
    claim = RunLog(store, RUN).claim(writer())
    ref = ObjectRef(f"{claim.data_prefix}/m.json", 1, checksum(b""))
    with pytest.raises(SpotburstError, match="can't be written"):
        claim.commit(ref, step=step)
    with pytest.raises(SpotburstError, match="step"):
        encode_manifest(Manifest(RUN, 1, step, {}, ()))
    assert [e.kind for e in RunLog(store, RUN).entries()] == [Kind.CLAIM]
    claim.commit(ref, step=1)


@pytest.mark.parametrize("when", [-1e15, 0.0, 1e15])
def test_a_clock_that_is_wrong_by_ages_changes_nothing(when: float) -> None:
    """Times are told, and never compared."""
    store = MemoryStore()
    times = iter([when, -when, when, 5.0, when, -when])
    log = RunLog(store, RUN, clock=lambda: next(times))
    old: Claim = log.claim(writer(0))
    ref = ObjectRef(f"{old.data_prefix}/m.json", 1, checksum(b""))
    old.commit(ref, step=1)
    new = log.claim(writer(1))
    assert new.epoch == 2 and new.entry.summary.commits[-1].step == 1
    with pytest.raises(SpotburstError, match="epoch 2"):
        old.commit(ref, step=2)


def test_a_clock_that_is_no_clock_is_one_clear_error() -> None:
    store = MemoryStore()
    with pytest.raises(SpotburstError, match=r"log entry 0 \(claim\): "):
        RunLog(store, RUN, clock=lambda: float("nan")).claim(writer(0))
    assert RunLog(store, RUN).tail() is None


@pytest.mark.parametrize("run", ["c", "c/13", "c/13/main/log", "c/12/../x", "c/13/main", 7, "", "c/12/ma\0in"])
def test_a_pointer_to_what_is_not_that_jobs_run_is_refused(run: Any) -> None:
    store = MemoryStore()
    store.put("c/jobs/12/main", seal("pointer", {"run": run}))
    with pytest.raises(Damaged, match="c/jobs/12/main: damaged"):
        find_runs(store, "c", "12")


def test_a_newer_version_is_told_from_damage_in_every_kind() -> None:
    for kind, sample in SAMPLES.items():
        for newer in (with_text(sample, ("format",), "2"), b'{"format":2,"of":"another shape"}'):
            with pytest.raises(NewerFormat, match=r"format 2 by a newer spotburst.*Update spotburst here"):
                DECODE[kind](newer, "x")
