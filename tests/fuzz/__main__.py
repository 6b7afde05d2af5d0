"""Feed every reader of what comes from outside with what nobody wrote.

python -m tests.fuzz [--seconds N] [--seed N] [--keep FOLDER] [NAME …]    names of targets, or beginnings of them

All targets take turns of the same length in one process. An input that raises what it may not, takes more than some seconds or much memory,
or loses what was stored, is a fault: it is told, and with --keep it is written to FOLDER, as are the inputs that reached something new. The next
call begins with both.
Exit code 1 where there was a fault.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import structlog

from tests.fuzz.campaign import Round, fuzz, name_of
from tests.fuzz.target import WAIT, Fault, Target, alarms
from tests.fuzz.targets import all_targets

TURN = 10.0
"""Seconds at a time."""


def main() -> int:
    """Run it, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0, help="in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    quiet()
    chosen = [t for t in all_targets() if not given.names or t.name.startswith(tuple(given.names))]
    if not chosen:
        parser.error(f"no such target; there are: {' '.join(t.name for t in all_targets())}")
    sums = {target.name: Round() for target in chosen}
    turns = max(1, round(given.seconds / len(chosen) / TURN))
    turn = given.seconds / len(chosen) / turns
    with alarms():
        for number in range(turns):
            for target in chosen:
                _turn(target, sums[target.name], turn, given.seed * 1000 + number, given.keep)
    return _table(sums)


def quiet() -> None:
    """What the readers log of bad input is of no interest here."""
    structlog.configure(processors=[_drop])
    logging.disable(logging.CRITICAL)


def _drop(*_: object) -> NoReturn:
    raise structlog.DropEvent


def _turn(target: Target, sum_: Round, seconds: float, seed: int, keep: Path | None) -> None:
    known = list(sum_.kept)
    current = None
    if keep is not None:
        folder = keep / "inputs" / target.name
        folder.mkdir(parents=True, exist_ok=True)
        if not sum_.inputs:
            before = [*folder.iterdir(), *(keep / "faults").glob(f"{target.name}-*-*")]
            known += [path.read_bytes() for path in sorted(before)]
        current = keep / "current"
    faulthandler.dump_traceback_later(seconds + 5 * WAIT, exit=True)
    done = fuzz(target, seed=seed, seconds=seconds, known=known, current=current)
    faulthandler.cancel_dump_traceback_later()
    sum_.inputs += done.inputs
    sum_.seconds += done.seconds
    sum_.lines = max(sum_.lines, done.lines)
    sum_.kept += done.kept
    for key, fault in done.faults.items():
        if sum_.faults.setdefault(key, fault) is fault:
            _tell(target.name, fault, keep)
    if keep is not None:
        with (keep / "turns").open("a") as file:
            file.write(f"{target.name} {done.inputs} {done.seconds:.1f}\n")
        for data in done.kept:
            (folder / name_of(data)).write_bytes(data)


def _tell(name: str, fault: Fault, keep: Path | None) -> None:
    print(f"{name}: {fault.kind}: {fault.place}\n  input {fault.data[:200]!r}\n{fault.told}", flush=True)
    if keep is not None:
        (keep / "faults").mkdir(parents=True, exist_ok=True)
        (keep / "faults" / f"{name}-{fault.kind}-{name_of(fault.data)}").write_bytes(fault.data)


def _table(sums: dict[str, Round]) -> int:
    print(f"{'target':<26}{'inputs':>10}{'seconds':>9}{'lines':>7}{'faults':>8}")
    for name, one in sums.items():
        print(f"{name:<26}{one.inputs:>10}{one.seconds:>9.0f}{one.lines:>7}{len(one.faults):>8}")
    inputs, seconds = sum(s.inputs for s in sums.values()), sum(s.seconds for s in sums.values())
    faults = sum(len(s.faults) for s in sums.values())
    print(f"{'in all':<26}{inputs:>10}{seconds:>9.0f}{'':>7}{faults:>8}")
    return 1 if faults else 0


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads of servers and libraries are nothing to wait for
