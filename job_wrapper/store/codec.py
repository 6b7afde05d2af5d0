"""Stored JSON objects as bytes: the seal that finds a flipped bit, and log entries both ways.

Every object is one JSON object, compact, that says its ``format`` and ``type`` and ends with a checksum of all bytes before it::

    {"format":1,"type":"entry",…,"checksum":"xxh3-128:<32 hex digits>"}

The seal is the same in all formats to come, so that damage is told from a newer format. What is read is never trusted: types,
ranges and keys are checked, unknown fields are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from job_wrapper.errors import Damaged, NewerFormat, SpotburstError
from job_wrapper.store.checksum import PREFIX, checksum, is_checksum
from job_wrapper.store.io_types import FORMAT, CommitRef, Entry, Kind, ObjectRef, Summary, Writer
from job_wrapper.store.paths import MAX_SEQ, check_key, short

_SEAL = b',"checksum":"' + PREFIX.encode()
_SEAL_LENGTH = len(_SEAL) + 32 + len(b'"}')
MAX_ENTRY = 1 << 20
"""Largest log entry in bytes."""


def seal(type_name: str, fields: Mapping[str, Any]) -> bytes:
    """``fields`` as stored bytes."""
    content = json.dumps(
        {"format": FORMAT, "type": type_name, **fields}, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()[:-1]
    return content + f',"checksum":"{checksum(content)}"}}'.encode()


def unseal(data: bytes, type_name: str, where: str) -> dict[str, Any]:
    """The object in ``data``, its seal verified. Raises ``Damaged`` or ``NewerFormat`` naming ``where``."""
    content, tail = data[:-_SEAL_LENGTH], data[-_SEAL_LENGTH:]
    if tail != f',"checksum":"{checksum(content)}"}}'.encode():
        if _SEAL not in data[-2 * _SEAL_LENGTH :]:
            _refuse_newer(data, where)
        raise Damaged(
            f"{where}: damaged: its {len(data)} bytes are not those that were written (the checksum does not match)"
        )
    obj = parse_json(data, where)
    if not isinstance(obj, dict):
        raise Damaged(f"{where}: damaged: not a JSON object")
    _check_format(obj, where)
    if obj.get("type") != type_name:
        raise Damaged(f"{where}: not a spotburst {type_name} but {short(obj.get('type'))}")
    return obj


def parse_json(data: bytes, where: str) -> Any:
    """JSON in ``data``, NaN and infinities refused. Raises ``Damaged``."""
    try:
        return json.loads(data, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{where}: damaged: not JSON ({error})") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        _no_constant(text)  # too large: it would be read as an infinity
    return value


def _refuse_newer(data: bytes, where: str) -> None:
    try:
        obj = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(obj, dict):
        _check_format(obj, where)


def _check_format(obj: dict[str, Any], where: str) -> None:
    version = obj.get("format")
    if isinstance(version, int) and not isinstance(version, bool) and version > FORMAT:
        raise NewerFormat(
            f"{where}: written in format {short(version)} by a newer spotburst; this one reads up to format {FORMAT}. Update spotburst here"
        )
    if version != FORMAT or isinstance(version, bool):
        raise Damaged(f"{where}: damaged: unknown format {short(version)}")


class Fields:
    """Typed access to a decoded object; every error names the object and the field."""

    def __init__(self, obj: Any, where: str, field: str = "") -> None:
        if not isinstance(obj, dict):
            raise Damaged(f"{where}: damaged: {field or 'it'} is not an object")
        self._obj, self._where, self._field = obj, where, field

    def _bad(self, name: str) -> Damaged:
        place = f"{self._field}.{name}" if self._field else name
        return Damaged(f"{self._where}: damaged: {place} is {short(self._obj.get(name))}")

    def integer(self, name: str, low: int = 0, high: int = 1 << 62) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self._obj.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._bad(name)
        return value

    def optional_integer(self, name: str, low: int = 0, high: int = 1 << 62) -> int | None:
        """The same, or None."""
        return None if self._obj.get(name) is None else self.integer(name, low, high)

    def number(self, name: str) -> float:
        """A finite number."""
        value = self._obj.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e18:
            raise self._bad(name)
        return float(value)

    def text(self, name: str) -> str:
        """A string."""
        value = self._obj.get(name)
        if not isinstance(value, str):
            raise self._bad(name)
        return value

    def optional_text(self, name: str) -> str | None:
        """The same, or None."""
        return None if self._obj.get(name) is None else self.text(name)

    def items(self, name: str) -> list[Any]:
        """A list."""
        value = self._obj.get(name)
        if not isinstance(value, list):
            raise self._bad(name)
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """An object, as it is."""
        value = self._obj.get(name)
        if not isinstance(value, dict):
            raise self._bad(name)
        return value

    def sub(self, name: str) -> Fields:
        """An object, with typed access."""
        return Fields(self._obj.get(name), self._where, f"{self._field}.{name}" if self._field else name)

    def ref(self, name: str) -> ObjectRef:
        """A pointer to an object; its key is checked."""
        return decode_ref(self._obj.get(name), self._where, name)


def encode_ref(ref: ObjectRef) -> dict[str, Any]:
    """A pointer as JSON."""
    return {"key": ref.key, "length": ref.length, "checksum": ref.checksum}


def decode_ref(obj: Any, where: str, field: str = "manifest") -> ObjectRef:
    """A pointer from JSON. Raises ``Damaged`` naming ``where``."""
    fields = Fields(obj, where, field)
    digest = fields.text("checksum")
    if not is_checksum(digest):
        raise Damaged(f"{where}: damaged: {field}.checksum is {short(digest)}")
    return ObjectRef(check_key(fields.text("key"), where), fields.integer("length"), digest)


def encode_entry(entry: Entry, run: str = "") -> bytes:
    """A log entry of ``run`` as stored bytes.

    Raises ``SpotburstError`` if its body is not JSON or makes it larger than 1 MiB, or if it could not be read again: an entry that
    can't be read would end its run.
    """
    writer, summary = entry.writer, entry.summary
    try:
        data = seal(
            "entry",
            {
                "run": run,
                "seq": entry.seq,
                "kind": entry.kind.value,
                "epoch": entry.epoch,
                "writer": {
                    "cluster": writer.cluster,
                    "job_id": writer.job_id,
                    "restart_count": writer.restart_count,
                    "step_id": writer.step_id,
                    "host": writer.host,
                    "nonce": writer.nonce,
                },
                "time": entry.time,
                "summary": {
                    "epoch": summary.epoch,
                    "recoveries": summary.recoveries,
                    "barren": summary.barren,
                    "commits": [
                        {
                            "seq": c.seq,
                            "epoch": c.epoch,
                            "step": c.step,
                            "time": c.time,
                            "manifest": encode_ref(c.manifest),
                        }
                        for c in summary.commits
                    ],
                    "failed_restores": {str(k): v for k, v in summary.failed_restores.items()},
                    "ended": summary.ended,
                    "command_digest": summary.command_digest,
                },
                "body": entry.body,
            },
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise SpotburstError(
            f"log entry {entry.seq} ({entry.kind.value}): its body can't be written as JSON: {error}"
        ) from error
    if len(data) > MAX_ENTRY:
        raise SpotburstError(f"log entry {entry.seq} ({entry.kind.value}): {len(data)} bytes are more than {MAX_ENTRY}")
    try:
        decode_entry(data, "what is to be written", entry.seq, run)
    except Damaged as error:
        raise SpotburstError(f"log entry {entry.seq} ({entry.kind.value}): can't be written: {error}") from error
    return data


def decode_entry(data: bytes, where: str, seq: int | None = None, run: str = "") -> Entry:
    """A log entry from stored bytes. ``seq`` and ``run``: what its key says that it is. Raises ``Damaged`` or ``NewerFormat``."""
    fields = Fields(unseal(data, "entry", where), where)
    theirs = fields.optional_text("run")  # entries of earlier versions do not say it
    if run and theirs and theirs != run:
        raise Damaged(f"{where}: damaged: it holds an entry of run {short(theirs)}")
    number = fields.integer("seq", 0, MAX_SEQ)
    if seq is not None and number != seq:
        raise Damaged(f"{where}: damaged: it holds entry {number}, another one's content")
    kind = fields.text("kind")
    if kind not in {k.value for k in Kind}:
        raise Damaged(f"{where}: damaged: unknown kind {short(kind)}")
    w = fields.sub("writer")
    return Entry(
        seq=number,
        kind=Kind(kind),
        epoch=fields.integer("epoch", 1),
        writer=Writer(
            cluster=w.text("cluster"),
            job_id=w.text("job_id"),
            restart_count=w.integer("restart_count"),
            step_id=w.integer("step_id", -(1 << 62)),
            host=w.text("host"),
            nonce=w.text("nonce"),
        ),
        time=fields.number("time"),
        summary=_decode_summary(fields.sub("summary"), where),
        body=fields.mapping("body"),
    )


def _decode_summary(fields: Fields, where: str) -> Summary:
    failed: dict[int, int] = {}
    for key, count in fields.mapping("failed_restores").items():
        if not key.isascii() or not key.isdigit() or type(count) is not int or count < 0 or len(key) > 8:
            raise Damaged(f"{where}: damaged: summary.failed_restores has {short(key)}: {short(count)}")
        failed[int(key)] = count
    commits = []
    for obj in fields.items("commits"):
        c = Fields(obj, where, "summary.commits")
        commits.append(
            CommitRef(
                c.integer("seq", 0, MAX_SEQ),
                c.integer("epoch", 1),
                c.optional_integer("step", -(1 << 62)),
                c.number("time"),
                c.ref("manifest"),
            )
        )
    return Summary(
        epoch=fields.integer("epoch"),
        recoveries=fields.integer("recoveries"),
        barren=fields.integer("barren"),
        commits=tuple(commits),
        failed_restores=failed,
        ended=fields.optional_integer("ended", -(1 << 31)),
        command_digest=fields.optional_text("command_digest"),
    )
