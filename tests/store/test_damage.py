"""One flipped bit, one lost byte, one missing object, anywhere: found, and named."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from job_wrapper.errors import Damaged, Fenced, NewerFormat, ObjectMissing, RestoreFailed
from job_wrapper.store.io_types import FORMAT, Kind, ObjectRef
from job_wrapper.store.log import RunLog, find_runs
from job_wrapper.store.posix import PosixStore
from job_wrapper.store.probe import ensure_proved
from job_wrapper.store.read import read_manifest, verify_checkpoint, verify_items
from tests.store.checkpoints import QUICK, RUN, load, load_part, reseal, save, writer


@pytest.fixture
def saved(tmp_path: Path) -> tuple[PosixStore, ObjectRef]:
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    claim = RunLog(store, RUN).claim(writer())
    items = {"big": os.urandom((16 << 20) + 777), "small": os.urandom(500), "tiny": b"x", "mid": os.urandom(2 << 20)}
    entry = save(claim, 1, items)
    return store, entry.summary.commits[-1].manifest


def _flip(path: Path, byte: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ (1 << bit)]))


def test_flipped_bits_in_data_are_found_and_named(saved: tuple[PosixStore, ObjectRef], tmp_path: Path) -> None:
    store, manifest = saved
    verify_checkpoint(store, manifest)
    chance = random.Random(7)
    items = load_part(store, manifest).items
    assert verify_items(store, items)
    segments = [s for item in items for s in item.segments]
    assert len(segments) == 5
    for segment in segments:
        offsets = {segment.offset, segment.offset + segment.length - 1}
        offsets |= {segment.offset + chance.randrange(segment.length) for _ in range(4)}
        for byte in offsets:
            bit = chance.randrange(8)
            _flip(tmp_path / segment.pack, byte, bit)
            with pytest.raises(Damaged, match=segment.pack):
                verify_checkpoint(store, manifest)
            with pytest.raises(Damaged, match=segment.pack):
                verify_items(store, items)
            _flip(tmp_path / segment.pack, byte, bit)
    verify_checkpoint(store, manifest)


def test_every_flipped_bit_of_part_and_manifest_is_found_and_named(
    saved: tuple[PosixStore, ObjectRef], tmp_path: Path
) -> None:
    store, manifest = saved
    part = read_manifest(store, manifest).parts["rank-0"]
    for key in (part.key, manifest.key):
        for byte in range((tmp_path / key).stat().st_size):
            _flip(tmp_path / key, byte, byte % 8)
            with pytest.raises(Damaged, match=key):
                load_part(store, manifest)
            _flip(tmp_path / key, byte, byte % 8)
    load_part(store, manifest)


def test_every_flipped_bit_of_a_log_entry_is_found_and_named(
    saved: tuple[PosixStore, ObjectRef], tmp_path: Path
) -> None:
    store, _ = saved
    key = f"{RUN}/log/00000001.json"
    log = RunLog(store, RUN)
    for byte in range((tmp_path / key).stat().st_size):
        for bit in range(8):
            _flip(tmp_path / key, byte, bit)
            with pytest.raises(Damaged, match=key):
                log.tail()
            _flip(tmp_path / key, byte, bit)
    assert log.tail() is not None


def test_cut_off_and_missing_objects_are_named(saved: tuple[PosixStore, ObjectRef], tmp_path: Path) -> None:
    store, manifest = saved
    part = read_manifest(store, manifest).parts["rank-0"]
    items = load_part(store, manifest).items
    packs = {s.pack for item in items for s in item.segments}
    for key in (*packs, part.key, manifest.key):
        whole = (tmp_path / key).read_bytes()
        for cut in (whole[:-1], b""):
            (tmp_path / key).write_bytes(cut)
            with pytest.raises(Damaged, match=key):
                verify_checkpoint(store, manifest)
            if key in packs:
                with pytest.raises(Damaged, match=key):
                    verify_items(store, items)
        (tmp_path / key).unlink()
        with pytest.raises(ObjectMissing, match=key):
            verify_checkpoint(store, manifest)
        if key in packs:
            with pytest.raises(ObjectMissing, match=key):
                verify_items(store, items)
        (tmp_path / key).write_bytes(whole)
    verify_checkpoint(store, manifest)


def test_missing_log_entry_is_named(saved: tuple[PosixStore, ObjectRef], tmp_path: Path) -> None:
    store, _ = saved
    (tmp_path / RUN / "log/00000000.json").unlink()
    with pytest.raises(Damaged, match=r"00000000\.json: this log entry is missing"):
        RunLog(store, RUN).entries()


def _reseal_as_newer(path: Path) -> None:
    path.write_bytes(reseal(path.read_bytes(), format=FORMAT + 1))


@pytest.mark.parametrize("kind", ["claim", "commit", "interrupted", "end"])
def test_a_damaged_newest_entry_is_passed_over_and_its_writer_is_fenced(kind: str, tmp_path: Path) -> None:
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    old = RunLog(store, RUN, patience=QUICK).claim(writer(0))
    save(old, 1, {"w": b"1"})
    holder = RunLog(store, RUN, patience=QUICK).claim(writer(1)) if kind == "claim" else old
    {
        "claim": lambda: None,
        "commit": lambda: save(holder, 2, {"w": b"2"}),
        "interrupted": lambda: holder.interrupted("reclaim"),
        "end": lambda: holder.end(0, "Completed"),
    }[kind]()
    _flip(tmp_path / RUN / "log/00000002.json", 60, 3)
    new = RunLog(store, RUN, patience=QUICK).claim(writer(2))
    (said,) = new.passed_over
    assert "log/00000002.json: damaged" in str(said) and new.entry.body["damaged"] == [str(said)]
    assert new.entry.seq == 3 and new.epoch > holder.epoch
    assert load(store, new.entry.summary.commits[-1].manifest) == {"w": b"1"}
    for late in (holder, old):
        with pytest.raises(Fenced):
            late.check() if late.entry.kind is Kind.END else late.interrupted("reclaim")
    save(new, 3, {"w": b"3"})
    assert load(store, RunLog(store, RUN).claim(writer(3)).entry.summary.commits[-1].manifest) == {"w": b"3"}


def test_where_no_entry_can_be_read_nothing_is_begun_anew(tmp_path: Path) -> None:
    store = PosixStore(tmp_path, f"file://{tmp_path}")
    RunLog(store, RUN).claim(writer(0)).interrupted("reclaim")
    for number in range(2):
        (tmp_path / RUN / f"log/{number:08d}.json").write_bytes(b"")
    with pytest.raises(Damaged, match=r"00000000\.json"):
        RunLog(store, RUN).claim(writer(1))
    assert len(list(store.list(f"{RUN}/log/"))) == 2


def test_an_entry_of_a_newer_version_is_never_passed_over(saved: tuple[PosixStore, ObjectRef], tmp_path: Path) -> None:
    store, _ = saved
    _reseal_as_newer(tmp_path / RUN / "log/00000001.json")
    with pytest.raises(
        NewerFormat, match=r"00000001\.json: written in format 2 by a newer spotburst.*Update spotburst here"
    ):
        RunLog(store, RUN).claim(writer(1))
    assert len(list(store.list(f"{RUN}/log/"))) == 2


def test_a_holder_that_meets_what_it_cannot_read_writes_nothing_more(
    saved: tuple[PosixStore, ObjectRef], tmp_path: Path
) -> None:
    store, _ = saved
    holder = RunLog(store, RUN).claim(writer(1))
    (tmp_path / RUN / "log/00000003.json").write_bytes(b"?")
    with pytest.raises(Fenced, match=r"00000003\.json: damaged.*another may hold the run"):
        holder.interrupted("reclaim")
    assert RunLog(store, RUN).claim(writer(2)).entry.seq == 4


def test_a_log_with_a_hole_is_not_claimed(saved: tuple[PosixStore, ObjectRef], tmp_path: Path) -> None:
    """Whoever believes in the number of the missing entry would be let in."""
    store, _ = saved
    (tmp_path / RUN / "log/00000000.json").unlink()
    with pytest.raises(Damaged, match=r"00000000\.json: this log entry is missing.*begin another run"):
        RunLog(store, RUN).claim(writer(1))


class Scene:
    """A run of two attempts and three commits, the newest pointing to a pack of the oldest, and another run beside it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.store = PosixStore(folder, f"file://{folder}")
        ensure_proved(self.store)
        self.contents: dict[int, dict[str, bytes]] = {}
        self.needs: dict[int, set[str]] = {}
        base = None
        for restart, steps in enumerate([(1, 2), (3,)]):
            claim = RunLog(self.store, RUN).claim(writer(restart))
            for step in steps:
                self.contents[step] = {"frozen": b"f" * 4000, "weight": bytes([step]) * 3000}
                before = {p for p in folder.rglob("*") if p.is_file()}
                manifest = save(claim, step, self.contents[step], base).summary.commits[-1].manifest
                base = load_part(self.store, manifest)
                self.needs[step] = {s.pack for i in base.items for s in i.segments}
                self.needs[step] |= {p for p in self._new(before) if "/data/" in p}
        other = RunLog(self.store, "c/13/main").claim(writer(0, job="13"))
        for step in (1, 2, 3):
            save(other, step, {"frozen": b"o" * 4000, "weight": bytes([step]) * 3000})

    def _new(self, before: set[Path]) -> set[str]:
        return {
            p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file() and p not in before
        }


def restored(store: PosixStore) -> tuple[dict[str, bytes], list[str]]:
    """What the next attempt restores, and what it says on the way."""
    claim = RunLog(store, RUN, patience=QUICK).claim(writer(9))
    said = [str(error) for error in claim.passed_over]
    for commit in reversed(claim.entry.summary.commits):
        try:
            verify_checkpoint(store, commit.manifest)
            return load(store, commit.manifest), said
        except (Damaged, ObjectMissing) as error:
            said.append(str(error))
            claim.restore_failed(commit.seq, str(error))
    raise RestoreFailed("none left")


def _zeroed(data: bytes, _: bytes) -> bytes:
    return bytes(len(data))


def _sector_zeroed(data: bytes, _: bytes) -> bytes:
    return (
        data[: len(data) // 2 & ~511]
        + bytes(min(512, len(data) - (len(data) // 2 & ~511)))
        + data[(len(data) // 2 & ~511) + 512 :]
    )


WAYS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "one bit": lambda data, _: data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 4]) + data[len(data) // 3 + 1 :],
    "zeros": _zeroed,
    "a sector of zeros": _sector_zeroed,
    "half of it": lambda data, _: data[: len(data) // 2],
    "nothing": lambda data, _: b"",
    "twice": lambda data, _: data + data,
    "another's content": lambda _, other: other,
}


@pytest.mark.parametrize("way", [*WAYS, "swapped", "gone"])
def test_any_object_damaged_in_any_way_is_named_and_the_newest_good_commit_is_used(way: str, tmp_path: Path) -> None:
    """Another's content: what lies under another name of the same kind, an older one of the same run or one of another run."""
    scene = Scene(tmp_path / "0")
    files = sorted(p.relative_to(tmp_path / "0").as_posix() for p in (tmp_path / "0").rglob("*") if p.is_file())
    kinds = {_kind(name) for name in files}
    assert kinds == {".pack", ".part", "manifest", "log", "mark", "pointer"}
    for number in range(len(files)):
        folder = tmp_path / f"{number + 1}"
        shutil.copytree(tmp_path / "0", folder)
        name, store = files[number], PosixStore(folder, f"file://{folder}")
        if way == "gone" and _kind(name) == "log":
            continue  # test_a_log_with_a_hole_is_not_claimed
        others = [
            p for p in folder.rglob("*") if p.is_file() and _kind(p.relative_to(folder).as_posix()) == _kind(name)
        ]
        others = [p for p in others if p != folder / name and p.read_bytes() != (folder / name).read_bytes()]
        if not others and way in ("another's content", "swapped"):
            continue
        data, touched = (folder / name).read_bytes(), {name}
        if way == "gone":
            (folder / name).unlink()
        elif way == "swapped":
            (folder / name).write_bytes(others[0].read_bytes())
            others[0].write_bytes(data)
            touched.add(others[0].relative_to(folder).as_posix())
        else:
            (folder / name).write_bytes(WAYS[way](data, others[0].read_bytes() if others else b""))
        if way == "twice" and _kind(name) == ".pack":
            touched = set()  # what follows after the last byte that is named is never looked at
        newest_entry = f"{RUN}/log/{len(list((folder / RUN / 'log').iterdir())) - 1:08d}.json"
        good = [s for s in scene.contents if not scene.needs[s] & touched and not (s == 3 and newest_entry in touched)]
        if not good:
            with pytest.raises(RestoreFailed):
                restored(store)
            continue
        content, said = restored(store)
        assert content == scene.contents[max(good)], name
        if max(good) != 3:
            assert any(t in text for t in touched for text in said), (name, said)
        ensure_proved(store)
        assert find_runs(store, "c", "12") == [RUN]


def _kind(name: str) -> str:
    if name.startswith(".spotburst"):
        return "mark"
    if "/jobs/" in name:
        return "pointer"
    if "/log/" in name:
        return "log"
    return "manifest" if "/manifest-" in name else name[name.rindex(".") :]


def test_a_pointer_to_another_run_is_named(tmp_path: Path) -> None:
    store = Scene(tmp_path).store
    (tmp_path / "c/jobs/12/main").write_bytes((tmp_path / "c/jobs/13/main").read_bytes())
    with pytest.raises(Damaged, match=r"c/jobs/12/main: damaged: it points to 'c/13/main'"):
        find_runs(store, "c", "12")
