"""The run's log (fencing), packs (data), manifests, restore and retention over an object store."""

from __future__ import annotations
