"""The node side of spotburst: the wrapper, the run's log, checkpoints and notices.

Nothing here imports ``slurm_plugin``, and importing this package imports neither torch nor any cloud SDK.
"""

from __future__ import annotations
