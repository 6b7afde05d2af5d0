"""What a program is given by its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from job_wrapper.protocol import COMMITS_VARIABLE, SOCKET_VARIABLE
from job_wrapper.run.attempt import Attempt
from job_wrapper.run.options import EPHEMERAL

ALLOW_CONFIG_CHANGE = "SPOTBURST_ALLOW_CONFIG_CHANGE"
"""Told to the program (``checkpoint.config``)."""


def surroundings(attempt: Attempt, socket: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The wrapper's own environment, without an outer wrapper's words, and with this attempt's; ``socket`` is the events socket's path."""
    made = dict(environ)
    for name in (SOCKET_VARIABLE, "SPOTBURST_RUN", "SPOTBURST_COMPLETED", "SPOTBURST_TOTAL"):
        made.pop(name, None)
    made |= {
        "SPOTBURST_EPOCH": str(attempt.epoch),
        COMMITS_VARIABLE: "1" if attempt.commits else "0",
        "SPOTBURST_RESTORED": "0" if attempt.restored is None else "1",
    }
    if attempt.options.continuity != EPHEMERAL:
        made |= {SOCKET_VARIABLE: socket, "SPOTBURST_RUN": attempt.run}
    # torchrun would take Slurm's warning for itself and end its ranks; it then keeps the signals as it finds them: ignored.
    made.setdefault("PET_SIGNALS_TO_HANDLE", "SIGINT,SIGQUIT")
    if attempt.options.allow_config_change:
        allowed = (made.get(ALLOW_CONFIG_CHANGE, ""), *attempt.options.allow_config_change)
        made[ALLOW_CONFIG_CHANGE] = ",".join(filter(None, allowed))
    if attempt.counters is not None:
        made |= attempt.counters.environment()
    if attempt.roots:
        made["SPOTBURST_STATE_DIR"] = str(attempt.roots[0])
        made["SPOTBURST_STATE_DIRS"] = os.pathsep.join(map(str, attempt.roots))
    return made
