"""Batches in a shuffled order that a resumed program goes on with in the middle of an epoch.

The order is a function of (seed, epoch) alone, never of a global generator, so it is the same in every attempt. The position is
the number of batches that training steps have consumed: what loader workers have fetched ahead does not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler

from job_wrapper.checkpoint.memory import memory_of
from job_wrapper.errors import BEGIN_ANEW, ConfigChanged, UsageError


class ResumableSampler(Sampler[list[int]]):
    """For ``DataLoader(dataset, batch_sampler=ResumableSampler(dataset, seed=…, batch_size=…))``; any number of workers.

    Every sample comes once an epoch (with ``drop_last`` all but the last incomplete batch). Each new iteration is the next epoch;
    one that was left early is gone on with. With ``world_size`` ranks each batch is a share of a common one of ``batch_size *
    world_size`` samples; the last one is shared as evenly as it goes, and only if it has fewer samples than there are ranks
    are some repeated, so that every rank has as many batches as the others. ``num_replicas`` is another name for ``world_size``. A run may go
    on with another number of ranks if ``batch_size * world_size`` stays what it was.

    A torch ``DistributedSampler`` instead of the data is taken over as it is: the samples that it gives to its rank, in its order,
    with its seed. ``seed``, ``shuffle``, ``rank`` and ``world_size`` are its own then, and are left out here.

    A position exactly at the end of an epoch is resumed before what the program does at the end of an epoch: the first
    iteration is then empty, and the next one is the next epoch. Not so the final state of a program that came to its end: it is resumed after that.
    """

    def __init__(
        self,
        data: Sized | int | DistributedSampler[Any],
        *,
        seed: int | None = None,
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        num_replicas: int | None = None,
    ) -> None:
        self._taken_over = data if isinstance(data, DistributedSampler) else None
        length = _length_of(data)
        world_size = world_size if num_replicas is None else num_replicas
        if isinstance(data, DistributedSampler):
            if seed is not None or (rank, world_size, shuffle) != (0, 1, True):
                raise UsageError(
                    "ResumableSampler: seed, shuffle, rank and world_size are the DistributedSampler's; leave them out"
                )
            seed, shuffle = data.seed, data.shuffle
        elif seed is None:
            raise UsageError(
                "ResumableSampler: seed is missing: a number that is the same in every attempt, such as seed=1"
            )
        for name, value in (("length", length), ("batch_size", batch_size), ("world_size", world_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"ResumableSampler: {name} is {value!r}, and must be a whole number of 1 or more")
        if not 0 <= rank < world_size:
            raise UsageError(f"ResumableSampler: rank {rank} is not in 0..{world_size - 1}")
        self.length, self.batch_size, self.seed = length, batch_size, int(seed)
        self.shuffle, self.drop_last, self.rank, self.world_size = shuffle, drop_last, rank, world_size
        together = batch_size * world_size
        self.batches = length // together if drop_last else -(-length // together)
        """Batches an epoch, for this rank as for every other."""
        if not self.batches:
            raise UsageError(
                f"ResumableSampler: {length} samples don't fill one batch of {together}, and drop_last leaves out the rest"
            )
        self.on_restart: Callable[[], None] | None = None
        """Called once, after a load, when the loader has drawn from the random generators what it draws at its start."""
        self._consumed = 0
        self._epoch = 0
        self._issued = 0
        self._finished = False
        self._left = False
        self._loaded = False
        self._stride = 1
        self._order: tuple[int, torch.Tensor, str] | None = None

    @property
    def epoch(self) -> int:
        """The epoch in progress, from 0: until the next iteration starts it is the one that just ended."""
        return self._epoch

    @property
    def consumed(self) -> int:
        """Batches consumed by steps, over all epochs."""
        return self._consumed

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of that epoch; for the one in progress (as after a resume) it does nothing."""
        if epoch != self._epoch:
            self._consumed = self._issued = epoch * self.batches
            self._epoch, self._finished, self._left, self._loaded = epoch, False, False, False

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: its body begins at the first batch, after the loader has drawn its base seed.
        first = self._begin()
        order = self.order(self._epoch)
        for number in range(first, self.batches):
            self._issued = self._epoch * self.batches + number + 1
            yield self._share(order, number)
        self._finished = True

    def advance(self, batches: int = 1) -> None:
        """A step has consumed that many. Raises ``UsageError`` for more than were given out."""
        consumed = self._consumed + batches
        if consumed > self._issued:
            raise UsageError(
                f"step() has counted {consumed} batches, but the loader gave out {self._issued}: is this sampler the one "
                "that the loader uses, and is step() called once a training step?"
            )
        self._consumed = consumed
        self._stride = max(self._stride, batches)

    def leave(self) -> None:
        """The program has done its last loop: where that ended with an epoch, what comes at an epoch's end is done, too."""
        self._left = self._finished and self._consumed == self._issued

    def order(self, epoch: int) -> torch.Tensor:
        """The indices of all samples in the order of that epoch (int64)."""
        return self._permutation(epoch)[0]

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it is a position in."""
        epoch = max(self._consumed - 1, 0) // self.batches
        state = {"consumed": self._consumed, "of": self._identity(), "order": self._permutation(epoch)[1]}
        return state | ({"left": True} if self._left else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to that position. Raises ``ConfigChanged`` if it is one in other data or another order."""
        if self._issued:
            raise UsageError(
                "the loader was already iterated when its position was restored: make the Checkpointer first"
            )
        mine, stored = self._identity(), dict(state["of"])
        if _together(mine) == _together(stored):
            # The same common batches, shared among another number of ranks.
            stored |= {key: mine[key] for key in ("batch_size", "world_size")}
        lines = [
            f"  {key}: {stored.get(key)!r} in the checkpoint, {mine.get(key)!r} now"
            for key in sorted({*mine, *stored})
            if mine.get(key) != stored.get(key)
        ]
        if lines:
            raise ConfigChanged(
                "the order of the samples differs from the checkpoint's, so the place in the epoch has no meaning:\n"
                + "\n".join(lines)
                + f"\nuse the checkpoint's values, or {BEGIN_ANEW}"
            )
        consumed = int(state["consumed"])
        epoch = max(consumed - 1, 0) // self.batches
        if self._permutation(epoch)[1] != state["order"]:
            raise ConfigChanged(
                f"torch {torch.__version__} shuffles {self.length} samples in another order than the torch that made the "
                "checkpoint: use that version to finish this run"
            )
        self._consumed = self._issued = consumed
        self._epoch = epoch + bool(state.get("left"))
        self._finished, self._left, self._loaded = False, False, True

    def _begin(self) -> int:
        """Settle which epoch this iteration is of; returns its first batch."""
        if self._loaded:
            self._loaded = False
            if self.on_restart is not None:
                hook, self.on_restart = self.on_restart, None
                hook()
            return self._consumed - self._epoch * self.batches
        if self._finished:
            missing = self._issued - self._consumed
            if self._consumed and missing >= self._stride:
                raise UsageError(
                    f"epoch {self._epoch} ended, but step() was not told of {missing} of its batches: a step that consumes "
                    "several batches (gradient accumulation, skipped ones) is step(batches=N)"
                )
            self._finished = False
            self._epoch += 1
            return 0
        self._epoch, first = divmod(self._consumed, self.batches)
        return first

    def _identity(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "batch_size": self.batch_size,
            "world_size": self.world_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            **self._taken_from(),
        }

    def _taken_from(self) -> dict[str, Any]:
        """What the order of a ``DistributedSampler`` depends on. Its rank is none of it: all ranks have the same position."""
        other = self._taken_over
        return {} if other is None else {"num_replicas": other.num_replicas, "of_samples": _length_of(other.dataset)}

    def _permutation(self, epoch: int) -> tuple[torch.Tensor, str]:
        if self._order is None or self._order[0] != epoch:
            if self._taken_over is not None:
                self._taken_over.set_epoch(epoch)
                order = torch.tensor(list(self._taken_over), dtype=torch.int64)
                digest = self._shuffled(epoch) if self.shuffle else ""
            elif self.shuffle:
                seed = hashlib.blake2b(f"{self.seed}:{epoch}".encode(), digest_size=8).digest()
                generator = torch.Generator().manual_seed(int.from_bytes(seed, "big") >> 1)
                order = torch.randperm(self.length, generator=generator)
                digest = hashlib.blake2b(memory_of(order), digest_size=16).hexdigest()
            else:
                order, digest = torch.arange(self.length), ""
            self._order = (epoch, order, digest)
        return self._order[1:]

    def _shuffled(self, epoch: int) -> str:
        """How this torch shuffles for a ``DistributedSampler``: the same on all ranks."""
        generator = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(self.length, generator=generator)
        return hashlib.blake2b(memory_of(order), digest_size=16).hexdigest()

    def _share(self, order: torch.Tensor, number: int) -> list[int]:
        together = self.batch_size * self.world_size
        batch = order[number * together : (number + 1) * together]
        if len(batch) < self.world_size:
            batch = torch.cat([batch, order[torch.arange(self.world_size - len(batch)) % self.length]])
        whole, rest = divmod(len(batch), self.world_size)
        start = self.rank * whole + min(self.rank, rest)
        share: list[int] = batch[start : start + whole + (self.rank < rest)].tolist()
        return share


def _length_of(data: Any) -> int:
    if isinstance(data, int):
        return data
    try:
        return len(data)
    except TypeError:
        raise UsageError(
            f"ResumableSampler: a {type(data).__name__} has no length, so there are no places in it to go back to. For an IterableDataset "
            "use torchdata's StatefulDataLoader and give that to Checkpointer(data=…); a dataset with state_dict and load_state_dict "
            "of its own is gone on with at once, any other is read again from its beginning and skipped"
        ) from None


def _together(identity: dict[str, Any]) -> Any:
    """The size of the common batch."""
    try:
        return int(identity["batch_size"]) * int(identity["world_size"])
    except (KeyError, TypeError, ValueError):
        return None
