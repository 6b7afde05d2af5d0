"""A session on a terminal: the program has it, as if there were no wrapper."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

BUSY = "sh -c 'echo bu''sy; exec sleep 300'\n"
"""A command that says by itself that it has the terminal; what is typed does not say it."""


class Terminal:
    """``spotburst run`` as the leader of a terminal's session, as ``srun --pty`` starts it."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(PS1="$ ", HOME=str(folder))
            for name in [name for name in os.environ if name.startswith(("SLURM", "SPOTBURST"))]:
                del os.environ[name]
            run = "import sys; from job_wrapper.run import main; sys.exit(main(sys.argv[1:]))"
            options = f"--run t --uri file://{folder}/store --state-dir {folder}/state --".split()
            os.execv(sys.executable, [sys.executable, "-c", run, *options, *command])  # noqa: S606
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, text: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, f"no {text!r} in {self.shown!r}"
            if select.select([self._fd], [], [], 0.5)[0]:
                try:
                    self.shown += os.read(self._fd, 4096).decode(errors="replace")
                except OSError:
                    assert text in self.shown, f"no {text!r} in {self.shown!r}"
        self.shown = self.shown.partition(text)[2]

    def code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "store").mkdir()
    yield tmp_path


def test_a_shell_has_its_job_control(folder: Path) -> None:
    terminal = Terminal(folder, "bash", "--norc", "-i")
    terminal.until("$ ")
    assert "no job control" not in terminal.shown
    terminal.type(BUSY)
    terminal.until("busy")
    terminal.type("\x1a")
    terminal.until("Stopped")
    terminal.type("jobs; kill -9 %1; echo do''ne\n")
    terminal.until("done")
    terminal.type(BUSY)
    terminal.until("busy")
    terminal.type("\x03")
    terminal.until("$ ")
    terminal.type("exit 5\n")
    assert terminal.code() == 5


def test_a_program_that_is_stopped_goes_on_and_an_interrupt_ends_it(folder: Path) -> None:
    script = "import time\nprint('up', flush=True)\ntry:\n  while True: time.sleep(0.2); print('on', flush=True)\nexcept KeyboardInterrupt: print('interrupted')\n"
    terminal = Terminal(folder, sys.executable, "-c", script)
    terminal.until("up")
    terminal.type("\x1a")
    terminal.until("^Z")
    terminal.until("on")
    terminal.until("on")
    terminal.type("\x03")
    terminal.until("interrupted")
    assert terminal.code() == 0
