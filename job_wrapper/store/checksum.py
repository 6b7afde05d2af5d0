"""The checksum of all stored bytes: xxh3-128, written ``xxh3-128:<32 hex digits>``.

It finds damage, not forgery: who may write to the store is the store's own affair.
"""

from __future__ import annotations

import re

from xxhash import xxh3_128_hexdigest

ALGORITHM = "xxh3-128"
PREFIX = ALGORITHM + ":"
_PATTERN = re.compile(r"xxh3-128:[0-9a-f]{32}\Z")
_HEX = re.compile(r"[0-9a-f]{32}\Z")


def checksum(data: bytes | bytearray | memoryview) -> str:
    """Checksum of ``data``, with the algorithm's name in front. The interpreter lock is free while a large one is computed."""
    return PREFIX + xxh3_128_hexdigest(data)


def is_checksum(text: object) -> bool:
    """Whether ``text`` is a checksum as ``checksum`` writes it, to the letter."""
    return isinstance(text, str) and _PATTERN.match(text) is not None


def is_hex(text: object) -> bool:
    """Whether ``text`` is the bare digits of a checksum."""
    return isinstance(text, str) and _HEX.match(text) is not None
