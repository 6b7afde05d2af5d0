"""Files that are damaged, or replaced by somebody: a run's folder, the ledger, and what else lies in the manager's folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from job_wrapper.errors import SpotburstError
from job_wrapper.notice.types import Notice
from job_wrapper.store.log import RunLog, find_runs
from job_wrapper.store.open import open_store
from job_wrapper.store.posix import PosixStore
from slurm_plugin.cloud.aws import journal as aws
from slurm_plugin.cloud.azure import journal as azure
from slurm_plugin.cloud.gcp import journal as gcp
from slurm_plugin.cloud.gcp.ended import Ended
from slurm_plugin.cloud.local.state import Process, read_json
from slurm_plugin.cloud.mailbox import MachineNotice
from slurm_plugin.cloud.provider import RefusalKind
from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.errors import CloudUnavailable, ConfigError
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import Charge, OpenNotice
from slurm_plugin.manager.gone import Gone
from slurm_plugin.manager.told import ToldBook
from slurm_plugin.place_files import RECORD, Wanted, write_all
from slurm_plugin.slurm.records import Job
from tests.fuzz.of_store import sealed, unsealed
from tests.fuzz.target import Feed, Room, Target
from tests.store.checkpoints import QUICK, RUN, load, load_part, save, writer

_NOW = 1777710120.0
_BASE = "6f9619ff-8b86-4d11-b42d-00c04fc90000"
_ITEMS = {step: {"w": bytes([step]) * 700, "b": b"%d" % step, "same": b"s" * 90} for step in (1, 2, 3, 4)}


def targets() -> list[Target]:
    """All of them."""
    return [
        Target("run-folder", _run_folder, tuple(_run_examples())),
        Target("ledger", _ledger, (b"\x00\x00\x3c\x04\x00\x00\x00\x02", b"\x00\x10\x00\x02\x0d\x00", b"\xff\x40\x00\x01x", *(bytes([0, at, 9, 3]) + b"\xff\x00[" for at in range(0, 250, 9)))),
        *(Target(f"state-{name}", lambda room, use=use: _state_file(room, use), examples) for name, (use, examples) in _STATE.items()),  # type: ignore[misc]
    ]  # fmt: skip


# --- a run's folder ---------------------------------------------------------------------------------------------------


def _saved(folder: Path) -> dict[int, tuple[set[str], str]]:
    """A run of two attempts and four commits; by step: keys of what its checkpoint is made of, and of its log entry."""
    store = PosixStore(folder, f"file://{folder}")
    steps = {}
    for restart, mine in ((0, (1, 2)), (1, (3, 4))):
        claim = RunLog(store, RUN, clock=lambda: _NOW, patience=QUICK).claim(writer(restart, nonce=f"n{restart}"))
        for step in mine:
            manifest = save(claim, step, _ITEMS[step]).summary.commits[-1]
            part = load_part(store, manifest.manifest)
            packs = {segment.pack for item in part.items for segment in item.segments}
            keys = {info.key for info in store.list(f"{RUN}/data/")}
            before = {key for needed, _ in steps.values() for key in needed}
            own = {key for key in keys - before if key.endswith((".json", ".part"))}
            steps[step] = (packs | own | {manifest.manifest.key}, f"{RUN}/log/{manifest.seq:08d}.json")
    return steps


@cache
def _whole() -> tuple[dict[str, bytes], dict[int, tuple[set[str], str]]]:
    """The run's files by key, and its steps: made once, since its objects have names of chance."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = _saved(folder)
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}, steps


def _victims() -> list[str]:
    return [*_whole()[0], f"{RUN}/log/00000006.json", f"{RUN}/log/00000009.json", f"{RUN}/log/x.json", f"{RUN}/data/e00000002/x.pack", "c/jobs/12/x"]  # fmt: skip


def _run_examples() -> list[bytes]:
    found = []
    for number, key in enumerate(_victims()):
        data = _whole()[0].get(key, b"x")
        found += [bytes([number]) + data]
        if data.startswith(b"{"):
            found += [bytes([number]) + unsealed(data)]
    return found


def _is_sealed(content: bytes) -> bool:
    """Whether it is another object, as somebody may have written it, and no damage."""
    return sealed(content[: content.rfind(b',"checksum":"')] + b"}") == content


def _run_folder(room: Room) -> Feed:
    good, steps = _whole()
    victims = _victims()
    whole = room.folder / "whole"
    for key, content in good.items():
        room.file(f"whole/{key}").write_bytes(content)
    work = room.folder / "work"

    def feed(data: bytes) -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(whole, work, copy_function=os.link)
        victim = victims[data[0] % len(victims)] if data else victims[0]
        path = work / victim
        path.unlink(missing_ok=True)
        content = sealed(data[1:])
        path.write_bytes(content)
        damage = victim in good and content != good[victim] and not _is_sealed(content)
        _looked_at(work)
        log = RunLog(open_store(f"file://{work}", prove=False), RUN, clock=lambda: _NOW, patience=QUICK)
        try:
            claim = log.claim(writer(2, nonce="n2"))
        except SpotburstError:
            assert not damage, "a damaged file keeps the run from going on"
            _unchanged(work, good, victim)
            return
        restored = None
        for commit in reversed(claim.entry.summary.commits):
            with contextlib.suppress(SpotburstError):
                restored = (commit.step, load(claim.store, commit.manifest))
                break
        if content == good.get(victim) or damage:
            last = max(good_key for good_key in good if "/log/" in good_key)
            kept = [s for s, (needed, entry) in steps.items() if (victim not in needed and not (damage and victim == entry == last)) or not damage]  # fmt: skip
            kept = [s for s in kept if s >= 2]  # as many as are named: 3
            assert restored is not None and restored == (restored[0], _ITEMS[restored[0] or 0]), "no checkpoint can be restored"  # fmt: skip
            assert restored[0] is not None and restored[0] >= max(kept), f"step {restored[0]}, though {max(kept)} is whole"  # fmt: skip
        _unchanged(work, good, victim)
        try:
            entry = save(claim, 9, {"w": b"new"})
        except SpotburstError:
            assert not damage, "nothing can be saved any more"
            return
        assert load(claim.store, entry.summary.commits[-1].manifest) == {"w": b"new"}, "what was saved is lost"
        _unchanged(work, good, victim)

    return feed


def _looked_at(work: Path) -> None:
    store = open_store(f"file://{work}", prove=False)
    log = RunLog(store, RUN, readers=1)
    for look in (log.tail, log.entries, log.newest, lambda: find_runs(store, "c", "12"), lambda: list(store.list(""))):
        with contextlib.suppress(SpotburstError):
            look()


def _unchanged(work: Path, good: dict[str, bytes], victim: str) -> None:
    for key, content in good.items():
        pointer = "/jobs/" in key  # written anew by each claim
        assert pointer or key == victim or (work / key).read_bytes() == content, f"{key} is lost"


# --- the ledger -------------------------------------------------------------------------------------------------------


def _filled(path: Path) -> None:
    clock = lambda: _NOW  # noqa: E731
    ledger = Ledger.open(path, clock)
    for number in range(6):
        intent = ledger.open_intent(f"spot-{number}", "spot", "ec2", f"ec2/r/z/t{number}/spot", f"{_BASE[:-4]}{number:04x}", job=7)  # fmt: skip
        if number < 4:
            ledger.launched(intent.launch_id, f"i-{number:017x}", job=7)
    ledger.registered(f"{_BASE[:-4]}0000")
    ledger.refused(f"{_BASE[:-4]}0004", RefusalKind.NO_CAPACITY, "InsufficientInstanceCapacity", "none is left", job=7)
    ledger.retire(f"{_BASE[:-4]}0001", "idle")
    ledger.record_notice(OpenNotice("n1", "spot-0", f"{_BASE[:-4]}0000", "ec2/r/z/t0/spot", _NOW + 100, "agent", _NOW))
    ledger.open_replacement(7, "spot-5", "reclaim")
    ledger.remember_job(7, 1, "spot", ("spot-0", "spot-2"))
    ledger.charge_begins(Charge(7, 1, "spot-0", _NOW - 50), "ec2/r/z/t0/spot", 1.5)
    ledger.note_prices({"ec2/r/z/t0/spot": 1.5})
    ledger.note_sizes({"ec2/r/z/t0/spot": MachineSize(4, 16000, 1)})
    ledger.settings_are({"ec2/r/z/t0/spot": "d"})
    ledger.count("job:7", "failed")
    ledger.wait_begins(7)
    ledger.close()


def _ledger(room: Room) -> Feed:
    """Input: changes, each three bytes of where (of the bytes that are not 0), one of how many, and what. ``\\xff`` first: cut off there."""
    whole = room.file("whole.db")
    _filled(whole)
    content = whole.read_bytes()
    assert not whole.with_name("whole.db-wal").exists() or not whole.with_name("whole.db-wal").stat().st_size
    used = [at for at, byte in enumerate(content) if byte]
    path = room.file("work/ledger.db")

    def feed(data: bytes) -> None:
        changed, at = bytearray(content), 0
        while at + 4 <= len(data) and at < 400:
            where, count = used[int.from_bytes(data[at : at + 3], "big") % len(used)], data[at + 3] % 16
            if data[at] == 0xFF:
                del changed[where:]
                at += 4
                continue
            piece = data[at + 4 : at + 4 + count]
            changed[where : where + len(piece)] = piece
            at += 4 + count
        for left in path.parent.iterdir():
            left.unlink()
        path.write_bytes(changed)
        try:
            ledger = Ledger.open(path, lambda: _NOW)
        except ConfigError:
            assert path.read_bytes() == changed or len(changed) < 100, "the file is lost"
            return
        try:
            _used(ledger)
        finally:
            ledger.close()
        with contextlib.suppress(ConfigError, sqlite3.Error):
            reader = Ledger.open_readonly(path)
            reader.events()
            reader.close()

    return feed


def _used(ledger: Ledger) -> None:
    """All that the manager does with it at each pass."""
    found: list[Any] = [
        *ledger.intents(closed=True), *ledger.notices(), *ledger.replacements(), *ledger.seen_jobs().values(), *ledger.counters().values(), *ledger.events(),
        *ledger.offerings().values(), *ledger.experience().values(), *ledger.charges().values(), *ledger.spent().values(), *ledger.attempt_costs(7), *ledger.sizes().values(),
    ]  # fmt: skip
    for one in found:
        _sound(one)
    sum(ledger.live_prices().values())
    ledger.events_after(0)
    new = ledger.open_intent("spot-9", "spot", "ec2", "ec2/r/z/t9/spot")
    assert new.launch_id in {i.launch_id for i in ledger.intents()}, "what is written is lost"
    ledger.count("job:7", "failed")
    ledger.prune()


def _sound(one: Any) -> None:
    """Of the types that its class says, so that it can be reckoned with."""
    assert is_dataclass(one)
    for each in fields(one):
        value, said = getattr(one, each.name), str(each.type)
        if value is None and "None" in said:
            continue
        fits = {"str": str, "float": (int, float), "int": int}.get(said.split(" |")[0])
        if fits is not None and not isinstance(value, fits):  # type: ignore[arg-type]
            raise TypeError(f"{type(one).__name__}.{each.name} is {value!r}")


# --- other files of the manager ---------------------------------------------------------------------------------------

_NOTICE = Notice("aws", "reclaim", "x", _NOW, _NOW + 120, "t")
_AWS = aws.Note(
    _BASE,
    [aws.Fleet(_BASE, [_BASE], {"Type": "instant"}, _NOW)],
    {_BASE: "spot-1"},
    {_BASE: "i-0123456789abcdef0"},
    {_BASE[:-1] + "1": {"kind": "quota", "code": "c", "text": "t", "permanent": False, "known": True}},
)
_GCP = gcp.Call(_BASE, {_BASE: "spot-1"}, "spot", "o", "z", "t", "spot", False, True, _NOW, "op", True, {_BASE: "z"}, {_BASE: ("c", "t", 409, 5.0)})  # fmt: skip
_AZURE = azure.Note(_BASE, "spot-1", _NOW, True, "c", "t", 409)
_SOON = Job(7, "7", frozenset({"RUNNING"}), "", "spot", "u", 5)


def _aws_journal(folder: Path) -> None:
    journal = aws.Journal(folder)
    for note in journal.notes():
        for launch_id in note.refused:
            note.refusal(launch_id)
        note.next_token()
        float(sum(fleet.asked for fleet in note.fleets))
        note.assign(aws.Fleet("t", [], {}, 0.0), ["i-1"])
    journal.by_instance()
    journal.forget(_NOW - 1e6)
    journal.save(aws.Note(str(uuid.UUID(int=5))))


def _gcp_journal(folder: Path) -> None:
    journal = gcp.Journal(folder)
    for call in journal.calls():
        assert all(journal.of(launch_id) for launch_id in call.members)
    journal.forget(_NOW - 1e6)


def _azure_journal(folder: Path) -> None:
    journal = azure.Journal(folder)
    journal.recent(_NOW - 1e6)
    note = journal.get(_BASE)
    assert note is None or note.settled in (True, False)
    journal.forget(_NOW - 1e6)


def _gone(folder: Path) -> None:
    gone = Gone(folder / f"{_BASE}.json", lambda: _NOW)
    gone.look([_SOON])
    assert gone.since("7") is None and (gone.since("9") or 0.0) <= _NOW


def _told(folder: Path) -> None:
    before = (folder / f"{_BASE}.json").read_bytes()
    book = ToldBook(folder, _BASE, lambda: _NOW)
    aside = [p for p in folder.iterdir() if ".damaged-" in p.name]
    assert not aside or aside[0].read_bytes() == before, "the file is lost"
    book.taken_away()
    book.add([MachineNotice("i-2", Notice("aws", "reclaim", "y", _NOW, _NOW + 5))])
    assert "i-2" in ToldBook(folder, _BASE, lambda: _NOW).taken_away(), "a notice is lost"


def _ended(folder: Path) -> None:
    ended = Ended(folder / f"{_BASE}.json", lambda: _NOW)
    ended.note([9])
    assert 9 in ended and 9 in Ended(folder / f"{_BASE}.json", lambda: _NOW)


def _local(folder: Path) -> None:
    found = read_json(folder / f"{_BASE}.json")
    process = Process.from_dict(found)
    if process is not None:
        process.alive()


def _rendered(folder: Path) -> None:
    (folder / f"{_BASE}.json").rename(folder / RECORD)
    (folder / "theirs").write_text("theirs")
    write_all([Wanted(folder / "theirs", "ours")], record=folder)
    assert (folder / "theirs").read_text() == "theirs", "somebody's file is lost"


def _example(value: object) -> tuple[bytes, ...]:
    return (json.dumps(value).encode(),)


_STATE: dict[str, tuple[Callable[[Path], None], tuple[bytes, ...]]] = {
    "journal-aws": (_aws_journal, _example(asdict(_AWS))),
    "journal-gcp": (_gcp_journal, _example(asdict(_GCP))),
    "journal-azure": (_azure_journal, _example([asdict(_AZURE)])),
    "gone": (_gone, _example({"7": None, "9": _NOW - 5, "12_3": _NOW})),
    "told": (_told, _example([{"instance_id": "i-1", "notice": asdict(_NOTICE)}])),
    "ended": (_ended, _example([[12345, _NOW], [5, _NOW - 10]])),
    "local-process": (_local, _example({"pid": 1, "started": 5, "boot": "x"})),
    "rendered": (_rendered, _example({"/etc/slurm/x": "0" * 64})),
}


def _state_file(room: Room, use: Callable[[Path], None]) -> Feed:
    folder = room.folder / "files"

    def feed(data: bytes) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / f"{_BASE}.json").write_bytes(data)
        with contextlib.suppress(CloudUnavailable):
            use(folder)

    return feed
