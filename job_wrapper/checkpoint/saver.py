"""One save in flight, behind the training: staged bytes into the store, then the commit. And reading them back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import torch

from job_wrapper.checkpoint import bundles
from job_wrapper.checkpoint.committer import Committer
from job_wrapper.checkpoint.staging import Batch, memory_of
from job_wrapper.checkpoint.state import Encoded, decode, dtype_of, parse
from job_wrapper.client import Committed
from job_wrapper.errors import Damaged, NewerFormat, ObjectMissing, SpotburstError, StoreError, kind_of
from job_wrapper.store import (
    Item,
    ItemKind,
    ObjectRef,
    ObjectStore,
    Part,
    PartWriter,
    read_items_into,
    read_manifest,
    read_part,
)

FORMAT = 2
"""Version of the layout of this part: large tensors by name, small ones in bundles, and the skeleton under ``SKELETON``."""
SKELETON = ".state.json"
"""No tensor's path in a `Checkpointer`'s state begins with a dot."""


class Replaced(SpotburstError):
    """A save that was given up for a later one."""

    reason = "Replaced"


def settle(done: int, total: int, elapsed: float, left: float | None) -> Literal["wait", "replace"]:
    """What to do with a save in flight when an urgent one is wanted. Pure.

    ``done`` of ``total`` bytes took ``elapsed`` seconds; ``left`` seconds remain until the node goes away, or None where that isn't
    known. Both are saved if both can be. Else the newer one if it can; else the older goes on, for it is nearer to its end.
    """
    if left is None or elapsed <= 0 or done <= 0:
        return "wait"
    speed = done / elapsed
    rest, whole = (total - done) / speed, total / speed
    return "replace" if rest + whole > left >= whole else "wait"


class Save:
    """Runs in a thread of its own from ``start`` on. ``done`` is set at its end, whatever that is: then ``outcome`` or ``error`` stands."""

    def __init__(
        self,
        committer: Committer,
        name: str,
        step: int,
        seq: int | None,
        skeleton: Encoded,
        staged: Batch,
        base: Part | None,
        ended: Callable[[Save], None],
    ) -> None:
        self.step, self.seq = step, seq
        self.done = threading.Event()
        self.outcome: Committed | None = None
        self.error: BaseException | None = None
        self.part = base
        """What the next save may point to: the part of the last commit."""
        self.written = 0
        self.total = staged.total
        self.committer, self._name, self._skeleton, self._staged = committer, name, skeleton, staged
        self._ended = ended
        self._given_up = False
        self._started = 0.0
        self._thread = threading.Thread(target=self._run, name="spotburst-save")

    def start(self) -> None:
        """Begin."""
        self._started = time.monotonic()
        self._thread.start()

    def give_up(self) -> None:
        """Ask it to end uncommitted; a commit already on its way is not taken back."""
        self._given_up = True

    def wait(self) -> None:
        """Until it has ended. Ctrl-C gets through."""
        self.done.wait()

    def settle(self, deadline: float | None) -> None:
        """Make way for an urgent save: see the function of this name. ``deadline`` in Unix seconds."""
        left = None if deadline is None else deadline - time.time()
        if settle(self.written, self.total, time.monotonic() - self._started, left) == "replace":
            self.give_up()
        self.wait()

    def _run(self) -> None:
        try:
            reference = self._write()
            self._check()
            self.outcome = self.committer.commit(self.step, {self._name: reference}, self.seq)
            try:
                self.part = read_part(self.committer.store, reference)
            except StoreError:
                self.part = None
        except BaseException as error:
            self.error = error
            self._report(error)
        finally:
            self._skeleton, self._staged = Encoded(None, {}), Batch()
            self._ended(self)
            self.done.set()

    def _report(self, error: BaseException) -> None:
        if self.seq is not None and not isinstance(error, Replaced):
            try:
                self.committer.failed(self.seq, f"{type(error).__name__}: {error}", kind_of(error))
            except SpotburstError:
                return

    def _check(self) -> None:
        if self._given_up:
            raise Replaced(f"the checkpoint of step {self.step} was given up")

    def _write(self) -> ObjectRef:
        committer = self.committer
        with PartWriter(committer.store, committer.data_prefix, self._name, base=self.part) as writer:
            writer.add_bytes(SKELETON, self._skeleton.to_json())
            if self._staged.bundles:
                writer.add_bytes(bundles.INDEX, bundles.encode_index(self._staged.bundles))
            for number, bundle in enumerate(self._staged.bundles):
                writer.add_bytes(bundles.name_of(number), bundle.data)
                self.written += len(bundle.data)
            for one in self._staged.tensors:
                self._check()
                writer.add_tensor(one.name, one.data, dtype=one.dtype, shape=one.shape)
                self.written += len(one.data)
            self._check()
            return writer.finish({"kind": "torch", "format": FORMAT, "completed": self.step})


def read_state(store: ObjectStore, manifest: ObjectRef, name: str) -> tuple[Any, Part]:
    """The state tree of part ``name``, every byte verified, in tensors of its own. Raises ``Damaged``, ``NewerFormat``, ``StoreError``."""
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
        tensors: dict[str, torch.Tensor] = {}
        buffers: dict[str, bytearray] = {}
        pairs: list[tuple[Item, memoryview]] = []
        for item in part.items:
            if item.kind is ItemKind.TENSOR:
                tensors[item.name] = tensor = _empty(item, where)
                if tensor.numel():
                    pairs.append((item, memory_of(tensor)))
            else:
                buffers[item.name] = bytearray(item.length)
                pairs.append((item, memoryview(buffers[item.name])))
        read_items_into(store, pairs)
        del pairs
        if bundles.INDEX in buffers:
            for number, rows in enumerate(bundles.decode_index(buffers.pop(bundles.INDEX), where)):
                tensors.update(bundles.unpack(rows, buffers.pop(bundles.name_of(number)), where))
    except ObjectMissing as error:
        raise Damaged(f"{error}: a checkpoint needs it") from error
    except KeyError as error:
        raise Damaged(f"{where}: damaged: there is no item {error}") from error
    return decode(parse(buffers.get(SKELETON, b"")), tensors), part


def _empty(item: Item, where: str) -> torch.Tensor:
    try:
        dtype, shape = dtype_of(str(item.attributes["dtype"])), [int(n) for n in item.attributes["shape"]]
        count = 1
        for n in shape:
            count *= n
        fits = count * dtype.itemsize == item.length and min(shape, default=0) >= 0
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{where}: damaged: item {item.name!r} is no tensor ({error})") from error
    if not fits:
        raise Damaged(f"{where}: damaged: item {item.name!r} has {item.length} bytes, not those of {dtype} {shape}")
    # No huge pages here: where a virtual machine gives free ones back to its host, touching them costs more than small ones.
    return torch.empty(shape, dtype=dtype)
