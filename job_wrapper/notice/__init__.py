"""Reclaim notices: the record, and the watchers that hear it from a cloud's metadata, from Slurm, or from the node agent."""

from __future__ import annotations

from job_wrapper.notice.types import Notice, Watcher

__all__ = ["Notice", "Watcher"]
