"""How distributed state lies in a checkpoint: each rank's shards in its part ``dcp-<rank>``, the metadata in the part ``dcp``."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from job_wrapper.checkpoint.bundles import possible
from job_wrapper.checkpoint.state import dtype_of
from job_wrapper.errors import CheckpointFailed, Damaged, NewerFormat
from job_wrapper.store import Item

FORMAT = 1
"""Version of the metadata's tree."""
PART = "dcp"
METADATA = "metadata.json"


def item_name(index: MetadataIndex) -> str:
    """The item of one shard, or of one value; no two have the same name."""
    if index.offset is None:
        return f"{index.fqn}@value"
    return f"{index.fqn}@{','.join(map(str, index.offset))}"


def metadata_tree(metadata: Metadata, where: Mapping[tuple[str, Any], str]) -> dict[str, Any]:
    def part(fqn: str, offset: torch.Size | None) -> str:
        try:
            return where[fqn, offset]
        except KeyError:
            raise CheckpointFailed(f"no rank wrote {fqn} at {offset}: is a rank missing?") from None

    state: dict[str, Any] = {}
    for fqn, one in metadata.state_dict_metadata.items():
        if isinstance(one, BytesStorageMetadata):
            state[fqn] = part(fqn, None)
        else:
            chunks = [[[*c.offsets], [*c.sizes], part(fqn, c.offsets)] for c in one.chunks]
            kind = one.properties
            state[fqn] = {"dtype": kind.dtype, "grad": kind.requires_grad, "size": [*one.size], "chunks": chunks}
    return {
        "format": FORMAT,
        "state": state,
        "planner": metadata.planner_data,
        "version": getattr(metadata, "version", None),
    }


def metadata_from(tree: Any, source: str) -> tuple[Metadata, dict[tuple[str, Any], str]]:
    where: dict[tuple[str, Any], str] = {}
    state: dict[str, Any] = {}
    try:
        version = tree["format"]
        if type(version) is int and version > FORMAT:
            raise NewerFormat(f"{source}: distributed state of format {version}, which this version does not know")
        if type(version) is not int or version != FORMAT:
            raise ValueError("an unknown format")
        for fqn, one in tree["state"].items():
            if isinstance(one, str):
                state[fqn], where[fqn, None] = BytesStorageMetadata(), one
                continue
            chunks = []
            if not isinstance(one["dtype"], torch.dtype) or not possible(one["size"]):
                raise ValueError(f"{fqn} is no tensor")
            for offsets, sizes, part in one["chunks"]:
                if not isinstance(part, str) or not len(offsets) == len(sizes) == len(one["size"]):
                    raise ValueError(f"{fqn}: a chunk that is none")
                chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
                where[fqn, chunks[-1].offsets] = part
            properties = TensorProperties(dtype=one["dtype"], requires_grad=one["grad"])
            state[fqn] = TensorStorageMetadata(properties, torch.Size(one["size"]), chunks)
        return Metadata(state, planner_data=tree["planner"], version=tree["version"]), where
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise Damaged(f"{source}: damaged: its metadata can't be read ({type(error).__name__}: {error})") from error


def shape_of(item: Item) -> list[int]:
    shape = item.attributes.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int for n in shape) or not possible(shape):
        raise Damaged(f"damaged: item {item.name!r} is no tensor")
    return shape


def empty_for(item: Item) -> torch.Tensor:
    """A tensor for all of the item's bytes. Raises ``Damaged`` before any memory is taken if they are not those of its shape."""
    shape, dtype = shape_of(item), dtype_of(str(item.attributes.get("dtype")))
    if prod(shape) * dtype.itemsize != item.length:
        raise Damaged(f"damaged: item {item.name!r} has {item.length} bytes, not those of {dtype} {shape}")
    return torch.empty(shape, dtype=dtype)
