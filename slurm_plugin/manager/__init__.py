"""The loop on the controller: observe, decide, apply. The only room that acts (DESIGN §2, docs/architecture.md).

A pass is idempotent and bounded in time. What can't be had (slurmctld, one cloud, the store) is left out of the pass, said once, and
nothing is concluded from its absence. The manager may die between any two acts: what it was about to do is in the ledger, in Slurm's
state or in the cloud's tags, and the next pass goes on from there.
"""

from __future__ import annotations

import faulthandler
import signal
import socket
import sys
import threading
from pathlib import Path

from job_wrapper.errors import SpotburstError


def main(config_path: Path) -> int:
    """Run in the foreground until SIGTERM or SIGINT, or until another controller's manager is to act. Returns the exit code.

    What is wrong is one clear message on stderr. Where the cluster has several controllers, it may first stand by (``turn``).
    """
    from slurm_plugin.config import load_config
    from slurm_plugin.manager.loop import Loop
    from slurm_plugin.manager.say import set_up_logging
    from slurm_plugin.manager.service import Service
    from slurm_plugin.manager.turn import Post, my_turn
    from slurm_plugin.slurm.connect import connect
    from slurm_plugin.slurm.controllers import Watch

    set_up_logging()
    # The watchdog ends a pass that hangs by SIGABRT: all threads then say where they are.
    faulthandler.enable()
    service, stopped = Service(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        config = load_config(config_path)
        watch = Watch(connect(config.slurm), socket.gethostname())
        with my_turn(config.state_dir, watch, service, stopped) as lock:
            if lock is None:
                return 0
            loop = Loop.build(config, service, Post(lock, watch))
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: loop.stop())
            if not stopped.is_set():
                loop.run()
    except SpotburstError as error:
        for line in str(error).splitlines():
            print(f"spotburst: {line}", file=sys.stderr)
        return int(error.exit_code)
    return 0
