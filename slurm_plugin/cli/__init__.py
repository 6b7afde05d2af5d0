"""``spotburst``. ``run``, ``progress`` and ``agent`` start at once; everything else may take the time to import what it needs."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import NoReturn

from job_wrapper.standard_streams import lead_somewhere


def main() -> int:
    """The console command; returns the exit code."""
    lead_somewhere()
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "run":
        _run(sys.argv[2:])
    if command == "agent":
        from job_wrapper.agent import main as agent

        return agent(sys.argv[2:])
    if command == "progress":
        from job_wrapper.tell import main as progress

        return progress(sys.argv[2:])
    from slurm_plugin.cli.app import start

    return start(sys.argv[1:])


def _help() -> NoReturn:
    from job_wrapper.run.options import parser
    from slurm_plugin.cli.examples import EXAMPLES

    print(f"{parser().format_help()}\nExamples:")
    for typed, why in EXAMPLES["run"]:
        print(f"  {typed}\n      {why}")
    raise SystemExit(0)


def _run(arguments: list[str]) -> NoReturn:
    """The wrapper, which a program waits for at both ends: collecting garbage while modules load finds none, and taking the interpreter
    apart at the end frees what the system frees anyway. Each costs a program's start about 5 % of the wrapper's processor time."""
    from job_wrapper.run.signals import hear_from_now_on

    hear_from_now_on()
    if arguments in (["-h"], ["--help"]):
        _help()
    gc.disable()
    from job_wrapper.run.cli import main as run

    gc.freeze()
    gc.enable()
    code = run(arguments)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
