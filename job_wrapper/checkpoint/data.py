"""What a program gives as ``data=``: the thing in it that knows the place in the epoch, or what to use instead."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

from job_wrapper.checkpoint.sampler import ResumableSampler
from job_wrapper.checkpoint.state import UnsupportedState

WITHOUT_DATA = (
    "restored step %d, but not a place in the data: no data= was given to the Checkpointer, so a loader begins its epoch anew, and samples "
    "that were seen come again. Give it data=ResumableSampler(…) or data=StatefulDataLoader(…), or data=False if there is no loader"
)


def position_of(data: Any) -> Any:
    """What has the position: a `ResumableSampler`, also inside a DataLoader, or anything with state_dict and load_state_dict.

    None for None and False. Raises ``UnsupportedState`` that says what to use, for loaders and samplers that can't go back to a place.
    """
    if data is None or data is False:
        return None
    inner = getattr(data, "batch_sampler", None)
    if isinstance(inner, ResumableSampler):
        return inner
    if has_state(data):
        return data
    if has_state(inner):
        return inner
    raise UnsupportedState(f"data=: {_why(data)}")


def has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def knows_a_place(value: Any) -> bool:
    """Whether this member of the state is a loader or a sampler itself."""
    return isinstance(value, (DataLoader, Sampler)) or type(value).__module__.partition(".")[0] == "torchdata"


def _why(data: Any) -> str:
    mine = "use DataLoader(dataset, batch_sampler=ResumableSampler(dataset, seed=…, batch_size=…))"
    sampler = getattr(data, "sampler", data)
    if isinstance(getattr(data, "dataset", data), IterableDataset):
        return (
            "an IterableDataset has no places to go back to; use torchdata's StatefulDataLoader, which has state_dict (and give the dataset "
            "state_dict and load_state_dict, or it is read again from its beginning at a resume)"
        )
    if isinstance(sampler, DistributedSampler):
        return (
            "a DistributedSampler can't go on in the middle of an epoch; hand it to ResumableSampler as it is: "
            "DataLoader(dataset, batch_sampler=ResumableSampler(distributed_sampler, batch_size=…))"
        )
    if isinstance(data, DataLoader):
        shuffles = "this DataLoader(shuffle=True)" if isinstance(sampler, RandomSampler) else "this DataLoader"
        return f"{shuffles} can't go on in the middle of an epoch; {mine}, or torchdata's StatefulDataLoader instead of DataLoader"
    return f"a {type(data).__module__}.{type(data).__qualname__} has no state_dict and load_state_dict; {mine}"
