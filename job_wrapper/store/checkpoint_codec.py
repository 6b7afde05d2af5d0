"""Parts and manifests as stored bytes. The frame, its seal and the checks are ``codec``'s.

A part's items are rows, not objects, so that 20,000 of them stay small and quick::

    {"format":1,"type":"part","name":"rank-0","packs":[["<key>",<bytes>],…],
     "items":[["<name>","<kind>",{<attributes>},<pack index>,<offset>,<length>,"<hex>",<pack index>,…],…],"attributes":{…}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from job_wrapper.errors import Damaged, SpotburstError
from job_wrapper.store.checksum import PREFIX, is_hex
from job_wrapper.store.codec import Fields, decode_ref, encode_ref, seal, unseal
from job_wrapper.store.io_types import Item, ItemKind, Manifest, Part, Segment
from job_wrapper.store.paths import check_key, short

PACK_SIZES = "pack_sizes"
"""Attribute of a part that the store sets: bytes of every pack that its items point to, by key."""
_KINDS = {kind.value: kind for kind in ItemKind}
MAX_SEGMENT = 1 << 30
"""Bytes: more than any version writes, so that a foreign part can't ask for more memory at once than there is."""
_FIXED = 3
_PER_SEGMENT = 4


def encode_part(
    name: str, pack_sizes: Mapping[str, int], rows: Sequence[list[Any]], attributes: Mapping[str, Any]
) -> bytes:
    """A part as stored bytes. ``rows`` point to packs by their place in ``pack_sizes``."""
    return seal(
        "part",
        {"name": name, "packs": [[k, n] for k, n in pack_sizes.items()], "items": rows, "attributes": dict(attributes)},
    )


def decode_part(data: bytes, where: str) -> Part:
    """A part from stored bytes. Raises ``Damaged`` or ``NewerFormat`` naming ``where``."""
    fields = Fields(unseal(data, "part", where), where)
    packs: list[str] = []
    sizes: dict[str, int] = {}
    for pair in fields.items("packs"):
        if not (isinstance(pair, list) and len(pair) == 2 and type(pair[1]) is int and pair[1] >= 0):
            raise Damaged(f"{where}: damaged: packs has {short(pair)}")
        packs.append(check_key(pair[0], where))
        sizes[pair[0]] = pair[1]
    items = tuple(_decode_row(row, packs, sizes, where) for row in fields.items("items"))
    if len({item.name for item in items}) != len(items):
        raise Damaged(f"{where}: damaged: two items have the same name")
    return Part(fields.text("name"), items, {**fields.mapping("attributes"), PACK_SIZES: sizes})


def _decode_row(row: Any, packs: list[str], sizes: Mapping[str, int], where: str) -> Item:
    try:
        name, kind, attributes = row[:_FIXED]
        if not (isinstance(name, str) and isinstance(attributes, dict) and (len(row) - _FIXED) % _PER_SEGMENT == 0):
            raise ValueError("wrong shape")
        segments = []
        for i in range(_FIXED, len(row), _PER_SEGMENT):
            index, offset, length, digest = row[i : i + _PER_SEGMENT]
            if not (type(index) is type(offset) is type(length) is int and is_hex(digest)):
                raise TypeError("wrong segment")
            if not (index >= 0 and offset >= 0 and 0 < length <= MAX_SEGMENT):
                raise ValueError("wrong segment")
            if offset + length > sizes[packs[index]]:
                raise ValueError("a segment past the end of its pack")
            segments.append(Segment(packs[index], offset, length, PREFIX + digest))
        return Item(name, _KINDS[kind], tuple(segments), attributes)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise Damaged(f"{where}: damaged: item {short(row)}: {error}") from None


def encode_manifest(manifest: Manifest) -> bytes:
    """A manifest as stored bytes. Raises ``SpotburstError`` for one that could not be read again."""
    data = seal(
        "manifest",
        {
            "run": manifest.run,
            "epoch": manifest.epoch,
            "step": manifest.step,
            "parts": {name: encode_ref(ref) for name, ref in manifest.parts.items()},
            "packs": list(manifest.packs),
            "attributes": manifest.attributes,
        },
    )
    try:
        decode_manifest(data, "what is to be written")
    except Damaged as error:
        raise SpotburstError(f"manifest of {manifest.run}, step {short(manifest.step)}: {error}") from error
    return data


def decode_manifest(data: bytes, where: str) -> Manifest:
    """A manifest from stored bytes. Raises ``Damaged`` or ``NewerFormat`` naming ``where``."""
    fields = Fields(unseal(data, "manifest", where), where)
    return Manifest(
        run=check_key(fields.text("run"), where),
        epoch=fields.integer("epoch", 1),
        step=fields.optional_integer("step", -(1 << 62)),
        parts={name: decode_ref(ref, where, f"parts.{name}") for name, ref in fields.mapping("parts").items()},
        packs=tuple(check_key(key, where) for key in fields.items("packs")),
        attributes=fields.mapping("attributes"),
    )
