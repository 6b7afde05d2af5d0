"""A whole private cluster on this host: munged, slurmctld and the manager, with machines of the embedded cloud. For demo and tests."""

from __future__ import annotations
