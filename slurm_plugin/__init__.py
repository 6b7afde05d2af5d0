"""The controller side of spotburst: Slurm, the clouds, placement, reconciling and requeueing. Never imports torch."""

from __future__ import annotations
