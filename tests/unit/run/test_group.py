"""The program's process group is ended once, by its number, and never by it again: that may be another group's then."""

from __future__ import annotations

import subprocess
import sys

import pytest

ANOTHERS = """
import os, time
from job_wrapper.run.child import Child

def refuse(group, number):
    raise PermissionError

os.killpg = refuse
child = Child.prepare()
child.start(["true"], os.environ)
while (code := child.reap()) is None:
    time.sleep(0.01)
child.close()
print(code)
"""
GUARD = """
import os, subprocess, sys
from job_wrapper.run.child import _guard

word, patience = sys.argv[1:]
out, into = os.pipe()
other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
guard = os.fork()
if guard == 0:
    os.close(into)
    _guard(out, other.pid, ())
os.close(out)
os.write(into, word.encode())
os.close(into)
os.waitpid(guard, 0)
try:
    print(other.wait(float(patience)))
except subprocess.TimeoutExpired:
    print("lives")
other.kill()
other.wait()
"""


def said(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_that_leaves_only_another_users_process_has_ended_as_it_did() -> None:
    """As `sudo` leaves one; it can't be killed."""
    assert said(ANOTHERS) == "0"


@pytest.mark.parametrize(
    ("word", "patience", "found"), [("", "60", "-9"), ("-", "0.5", "lives")], ids=["wrapper first", "program first"]
)
def test_the_guard_ends_the_group_unless_the_wrapper_has(word: str, patience: str, found: str) -> None:
    assert said(GUARD, word, patience) == found
