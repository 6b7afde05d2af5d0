"""``spotburst``. ``run``, ``progress`` and ``agent`` start at once; everything else may take the time to import what it needs."""

from __future__ import annotations

import sys


def main() -> int:
    """The console command; returns the exit code."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "run":
        from job_wrapper.run import main as run

        return run(sys.argv[2:])
    if command == "agent":
        from job_wrapper.agent import main as agent

        return agent(sys.argv[2:])
    if command == "progress":
        from job_wrapper.tell import main as progress

        return progress(sys.argv[2:])
    from slurm_plugin.cli.app import start

    return start(sys.argv[1:])
