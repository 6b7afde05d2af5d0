"""torch.distributed.checkpoint's writer over the run's store: DCP plans, this moves the bytes.

Each rank writes its own part ``dcp-<rank>``. The coordinator learns from DCP's results which parts there are, adds the part ``dcp`` with
the metadata, and commits; the other ranks need no right to commit. No collective is run here: where to write travels in DCP's plans.

No pickle reaches the store or comes from it. DCP's planners hand over what is not a tensor as pickled bytes and want it back as such; these
bytes live in this process's memory only, and the store holds the value as ``state.encode`` has it.
"""

from __future__ import annotations

import ctypes
import io
import logging
import os
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from job_wrapper.checkpoint.committer import Committer
from job_wrapper.checkpoint.dcp_format import FORMAT, METADATA, PART, item_name, metadata_tree
from job_wrapper.checkpoint.state import UnsupportedState, dtype_name, encode
from job_wrapper.client import Committed
from job_wrapper.errors import CheckpointFailed, StoreError, UsageError
from job_wrapper.store import ObjectRef, ObjectStore, Part, PartWriter, open_store, read_part
from job_wrapper.store.write import BaseGoneError

log = logging.getLogger("spotburst")


@dataclass(frozen=True, slots=True)
class Place:
    """Where all ranks write: what the coordinator's plan tells the others. ``base`` is the rank's part in the last commit."""

    uri: str
    endpoint_url: str
    data_prefix: str
    save: int
    base: ObjectRef | None = None


class RunWriter(StorageWriter):
    """For ``dcp.save`` and ``dcp.async_save``. ``committer`` is needed on the coordinator (rank 0) only; ``endpoint_url`` as there.

    ``step`` is the commit's step, unless ``checkpoint_id`` gives one. Use one writer for a whole run: what has not changed since its last
    commit is not written again. Wait for an ``async_save`` before the next one. Raises, inside DCP's ``CheckpointException``,
    ``UnsupportedState``, ``CheckpointFailed``, ``Fenced`` and the store's errors; nothing is committed then.
    """

    def __init__(self, committer: Committer | None = None, *, step: int = 0, endpoint_url: str = "") -> None:
        super().__init__()
        self.step = step
        self.outcome: Committed | None = None
        """The coordinator's last commit."""
        self._committer = committer
        self._endpoint_url = endpoint_url
        self._rank = 0
        self._seq: int | None = None
        self._saves = 0
        self._seen = 0
        self._parts: dict[str, ObjectRef] = {}
        self._store: tuple[str, ObjectStore] | None = None

    def follow(self, previous: RunWriter) -> None:
        """What has not changed since that one's commit is not written again. While it is in flight, all is."""
        self._saves, self._seen, self._store = previous._saves, previous._seen, previous._store
        if previous.outcome is not None:
            self._parts = previous._parts

    def answer(self, seq: int | None) -> None:
        """The next commit answers the request of this number."""
        self._seq = seq

    # DCP's protocol, in the order of its calls

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """``checkpoint_id`` is the step."""
        if checkpoint_id is not None:
            try:
                self.step = int(str(checkpoint_id))
            except ValueError:
                raise UsageError(f"checkpoint_id={checkpoint_id!r}: give the step, a whole number") from None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """On all ranks."""
        if not kwargs.get("use_collectives", True):
            raise UsageError("dcp.save(use_collectives=False) makes as many checkpoints as ranks; leave it out")
        if is_coordinator and self._committer is None:
            raise UsageError(
                "RunWriter: the coordinator (rank 0) needs the right to commit: RunWriter(committer). Under wrappers on several nodes "
                "another rank may have it: save with DistributedRun.save, which lets that one coordinate"
            )
        rank = kwargs.get("rank")  # torch before 2.9 does not say
        self._rank = rank if rank is not None else dist.get_rank() if dist.is_initialized() else 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """On all ranks."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator."""
        committer = self._required()
        self._saves += 1
        place = Place(committer.uri, self._endpoint_url, committer.data_prefix, self._saves)
        return [
            replace(plan, storage_data=replace(place, base=self._parts.get(f"{PART}-{rank}")))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """On all ranks. Returns when all is durable."""
        place = plan.storage_data
        name = f"{PART}-{self._rank}"
        results: list[WriteResult] = []
        if plan.items:
            store = self._open(place)
            try:
                sizes, written = _write_all(store, place, name, plan, planner, self._base(store, place))
            except BaseGoneError as error:
                log.warning("%s: all is written anew", error)
                sizes, written = _write_all(store, place, name, plan, planner, None)
            reference = (name, written)
            results = [WriteResult(item.index, size, reference) for item, size in zip(plan.items, sizes, strict=True)]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, when all ranks have written."""
        committer, seq = self._required(), self._seq
        self._seq = None
        parts: dict[str, ObjectRef] = {}
        where: dict[tuple[str, Any], str] = {}
        for result in (result for rank in results for result in rank):
            name, reference = result.storage_data
            if parts.setdefault(name, reference) != reference:
                raise CheckpointFailed(f"two ranks wrote the part {name!r}: are there two processes of one rank?")
            where[result.index.fqn, result.index.offset] = name
        tree = encode(metadata_tree(metadata, where))
        if tree.tensors:
            raise UnsupportedState(f"the planner's data holds tensors ({next(iter(tree.tensors))})")
        with PartWriter(committer.store, committer.data_prefix, PART) as writer:
            writer.add_bytes(METADATA, tree.to_json())
            parts[PART] = writer.finish({"kind": "dcp", "format": FORMAT})
        self.outcome = committer.commit(self.step, parts, seq)
        self._parts = parts

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """A step."""
        return str(checkpoint_id).isdigit()

    def __reduce__(self) -> NoReturn:
        raise UsageError("async_save: use AsyncCheckpointerType.THREAD; the right to commit stays in this process")

    def _required(self) -> Committer:
        assert self._committer is not None  # noqa: S101 - set_up_storage_writer has looked
        return self._committer

    def _open(self, place: Place) -> ObjectStore:
        if self._committer is not None and self._committer.uri == place.uri:
            return self._committer.store
        if self._store is None or self._store[0] != place.uri:
            self._store = place.uri, open_store(place.uri, endpoint_url=place.endpoint_url, prove=False)
        return self._store[1]

    def _base(self, store: ObjectStore, place: Place) -> Part | None:
        # A planner that caches plans hands out old ones, and what they name may be collected by now.
        fresh, self._seen = place.save > self._seen, place.save
        if not fresh or place.base is None:
            return None
        try:
            return read_part(store, place.base)
        except StoreError:
            return None


def _write_all(
    store: ObjectStore, place: Place, name: str, plan: SavePlan, planner: SavePlanner, base: Part | None
) -> tuple[list[int], ObjectRef]:
    """The part, and the bytes of each of its items."""
    with PartWriter(store, place.data_prefix, name, base=base) as writer:
        sizes = [_write(writer, planner, item) for item in plan.items]
        return sizes, writer.finish({"kind": "dcp", "format": FORMAT})


def _write(writer: PartWriter, planner: SavePlanner, item: WriteItem) -> int:
    """One item of the plan into the part; returns its bytes."""
    name = item_name(item.index)
    if item.type is not WriteItemType.BYTE_IO:
        data = planner.resolve_data(item)
        if not isinstance(data, torch.Tensor):
            raise UnsupportedState(f"{item.index.fqn}: the planner gave a {type(data).__name__} for a tensor")
        return _write_tensor(writer, name, item.index.fqn, data)
    encoded = encode({item.index.fqn: _value(planner, item)})
    skeleton = replace(encoded, skeleton=encoded.skeleton["map"][item.index.fqn]).to_json()
    writer.add_bytes(name, skeleton, tensors=list(encoded.tensors))
    beside = (_write_tensor(writer, f"{name}{i}", n, t) for i, (n, t) in enumerate(encoded.tensors.items()))
    return len(skeleton) + sum(beside)


def _value(planner: SavePlanner, item: WriteItem) -> Any:
    """The value itself, which planners give out pickled."""
    if isinstance(planner, DefaultSavePlanner) and _plain(type(planner)):
        return planner.lookup_object(item.index)
    data = planner.resolve_data(item)
    if not isinstance(data, io.BytesIO):
        raise UnsupportedState(f"{item.index.fqn}: the planner gave a {type(data).__name__} for a value")
    data.seek(0)
    try:
        return torch.load(data, weights_only=False)  # the planner has just made it, in this process
    except Exception as error:
        raise UnsupportedState(f"{item.index.fqn}: the planner's bytes are not those of torch.save: {error}") from error


def _plain(kind: type[DefaultSavePlanner]) -> bool:
    names = ("resolve_data", "transform_object")
    return all(getattr(kind, name) is getattr(DefaultSavePlanner, name) for name in names)


def _write_tensor(writer: PartWriter, name: str, fqn: str, value: torch.Tensor) -> int:
    value = value.detach()
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise UnsupportedState(
            f"{fqn}: a tensor of layout {value.layout}, {value.dtype}, on {value.device} can't be put into a checkpoint"
        )
    value = value.resolve_conj().resolve_neg().cpu().contiguous()
    length = value.numel() * value.element_size()
    if length:
        array = (ctypes.c_ubyte * length).from_address(value.data_ptr())
        array.owner = value  # type: ignore[attr-defined]  # lives until it is written, and no longer
        view = memoryview(array).cast("B")
    else:
        view = memoryview(b"")
    writer.add_tensor(name, view, dtype=dtype_name(value.dtype), shape=tuple(value.shape))
    return length
