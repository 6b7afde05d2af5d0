"""The loop on the controller: observe, decide, apply. The only room that acts (DESIGN §2, docs/architecture.md).

A pass is idempotent and bounded in time. What can't be had (slurmctld, one cloud, the store) is left out of the pass, said once, and
nothing is concluded from its absence. The manager may die between any two acts: what it was about to do is in the ledger, in Slurm's
state or in the cloud's tags, and the next pass goes on from there.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from job_wrapper.errors import SpotburstError


def main(config_path: Path) -> int:
    """Run in the foreground until SIGTERM or SIGINT. Returns the exit code; what is wrong is one clear message on stderr."""
    from slurm_plugin.config import load_config
    from slurm_plugin.manager.loop import Loop
    from slurm_plugin.manager.say import set_up_logging
    from slurm_plugin.manager.single import only_one

    set_up_logging()
    try:
        config = load_config(config_path)
        with only_one(config.state_dir):
            loop = Loop.build(config)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: loop.stop())
            loop.run()
    except SpotburstError as error:
        for line in str(error).splitlines():
            print(f"spotburst: {line}", file=sys.stderr)
        return int(error.exit_code)
    return 0
