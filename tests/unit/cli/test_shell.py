"""What ``spotburst shell`` runs on the node, here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.cli.shell import INSIDE

JOB = "4000000017"
KEY = "s3cret with spaces\nand a second line"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[None]:
    """A job's program under the wrapper."""
    own = {
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": JOB,
        "SPOTBURST_EPOCH": "3",
        "KEY": KEY,
        "SPOTBURST_SOCKET": "/x",
    }
    running = subprocess.Popen(["sleep", "600"], env=own, cwd=tmp_path)
    yield
    running.kill()
    running.wait()


def inside(*words: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    own = {"PATH": path, "TERM": "screen"}
    return subprocess.run(["sh", "-c", INSIDE, "sh", JOB, *words], env=own, capture_output=True, text=True, check=False)


def test_a_command_has_the_programs_environment_and_folder(program: None, tmp_path: Path) -> None:
    asked = "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"
    done = inside("python3", "-c", asked)
    assert done.returncode == 0, done.stderr
    folder, found = json.loads(done.stdout)
    assert folder == str(tmp_path)
    assert (found["KEY"], found["SPOTBURST_EPOCH"], found["TERM"]) == (KEY, "3", "screen")
    assert (found["SPOTBURST_SHELL"], found["SPOTBURST_SOCKET"]) == ("1", "")
    missing = inside("no-such-program")
    assert missing.returncode == 1
    assert missing.stderr == "no-such-program: No such file or directory\n"


def test_none_of_the_environment_is_among_arguments_which_others_can_read(program: None, tmp_path: Path) -> None:
    told, log = tmp_path / "bin", tmp_path / "log"
    told.mkdir()
    for name in ("env", "python3", "sh", "tr", "xargs"):
        real = shutil.which(name)
        assert real is not None
        (told / name).write_text(f'#!/bin/sh\necho "$0 $*" >>{log}\nexec {real} "$@"\n')
        (told / name).chmod(0o755)
    done = inside("true", path=f"{told}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert "true" in log.read_text()
    assert "s3cret" not in log.read_text()
