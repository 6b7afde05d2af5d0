"""Inputs made out of others: bytes changed anywhere, words put in, JSON changed where it still is JSON."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

LONGEST = 16 << 10
"""Bytes of an input, but for the few that are made to be long."""
_DEEP = 20_000
_RAW = {
    "\ue000": "1e999",
    "\ue001": "9" * 400,
    "\ue002": "9" * 5000,
    "\ue003": "[" * _DEEP + "]" * _DEEP,
    "\ue004": "NaN",
    "\ue005": "-Infinity",
    "\ue006": "-0.0",
}
"""What Python's writer of JSON can't make, by the text that stands for it until then."""
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 1 << 31, (1 << 32) - 1, 1 << 63, 1 << 64, -(1 << 63), 1.5, 1e18, 1e308, 253402300800, "", " ", "0", "-1", "²",
    "\x00", "\ud800", "\u202e", "a" * 300, "..", "../../x", "/etc/passwd", "a[1-", "n[1-99999999999]", "n[0-9]", "1,2", "nan", "inf", "(null)", "RUNNING",
    "2026-02-31T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "x\ny", "%s{}", "<b>", [], {}, [None], {"": None}, *_RAW,
)  # fmt: skip
_WORDS = (
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc2\xb2", b"\xe2\x80\xae", b"\n", b"\r\n", b"\n\n", b"\t", b" ", b"'", b'"', b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]",
    b"[1-", b"[1-99999999999]", b"[0-9][0-9][0-9][0-9]", b"[1-3/", b",", b":", b";", b"=", b"%", b"&", b"*", b"|", b"/", b"../", b"-", b"+", b"e999", b"inf", b"nan", b"-1", b"0x", b"0b", b"0o",
    b"9" * 30, b"9" * 400, b"9" * 5000, b"4294967295", b"18446744073709551616", b"1e309", b"<!--", b"<![CDATA[", b"&amp;", b"null", b"true", b"2026-99-99T99:99:99Z", b"?", b"<<", b"!!binary", b"- ", b"&a", b"*a",
)  # fmt: skip


class Mutator:
    """Makes inputs of a target's ``examples`` and of what has joined them; the same again from the same ``chance``."""

    def __init__(self, examples: Sequence[bytes], chance: random.Random) -> None:
        self.pool = list(examples)
        self._chance = chance
        self._words = sorted({word for example in examples for word in re.findall(rb"[\w.-]{2,40}", example)})[:2000]

    def next(self) -> bytes:
        """An input."""
        chance = self._chance
        data = chance.choice(self.pool)
        if chance.random() < 0.5 and (changed := self._json(data)) is not None:
            data = changed
        if chance.random() < 0.7:
            for _ in range(1 << chance.randrange(4)):
                data = chance.choice(_OPERATIONS)(self, data)
        return data if len(data) <= LONGEST or chance.random() < 0.02 else data[:LONGEST]

    # Of bytes.

    def _place(self, data: bytes) -> tuple[int, int]:
        start = self._chance.randrange(len(data) + 1)
        return start, min(len(data), start + 1 + int(self._chance.expovariate(0.1)))

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return b"\x00"
        at = self._chance.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self._chance.randrange(8))]) + data[at + 1 :]

    def _byte(self, data: bytes) -> bytes:
        start, _ = self._place(data)
        return data[:start] + bytes([self._chance.randrange(256)]) + data[start + 1 :]

    def _cut(self, data: bytes) -> bytes:
        start, end = self._place(data)
        return data[:start] + data[end:]

    def _end(self, data: bytes) -> bytes:
        return data[: self._place(data)[0]]

    def _again(self, data: bytes) -> bytes:
        start, end = self._place(data)
        times = self._chance.choice((1, 1, 2, 3, 100, 3000))
        return (data[:end] + data[start:end] * times + data[end:])[: LONGEST * 4]

    def _word(self, data: bytes) -> bytes:
        start, end = self._place(data)
        words: Sequence[bytes] = self._words if self._words and self._chance.random() < 0.5 else _WORDS
        return data[:start] + self._chance.choice(words) + data[self._chance.choice((start, end)) :]

    def _number(self, data: bytes) -> bytes:
        found = list(re.finditer(rb"\d+", data))
        if not found:
            return self._word(data)
        one = self._chance.choice(found)
        new = self._chance.choice((b"0", b"-1", b"1", b"4294967294", b"9" * 20, b"9" * 400, b"9" * 5000, b"\xc2\xb2", b"0x7f", b"1.5", b"", str(int(one[0][:18]) + self._chance.choice((-1, 1))).encode()))  # fmt: skip
        return data[: one.start()] + new + data[one.end() :]

    def _spliced(self, data: bytes) -> bytes:
        other = self._chance.choice(self.pool)
        return data[: self._place(data)[0]] + other[self._place(other)[0] :]

    def _line(self, data: bytes) -> bytes:
        lines = data.split(b"\n")
        one, other = self._chance.randrange(len(lines)), self._chance.randrange(len(lines))
        lines[one], lines[other] = lines[other], self._chance.choice((lines[one], lines[other]))
        return b"\n".join(lines)

    def _indent(self, data: bytes) -> bytes:
        opening, closing = self._chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"<a>", b"</a>"), (b"- ", b""), (b"{", b"}")))  # fmt: skip
        times = self._chance.choice((1, 50, 2000, _DEEP))
        return opening * times + data + closing * times

    # Of JSON.

    def _json(self, data: bytes) -> bytes | None:
        start = data.find(b"{") if self._chance.random() < 0.9 else data.find(b"[")
        try:
            found = json.loads(data[start:])
        except (ValueError, RecursionError):
            return None
        for _ in range(1 << self._chance.randrange(3)):
            found = self._changed(found)
        try:
            made = json.dumps(found, separators=(",", ":"))
        except (ValueError, RecursionError):
            return None
        for stand, raw in _RAW.items():
            made = made.replace(json.dumps(stand), raw)
        return data[:start] + made.encode()

    def _changed(self, value: Any) -> Any:
        """Somewhere in it."""
        if isinstance(value, (dict, list)) and value and self._chance.random() < 0.85:
            keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
            key = self._chance.choice(keys)
            do = self._chance.random()
            if do < 0.08:
                del value[key]
            elif do < 0.12 and isinstance(value, list):
                value += [value[key]] * self._chance.choice((1, 10, 1000))
            elif do < 0.14 and isinstance(value, dict):
                value[str(self._chance.choice(_VALUES))] = value[key]
            elif do < 0.2:
                value[key] = self._any(value[self._chance.choice(keys)])
            else:
                value[key] = self._changed(value[key])
            return value
        return self._any(value)

    def _any(self, value: Any) -> Any:
        if isinstance(value, str) and self._chance.random() < 0.4:
            return self._chance.choice(_OPERATIONS[:8])(self, value.encode(errors="replace")).decode(errors="replace")[:LONGEST]  # fmt: skip
        if type(value) is int and self._chance.random() < 0.3:
            return value + self._chance.choice((-1, 1, 1 << 32, -(1 << 62)))
        return copy.copy(self._chance.choice(_VALUES))


_OPERATIONS: tuple[Callable[[Mutator, bytes], bytes], ...] = (
    Mutator._flip, Mutator._byte, Mutator._cut, Mutator._end, Mutator._again, Mutator._word, Mutator._word, Mutator._number,
    Mutator._spliced, Mutator._line, Mutator._indent,
)  # fmt: skip
