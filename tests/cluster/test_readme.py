"""README.md's first job: its lines are typed one after the other, as they stand, but for the folder."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.pages import ROOT, block, blocks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

GUIDES = ("user-guide.md", "admin-guide.md", "operations.md")
LOOKING = re.compile(
    r"(spotburst (offerings|describe|attempts|checkpoints|cost|nodes|plan|render|report|check)|squeue|sinfo)\b"
)
"""Commands of the guides that change nothing: all of them are typed."""
FOLDER, OUTPUT = "/tmp/my-cluster", "/tmp/train-"
BOUND = 300.0
"""Seconds for what the README says takes up to 45."""


class Shell:
    """One shell, as a reader has it: what a line sets holds for those after it."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._bash = subprocess.Popen(
                ["bash"], cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, text=True
            )

    def type(self, line: str) -> tuple[int, str]:
        """Its exit status, and what it says."""
        assert self._bash.stdin is not None
        before = len(self._log.read_text(errors="replace"))
        self._bash.stdin.write(f'{line}\necho "[status $?]"\n')
        self._bash.stdin.flush()
        until = time.monotonic() + BOUND
        while not (found := re.search(r"\[status (\d+)\]\n\Z", said := self._log.read_text(errors="replace")[before:])):
            assert time.monotonic() < until, f"{line}: {said}"
            assert self._bash.poll() is None, f"{line}: {said}"
            time.sleep(0.1)
        return int(found[1]), said[: found.start()]

    def until(self, line: str, words: str) -> str:
        """Typed again and again until it says those words."""
        until = time.monotonic() + BOUND
        while words not in (said := self.type(line)[1]):
            assert time.monotonic() < until, f"{line}: {said}"
            time.sleep(0.5)
        return said

    def close(self) -> None:
        """The reader goes home."""
        self._bash.kill()
        self._bash.wait()


def look(shell: Shell) -> None:
    """The guides' commands for looking, at job 1 instead of 123."""
    typed = [
        re.sub(r"\b123\b", "1", line.partition(" >/")[0])
        for page in GUIDES
        for language, text in blocks(ROOT / "docs" / page)
        for line in text.splitlines()
        if language == "sh" and LOOKING.match(line)
    ]
    assert len(typed) > 10
    for line in dict.fromkeys(typed):
        status, said = shell.type(line)
        assert "Traceback" not in said
        assert said.strip(), line
        if not line.startswith("spotburst check"):  # it finds what this cluster has not, such as a service of systemd's
            assert status == 0, f"{line}: {said}"


@pytest.fixture
def shell(able: None, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    try:
        yield made
    finally:
        made.close()
        # A cluster that a user starts outlives the shell.
        spotburst = Path(sys.executable).with_name("spotburst")
        subprocess.run([spotburst, "local", "down", tmp_path / "cluster"], check=False, capture_output=True)


def test_a_first_job(shell: Shell, tmp_path: Path) -> None:
    text = block("README.md", "sh", "spotburst local up")
    lines = text.replace(FOLDER, str(tmp_path / "cluster")).replace(OUTPUT, f"{tmp_path}/train-").splitlines()
    assert len(lines) <= 10
    out = tmp_path / "train-1.out"
    for line in lines:
        if line.startswith("squeue"):
            shell.until(line, " R ")
            shell.until(f"cat {out}", "step 20 ")
            continue
        if line.startswith("spotburst local down"):
            shell.until(f"cat {out}", "resumed at step")
            look(shell)
        status, said = shell.type(line)
        assert status == 0, f"{line}: {said}"
        if line.startswith("spotburst local reclaim"):
            assert re.search(r"ends in 1[012]\d s", said)
        elif line.startswith("spotburst describe"):
            assert "aws reclaim" in shell.until(line, "attempt 2"), "what happened is told"
        elif line.startswith("spotburst attempts"):
            assert "aws reclaim" in said
        elif line.startswith("sbatch"):
            assert said == "Submitted batch job 1\n"
    assert lines[-1].startswith("spotburst local down")
    status, said = shell.type(f"spotburst local up {tmp_path / 'cluster'}")
    assert status == 0
    assert "the first job's number is 2." in said
