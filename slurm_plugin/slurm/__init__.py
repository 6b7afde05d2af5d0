"""The one door to Slurm: records, a client protocol and its implementations, hostlists."""

from __future__ import annotations
