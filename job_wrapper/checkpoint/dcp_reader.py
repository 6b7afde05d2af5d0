"""torch.distributed.checkpoint's reader over the run's store: each rank reads what it needs of any number of ranks' parts."""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from job_wrapper.checkpoint.dcp_format import METADATA, PART, empty_for, item_name, metadata_from, shape_of
from job_wrapper.checkpoint.memory import memory_of
from job_wrapper.checkpoint.state import decode, dtype_of, parse
from job_wrapper.errors import Damaged, UsageError
from job_wrapper.store import Item, ObjectRef, ObjectStore, Segment, read_items_into, read_manifest, read_part

_BATCH = 256 << 20
"""Bytes read at a time."""


class RunReader(StorageReader):
    """For ``dcp.load``, on every rank: the checkpoint of ``manifest``, every byte verified.

    Raises, inside DCP's ``CheckpointException``, ``Damaged``, ``NewerFormat``, ``StoreError``.
    """

    def __init__(self, store: ObjectStore, manifest: ObjectRef) -> None:
        super().__init__()
        self._store, self._manifest = store, manifest
        self._metadata: Metadata | None = None
        self._references: dict[str, ObjectRef] = {}
        self._where: dict[tuple[str, Any], str] = {}
        self._items: dict[str, dict[str, Item]] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Which checkpoint it is, is told at construction."""
        if checkpoint_id is not None:
            raise UsageError("dcp.load(checkpoint_id=…): a RunReader already names its checkpoint; leave it out")

    def read_metadata(self) -> Metadata:
        """On all ranks."""
        if self._metadata is None:
            self._references = read_manifest(self._store, self._manifest).parts
            where = f"{self._store.uri}/{self._manifest.key}"
            if PART not in self._references:
                raise Damaged(f"{where}: holds no state that torch.distributed.checkpoint wrote (no part {PART!r})")
            item = self._item(PART, METADATA)
            data = bytearray(item.length)
            read_items_into(self._store, [(item, memoryview(data))])
            self._metadata, self._where = metadata_from(decode(parse(data), {}), where)
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """On all ranks."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """On all ranks."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """On the coordinator."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """On all ranks. Reads only the pieces that this rank needs, about 256 MiB at a time."""
        batch: list[_Read] = []
        size = 0
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._value(item))
                continue
            read = _Read(item, self._stored(item), planner)
            batch.append(read)
            size += read.piece.length
            if size >= _BATCH:
                self._fetch(batch, planner)
                batch, size = [], 0
        self._fetch(batch, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """None is needed."""
        return False

    def _fetch(self, batch: list[_Read], planner: LoadPlanner) -> None:
        read_items_into(self._store, [(read.piece, read.memory) for read in batch if read.piece.length])
        for read in batch:
            read.settle(planner)

    def _part_of(self, index: MetadataIndex) -> str:
        try:
            return self._where[index.fqn, index.offset]
        except KeyError:
            raise Damaged(f"{self._store.uri}/{self._manifest.key}: damaged: does not say where {index} is") from None

    def _stored(self, item: ReadItem) -> Item:
        return self._item(self._part_of(item.storage_index), item_name(item.storage_index))

    def _item(self, part: str, name: str) -> Item:
        if part not in self._items:
            if part not in self._references:
                raise Damaged(f"{self._store.uri}/{self._manifest.key}: damaged: has no part {part!r}")
            self._items[part] = {item.name: item for item in read_part(self._store, self._references[part]).items}
        try:
            return self._items[part][name]
        except KeyError:
            raise Damaged(f"{self._store.uri}/{self._references[part].key}: damaged: has no item {name!r}") from None

    def _value(self, read: ReadItem) -> io.BytesIO:
        part, name = self._part_of(read.storage_index), item_name(read.storage_index)
        item = self._item(part, name)
        data = bytearray(item.length)
        read_items_into(self._store, [(item, memoryview(data))])
        skeleton = parse(data)
        names = item.attributes.get("tensors", [])
        tensors: dict[str, torch.Tensor] = {}
        pairs: list[tuple[Item, memoryview]] = []
        for number, inner in enumerate(names):
            beside = self._item(part, f"{name}{number}")
            tensors[inner] = tensor = empty_for(beside)
            pairs.append((beside, memory_of(tensor)))
        read_items_into(self._store, pairs)
        buffer = io.BytesIO()
        torch.save(decode(skeleton, tensors), buffer)  # in memory only: what planners expect
        buffer.seek(0)
        return buffer


class _Read:
    """One piece of a stored tensor on its way into the tensor it belongs to: the rows that are wanted, and no others."""

    def __init__(self, item: ReadItem, stored: Item, planner: LoadPlanner) -> None:
        self.item = item
        self.target = planner.resolve_tensor(item).detach()
        shape, dtype = shape_of(stored), dtype_of(str(stored.attributes.get("dtype")))
        rows = 1
        for n in shape[1:]:
            rows *= n
        row = rows * dtype.itemsize
        if shape:
            first, count = item.storage_offsets[0], item.lengths[0]
            self.shape = [count, *shape[1:]]
            start, stop = first * row, (first + count) * row
        else:
            self.shape, start, stop = [], 0, dtype.itemsize
        if stop > stored.length or (shape and shape[0] * row != stored.length):
            raise Damaged(f"item {stored.name!r}: {stored.length} bytes are not those of {dtype} {shape}")
        segments: list[Segment] = []
        at = begin = 0
        for segment in stored.segments:
            if at < stop and at + segment.length > start:
                begin = begin if segments else at
                segments.append(segment)
            at += segment.length
        self.piece = Item(stored.name, stored.kind, tuple(segments))
        self.slice = slice(start - begin, stop - begin)
        self.dtype = dtype
        whole = [*self.target.shape] == self.shape and self.piece.length == stop - start
        self.direct = (
            whole and self.target.device.type == "cpu" and self.target.dtype == dtype and self.target.is_contiguous()
        )
        self.direct = self.direct and not (self.target.is_conj() or self.target.is_neg())
        self.buffer = bytearray(0 if self.direct else self.piece.length)
        self.memory = memory_of(self.target) if self.direct else memoryview(self.buffer)

    def settle(self, planner: LoadPlanner) -> None:
        if not self.direct and self.piece.length:
            flat = torch.frombuffer(self.buffer, dtype=torch.uint8)[self.slice]
            tensor = flat.view(self.dtype).reshape(self.shape)
            for dim in range(1, tensor.dim()):
                tensor = tensor.narrow(dim, self.item.storage_offsets[dim], self.item.lengths[dim])
            if tensor.shape != self.target.shape:
                raise Damaged(
                    f"{self.item.storage_index}: stored as {tuple(tensor.shape)}, wanted as {tuple(self.target.shape)}"
                )
            self.target.copy_(tensor)
        planner.commit_tensor(self.item, self.target)
