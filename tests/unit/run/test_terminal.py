"""A session on a terminal: the program has it, as if there were no wrapper."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.terminal import Terminal

BUSY = "sh -c 'echo bu''sy; exec sleep 300'\n"
"""A command that says by itself that it has the terminal; what is typed does not say it."""


def wrapped(folder: Path, *command: str) -> Terminal:
    """``spotburst run`` on a terminal."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SPOTBURST"))}
    run = "import sys; from job_wrapper.run import main; sys.exit(main(sys.argv[1:]))"
    options = f"--run t --uri file://{folder}/store --state-dir {folder}/state --".split()
    return Terminal([sys.executable, "-c", run, *options, *command], {**environ, "PS1": "$ ", "HOME": str(folder)})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "store").mkdir()
    yield tmp_path


def test_a_shell_has_its_job_control(folder: Path) -> None:
    with wrapped(folder, "bash", "--norc", "-i") as terminal:
        terminal.until("$ ")
        assert "no job control" not in terminal.text
        terminal.type(BUSY)
        terminal.until("busy")
        terminal.type("\x1a")
        terminal.until("Stopped")
        # A shell with a stopped job does not exit, and one that is killed is stopped until it has ended.
        terminal.type("jobs; kill -9 %1; while jobs %1 >/dev/null 2>&1; do sleep 0.1; done; echo go''ne\n")
        terminal.until("gone")
        terminal.type(BUSY)
        terminal.until("busy")
        terminal.type("\x03")
        terminal.until("$ ")
        terminal.type("exit 5\n")
        assert terminal.end() == 5


def test_a_program_that_is_stopped_goes_on_and_an_interrupt_ends_it(folder: Path) -> None:
    script = "import time\nprint('up', flush=True)\ntry:\n  while True: time.sleep(0.2); print('on', flush=True)\nexcept KeyboardInterrupt: print('interrupted')\n"
    with wrapped(folder, sys.executable, "-c", script) as terminal:
        terminal.until("up")
        terminal.type("\x1a")
        terminal.until("^Z")
        terminal.until("on")
        terminal.until("on")
        terminal.type("\x03")
        terminal.until("interrupted")
        assert terminal.end() == 0
