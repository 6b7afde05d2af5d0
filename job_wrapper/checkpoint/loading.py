"""Reading a saved state back, every byte verified before anything of the program's is set."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from job_wrapper.checkpoint import bundles
from job_wrapper.checkpoint.memory import is_plain, memory_of
from job_wrapper.checkpoint.saver import FORMAT, SKELETON
from job_wrapper.checkpoint.state import decode, dtype_name, dtype_of, parse
from job_wrapper.errors import Damaged, NewerFormat, ObjectMissing
from job_wrapper.store import Item, ItemKind, ObjectRef, ObjectStore, Part, read_items_into, read_manifest, read_part
from job_wrapper.store.read import verify_items

_GROUP = 8 << 20
"""Bytes of bundles read at once."""


@dataclass(slots=True)
class Loaded:
    """A state that verified. ``tree`` holds the program's own tensors where it could; they have their values after ``fill``."""

    tree: Any
    part: Part
    store: ObjectStore
    large: list[tuple[Item, torch.Tensor]] = field(default_factory=list)
    small: list[tuple[Item, list[bundles.Row]]] = field(default_factory=list)
    own: dict[str, torch.Tensor] = field(default_factory=dict)

    def fill(self) -> None:
        """Read into the program's tensors what has been verified. Raises ``StoreError``; to be called again then, for some are half-written."""
        read_items_into(self.store, ((item, memory_of(tensor)) for item, tensor in self.large), verified=True)
        while self.small:
            group, size = [], 0
            for one in self.small:
                group.append(one)
                size += one[0].length
                if size >= _GROUP:
                    break
            buffers = [bytearray(item.length) for item, _ in group]
            pairs = [(item, memoryview(buffer)) for (item, _), buffer in zip(group, buffers, strict=True)]
            read_items_into(self.store, pairs, verified=True)
            for (_, rows), buffer in zip(group, buffers, strict=True):
                self._scatter(rows, buffer)
            del self.small[: len(group)]

    def _scatter(self, rows: list[bundles.Row], buffer: bytearray) -> None:
        base = ctypes.addressof(ctypes.c_ubyte.from_buffer(buffer)) if buffer else 0
        for (name, _, _), (offset, length) in zip(rows, bundles.places(rows, len(buffer), ""), strict=True):
            if length:
                ctypes.memmove(self.own[name].data_ptr(), base + offset, length)


def read_state(
    store: ObjectStore, manifest: ObjectRef, name: str, own: Mapping[str, torch.Tensor] | None = None
) -> Loaded:
    """The state of part ``name``. Raises ``Damaged``, ``NewerFormat``, ``StoreError``; nothing has been set then.

    ``own``: the program's tensors by name, into which a store whose bytes can be verified where they lie reads; otherwise, and for all
    others, there is memory of its own.
    """
    try:
        reference = read_manifest(store, manifest).parts.get(name)
        if reference is None:
            raise Damaged(f"{store.uri}/{manifest.key}: holds no state of this program (no part {name!r})")
        part = read_part(store, reference)
        where = f"{store.uri}/{reference.key}"
        version = part.attributes.get("format")
        if version != FORMAT:
            kind = NewerFormat if isinstance(version, int) and version > FORMAT else Damaged
            raise kind(f"{where}: a state laid out in format {version!r}; this version reads format {FORMAT}")
        return _load(store, part, where, usable(own or {}))
    except ObjectMissing as error:
        raise Damaged(f"{error}: a checkpoint needs it") from error
    except KeyError as error:
        raise Damaged(f"{where}: damaged: there is no item {error}") from error


def usable(own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that can be read into: in host memory, in order, and with no byte that another one has, too. Pure."""
    plain = {n: t for n, t in own.items() if t.is_cpu and t.nbytes and is_plain(t)}
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes, n) for n, t in plain.items())
    shared = set()
    furthest, holder = 0, ""
    for start, end, name in spans:
        if start < furthest:
            shared |= {name, holder}
        if end > furthest:
            furthest, holder = end, name
    return {n: t for n, t in plain.items() if n not in shared}


def _load(store: ObjectStore, part: Part, where: str, own: dict[str, torch.Tensor]) -> Loaded:
    items = {item.name: item for item in part.items}
    head = _read(store, [items[n] for n in (SKELETON, bundles.INDEX) if n in items])
    tables = bundles.decode_index(head[bundles.INDEX], where) if bundles.INDEX in head else []
    found = Loaded(None, part, store, own=own)
    here: list[Item] = []
    tensors: dict[str, torch.Tensor] = {}
    for item in part.items:
        if item.kind is ItemKind.TENSOR:
            shape, dtype = _checked(item, where)
            target = own.get(item.name)
            if target is not None and target.dtype == dtype and target.shape == shape:
                found.large.append((item, target))
                tensors[item.name] = target
            else:
                here.append(item)
    apart: list[tuple[Item, list[bundles.Row]]] = []
    for number, rows in enumerate(tables):
        item = items[bundles.name_of(number)]
        bundles.places(rows, item.length, where)
        if own and all(_fits(own.get(n), dtype, shape) for n, dtype, shape in rows):
            found.small.append((item, rows))
            tensors.update((n, own[n]) for n, _, _ in rows)
        else:
            apart.append((item, rows))
    mine = [item for item, _ in found.large] + [item for item, _ in found.small]
    if mine and not verify_items(store, mine):
        return _load(store, part, where, {})
    pairs = []
    for item in here:
        shape, dtype = _checked(item, where)
        # No huge pages here: where a virtual machine gives free ones back to its host, touching them costs more than small ones.
        tensors[item.name] = tensor = torch.empty(shape, dtype=dtype)
        if tensor.numel():
            pairs.append((item, memory_of(tensor)))
    read_items_into(store, pairs)
    del pairs
    buffers = _read(store, [item for item, _ in apart])
    for item, rows in apart:
        tensors.update(bundles.unpack(rows, buffers.pop(item.name), where))
    found.tree = decode(parse(head.get(SKELETON, b"")), tensors)
    return found


def _fits(tensor: torch.Tensor | None, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return tensor is not None and tensor.dtype == dtype and tensor.shape == shape


def _read(store: ObjectStore, items: list[Item]) -> dict[str, bytearray]:
    buffers = {item.name: bytearray(item.length) for item in items}
    read_items_into(store, [(item, memoryview(buffers[item.name])) for item in items])
    return buffers


def _checked(item: Item, where: str) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of a tensor's item, if its bytes are as many."""
    try:
        dtype, shape = dtype_of(str(item.attributes["dtype"])), tuple(int(n) for n in item.attributes["shape"])
        fits = prod(shape) * dtype.itemsize == item.length and bundles.possible(shape)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Damaged(f"{where}: damaged: item {item.name!r} is no tensor ({error})") from error
    if not fits:
        raise Damaged(
            f"{where}: damaged: item {item.name!r} has {item.length} bytes, not those of {dtype_name(dtype)} {list(shape)}"
        )
    return shape, dtype
