"""The tests' own processes end with their parents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.checkpoint.lifeline import of_session

FAMILY = """
import os, time
from tests.unit.checkpoint.lifeline import children_end_with_me
children_end_with_me()
for _ in range(2):
    print(os.getpid(), flush=True)
    if os.fork():
        time.sleep(600)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("killed", [0, 1])
def test_whoever_is_killed_takes_along_those_below(killed: int) -> None:
    """Even those that are stopped, and so could not look for their parent themselves."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    family = subprocess.Popen(
        [sys.executable, "-c", FAMILY], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with family:
        assert family.stdout
        members = [int(family.stdout.readline()) for _ in range(3)]
        assert members[0] == family.pid
        assert sorted(of_session(family.pid)) == sorted(members)
        try:
            for member in members[1:]:
                os.kill(member, signal.SIGSTOP)
            os.kill(members[killed], signal.SIGKILL)
            end = time.monotonic() + 60
            while of_session(family.pid) != members[:killed]:
                assert time.monotonic() < end, "some are left"
                time.sleep(0.02)
        finally:
            for member in of_session(family.pid):
                os.kill(member, signal.SIGKILL)
