"""What stands in a store: log entries, manifests, parts, and the small objects beside them; with a seal that is right, and without."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from job_wrapper.checkpoint import bundles, state
from job_wrapper.curves import read as read_curves
from job_wrapper.errors import Damaged, ObjectMissing, SpotburstError, UsageError
from job_wrapper.run.asked import answers_prefix, read_answers
from job_wrapper.run.counters import counters_of
from job_wrapper.run.gang import Board
from job_wrapper.state_restore import plan, restore
from job_wrapper.store import paths
from job_wrapper.store.checkpoint_codec import decode_manifest, decode_part, encode_manifest, encode_part
from job_wrapper.store.checksum import checksum
from job_wrapper.store.codec import decode_entry, encode_entry
from job_wrapper.store.io_types import CommitRef, Entry, Kind, Manifest, ObjectRef, Summary, Writer
from job_wrapper.store.log import RunLog, find_runs
from job_wrapper.store.read import read_items_into, verify_checkpoint
from slurm_plugin.cli import output, story
from slurm_plugin.prices import Cost
from slurm_plugin.report import html
from slurm_plugin.report.whole import whole
from slurm_plugin.requeue import RunTail
from slurm_plugin.timeline import attempts
from tests.fuzz.target import Feed, Room, Target, pure, text
from tests.store.checkpoints import RUN
from tests.store.faulty import MemoryStore

_PACK = f"{RUN}/data/e00000001/x.pack"
_REF = ObjectRef(f"{RUN}/data/e00000001/manifest-1.json", 5, checksum(b"x"))
_WRITER = Writer("c", "12", 1, 0, "h", "n")
_COMMITS = (CommitRef(3, 2, 7, 1.5, _REF),)
_NOTICE = {"provider": "aws", "kind": "reclaim", "source_id": "x", "arrived": 5.0, "deadline": 9.0, "text": "t"}
_BODIES: tuple[tuple[Kind, dict[str, Any]], ...] = (
    (Kind.CLAIM, {"started_at": 1.0, "node": "n", "offering": "aws/r/z/t/spot", "hears": 1, "machines": 2, "interval": {"seconds": 600.0, "why": "x"}}),
    (Kind.COMMIT, {"step": 7, "urgent": True, "requested_at": 1.0, "seconds": 2.5, "resumed_at": 3.0, "restored_step": 5, "bytes": 1 << 30, "curves": {"loss": [[1.0, 5, 0.5], [2.0, 6, None]]}, "interval": {"seconds": 600.0, "why": "x"}}),
    (Kind.INTERRUPTED, {"reason": "Reclaimed", "arrived": 5.0, "notice": _NOTICE, "curves": {"loss": [[1.0, 5, 0.5]]}}),
    (Kind.RESTORE_FAILED, {"entry": 3, "error": "x"}),
    (Kind.END, {"exit_code": 0, "reason": "Completed", "error": "x"}),
)  # fmt: skip


def _entry(kind: Kind, body: dict[str, Any]) -> bytes:
    return encode_entry(Entry(3, kind, 2, _WRITER, 1.5, Summary(2, 1, 0, _COMMITS, {3: 1}, None, "d"), body), RUN)


_ENTRIES = tuple(_entry(kind, body) for kind, body in _BODIES)
_MANIFEST = encode_manifest(Manifest(RUN, 1, 7, {"rank-0": _REF}, (_PACK,), {"progress": {"completed": 5, "total": 9}}))
_ROWS: list[list[Any]] = [
    ["i", "tensor", {"shape": [8], "dtype": "uint8"}, 0, 0, 8, checksum(b"12345678").removeprefix("xxh3-128:")],
    ["0", "directory", {"mode": 0o755, "mtime_ns": 5}],
    ["0/a", "file", {"mode": 0o644, "holes": [[0, 4]], "mtime_ns": 10**18}, 0, 0, 8, checksum(b"12345678").removeprefix("xxh3-128:")],
    ["0/l", "symlink", {"target": "a"}],
    ["0/d", "directory", {"mode": 0o700}],
]  # fmt: skip
_PART = encode_part("p", {_PACK: 8}, _ROWS[:1], {"step": 7})
_TREE = encode_part("p", {_PACK: 8}, _ROWS[1:], {})
_INDEX = b'{"format":1,"counts":[2,1],"names":["a","b","c"],"dtypes":[["float32",3]],"shapes":[[[2],2],[[],1]]}'
_SKELETON = (
    b'{"dict":[["a",{"tuple":[1,2]}],["b",{"set":[1]}],["c",{"int":"ff"}],["d",{"float":"3ff0000000000000"}],["e",{"bytes":"AAA="}],["f",{"dtype":"float32"}],'
    b'["g",{"device":"cpu"}],["h",{"size":[1,2]}],["i",{"deque":[1],"maxlen":3}],["j",{"odict":[["k",1]]}],["l",{"counter":{"dict":[["a",1]]}}],["m",{"complex":"3ff00000000000003ff0000000000000"}],'
    b'["n",{"npscalar":"0000803f","dtype":"<f4"}],["o",{"frozenset":[1]}],["p",{"bytearray":"AAA="}]]}'
)
_REPORT = {"format": 1, "type": "report", "rank": 1, "node": "n", "speaks": True, "answers": 2, "notice": json.dumps(_NOTICE), "ended": None, "reason": ""}  # fmt: skip


def targets() -> list[Target]:
    """All of them."""
    damaged = (Damaged,)
    return [
        pure("entry", _either("entry", _read_entry), tuple(map(unsealed, _ENTRIES)) + _ENTRIES, damaged),
        pure("manifest", _either("manifest", _read_manifest), (unsealed(_MANIFEST), _MANIFEST), damaged),
        pure("part", _either("part", _read_part), (unsealed(_PART), _PART, unsealed(_TREE)), damaged),
        pure("bundle-index", lambda data: _bundles(data), (_INDEX,), damaged),
        pure("state", lambda data: state.decode(state.parse(data), {}), (_SKELETON,), damaged),
        Target("state-directory", _tree, (unsealed(_TREE), _TREE), (Damaged, UsageError, ObjectMissing, OSError)),
        pure("run-log", _log, (b"\n".join(map(unsealed, _ENTRIES)),), (SpotburstError,)),
        pure("small-objects", _small, tuple(json.dumps(o).encode() for o in (
            _REPORT, {"format": 1, "type": "pointer", "run": RUN}, {"format": 1, "type": "answer", "error": "x"})), damaged),
        pure("store-names", _names, (RUN, f"{RUN}/log/00000001.json", _PACK, f"{RUN}/data/e00000001/gang/000001-00000002.json", "c/jobs/12/main"), (Damaged, UsageError)),
    ]  # fmt: skip


def unsealed(data: bytes) -> bytes:
    """Without its seal: what is changed then is sealed anew, so that it is read."""
    found = json.loads(data)
    del found["checksum"]
    return json.dumps(found, separators=(",", ":")).encode()


def sealed(data: bytes) -> bytes:
    """The JSON object with a seal that is right; anything else as it is."""
    if not data.rstrip().endswith(b"}") or b'"checksum":"xxh3-128:' in data[-70:]:
        return data
    content = data.rstrip()[:-1]
    return content + f',"checksum":"{checksum(content)}"}}'.encode()


def _either(kind: str, read: Callable[[bytes], object]) -> Feed:
    return lambda data: read(sealed(data))


def _read_entry(data: bytes) -> None:
    _told([decode_entry(data, "the/key", None, RUN)])


def _told(entries: list[Entry]) -> None:
    """All that is told to people of a run's log."""
    made = attempts(entries)
    story.interval(entries)
    for moment, _ in story.timeline(entries):
        output.moment(moment)
    for entry in entries:
        read_curves(entry.body)
        RunTail.of(RUN, entry)
    story.state(None, None, entries)
    story.outlook(None, None, entries, RUN)
    costs, machines = [Cost(1.0, 2.0, 3.0)] * len(made), [one.machines for one in made]
    html.render(whole("12", "s3://b", entries, made, None, [], costs, "USD", machines, [], [], 2e9))


def _read_manifest(data: bytes) -> None:
    manifest = decode_manifest(data, "the/key")
    counters_of(manifest.attributes.get("progress"))
    store = MemoryStore()
    store.put("m", data)
    with contextlib.suppress(ObjectMissing):
        verify_checkpoint(store, ObjectRef("m", len(data), checksum(data)))


def _read_part(data: bytes) -> None:
    part = decode_part(data, "the/key")
    store = MemoryStore()
    store.put(_PACK, b"12345678")
    items = [item for item in part.items if item.length < 1 << 20]
    with contextlib.suppress(ObjectMissing):
        read_items_into(store, [(item, memoryview(bytearray(item.length))) for item in items], threads=1)


def _bundles(data: bytes) -> None:
    for rows in bundles.decode_index(data, "the/key"):
        list(bundles.unpack(rows, bytearray(64), "the/key"))


def _tree(room: Room) -> Feed:
    outside, root = room.file("outer/keep"), room.folder / "outer" / "root"
    store = MemoryStore()
    store.put(_PACK, b"12345678")

    def feed(data: bytes) -> None:
        root.mkdir(exist_ok=True)
        outside.write_bytes(b"kept")
        mine = root / "mine"
        mine.write_bytes(b"mine")
        part = decode_part(sealed(data), "the/key")
        if sum(item.length for item in part.items) > 1 << 20 or any(
            sum(n[1] for n in item.attributes.get("holes") or () if isinstance(n, list) and len(n) == 2 and type(n[1]) is int) > 1 << 30 for item in part.items
        ):  # fmt: skip
            plan(part, 1)
            return
        try:
            restore(store, [root], part)
        finally:
            assert outside.read_bytes() == b"kept" and sorted(p.name for p in outside.parent.iterdir()) == ["keep", "root"], "something was written outside"  # fmt: skip
            found = [p for p in (mine, *root.glob(".spotburst-set-aside/*/mine")) if p.is_file()]
            assert any(p.read_bytes() == b"mine" for p in found) or any(item.name.startswith("0/mine") for item in part.items), "a file of the user's is lost"  # fmt: skip
            for left in root.iterdir():
                _gone(left)

    return feed


def _gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


def _log(data: bytes) -> None:
    """A whole log, an entry a line, each under the number that it should have."""
    store = MemoryStore()
    for number, line in enumerate(data.split(b"\n")[:20]):
        changed = line.replace(b'"seq":3,"kind"', b'"seq":%d,"kind"' % number, 1)
        store.put(f"{RUN}/log/{number:08d}.json", sealed(changed))
    log = RunLog(store, RUN, readers=1)
    before = dict(store.objects)
    try:
        found, _ = log.newest()
        if found is not None:
            RunTail.of(RUN, found)
        _told(log.entries())
    finally:
        assert store.objects == before, "reading changed the store"


def _small(data: bytes) -> None:
    store = MemoryStore()
    board = Board(store, RUN, 2)
    for key in (f"{RUN}/data/e00000002/gang/000001-00000002.json", "c/jobs/12/main", f"{answers_prefix(RUN, 2)}00000000000001.json"):  # fmt: skip
        store.put(key, sealed(data))
    list(board.news({}))
    for read in (lambda: find_runs(store, "c", "12"), lambda: read_answers(store, RUN, 2)):
        with contextlib.suppress(Damaged):
            read()
    text(data)


def _names(data: bytes) -> None:
    name = text(data)
    paths.is_key(name)
    paths.seq_of(name)
    paths.epoch_of(RUN, name)
    paths.short(name)
    if paths.is_run(name):
        paths.pointer_of_run(name, "12")
    paths.check_key(name, "there")
    paths.run_path("c", name)
