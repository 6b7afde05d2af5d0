"""The run's log (fencing), packs (data), manifests, restore and retention over an object store.

Names are resolved when they are first used, so that a program which needs only one of them starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from job_wrapper.store.check import check_store as check_store
    from job_wrapper.store.claim import Claim as Claim
    from job_wrapper.store.io_types import (
        CommitRef as CommitRef,
    )
    from job_wrapper.store.io_types import (
        Entry as Entry,
    )
    from job_wrapper.store.io_types import (
        Item as Item,
    )
    from job_wrapper.store.io_types import (
        ItemKind as ItemKind,
    )
    from job_wrapper.store.io_types import (
        Kind as Kind,
    )
    from job_wrapper.store.io_types import (
        Manifest as Manifest,
    )
    from job_wrapper.store.io_types import (
        ObjectRef as ObjectRef,
    )
    from job_wrapper.store.io_types import (
        ObjectStore as ObjectStore,
    )
    from job_wrapper.store.io_types import (
        Part as Part,
    )
    from job_wrapper.store.io_types import (
        Segment as Segment,
    )
    from job_wrapper.store.io_types import (
        Summary as Summary,
    )
    from job_wrapper.store.io_types import (
        Writer as Writer,
    )
    from job_wrapper.store.log import RunFinished as RunFinished
    from job_wrapper.store.log import RunLog as RunLog
    from job_wrapper.store.log import find_runs as find_runs
    from job_wrapper.store.open import open_store as open_store
    from job_wrapper.store.paths import job_pointer as job_pointer
    from job_wrapper.store.paths import run_path as run_path
    from job_wrapper.store.probe import StoreReport as StoreReport
    from job_wrapper.store.read import (
        read_item as read_item,
    )
    from job_wrapper.store.read import (
        read_item_into as read_item_into,
    )
    from job_wrapper.store.read import (
        read_items_into as read_items_into,
    )
    from job_wrapper.store.read import (
        read_manifest as read_manifest,
    )
    from job_wrapper.store.read import (
        read_part as read_part,
    )
    from job_wrapper.store.read import (
        verify_checkpoint as verify_checkpoint,
    )
    from job_wrapper.store.retention import collect as collect
    from job_wrapper.store.write import (
        PartWriter as PartWriter,
    )
    from job_wrapper.store.write import (
        find_holes as find_holes,
    )
    from job_wrapper.store.write import (
        write_manifest as write_manifest,
    )

_WHERE = {
    "check": ("check_store",),
    "claim": ("Claim",),
    "io_types": (
        "CommitRef", "Entry", "Item", "ItemKind", "Kind", "Manifest", "ObjectRef", "ObjectStore", "Part", "Segment", "Summary", "Writer",
    ),
    "log": ("RunFinished", "RunLog", "find_runs"),
    "open": ("mark_of", "open_store"),
    "paths": ("job_pointer", "run_path"),
    "probe": ("StoreReport",),
    "read": ("read_item", "read_item_into", "read_items_into", "read_manifest", "read_part", "verify_checkpoint"),
    "retention": ("collect",),
    "write": ("PartWriter", "find_holes", "write_manifest"),
}  # fmt: skip
_MODULES = {name: module for module, names in _WHERE.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
