"""Running a command: bounded, in a known environment, refusals told from absence. The commands are small real programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.slurm import command
from slurm_plugin.slurm.cli import CliClient
from tests.unit.run.programs import alive


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_output(tmp_path: Path) -> None:
    said = command.run([str(program(tmp_path, "c", 'printf "a\\377b"; echo warning >&2'))], env={}, timeout=60)
    assert said == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize(
    "words",
    [
        "slurm_update error: Invalid node state specified",
        "Invalid job id specified for job 9",
        "Access/permission denied for job 9",
        "Job is pending execution for job 1",
        "squeue: unrecognized option '--jsn'",
    ],
)
def test_no_is_refused_with_slurms_words(tmp_path: Path, words: str) -> None:
    with pytest.raises(SlurmRefused) as refused:
        command.run([str(program(tmp_path, "c", f'echo "{words}" >&2; exit 1'))], env={}, timeout=60)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_update error: Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
        "Unexpected message received for job 1",
        "slurm_load_jobs error: Protocol authentication error",
        "error: If munged is up, restart with --num-threads=10",
        "slurm_load_node error: Slurm backup controller in standby mode",
        "fatal: Could not establish a configuration source",
        "Resource temporarily unavailable",
    ],
)
def test_silence_is_unavailable(tmp_path: Path, words: str) -> None:
    with pytest.raises(SlurmUnavailable):
        command.run([str(program(tmp_path, "c", f'echo "{words}" >&2; exit 1'))], env={}, timeout=60)


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f'sleep 1000 & echo $! >{tmp_path}/new; mv {tmp_path}/new {tmp_path}/child; trap "" TERM; wait'
    until = time.monotonic() + 120

    class Begun(subprocess.Popen[bytes]):
        """Its time begins once it has its child."""

        def communicate(self, *given: Any, **more: Any) -> Any:
            while not (tmp_path / "child").exists() and time.monotonic() < until:
                time.sleep(0.01)
            return super().communicate(*given, **more)

    monkeypatch.setattr(subprocess, "Popen", Begun)
    with pytest.raises(SlurmUnavailable, match=r"no answer within 0\.5 s"):
        command.run([str(program(tmp_path, "c", script))], env={"PATH": os.environ["PATH"]}, timeout=0.5)
    child = int((tmp_path / "child").read_text())
    while alive(child):
        assert time.monotonic() < until, "the child runs on"
        time.sleep(0.05)


def test_a_killed_command_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable):
        command.run([str(program(tmp_path, "c", "kill -9 $$"))], env={}, timeout=60)


def test_a_missing_command_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable, match=r"slurm.bin_dir") as missing:
        CliClient(tmp_path, tmp_path / "slurm.conf").jobs()
    assert f"{tmp_path}/squeue" in str(missing.value)


def test_users_defaults_do_not_reach_the_commands(tmp_path: Path) -> None:
    users = {
        "SQUEUE_USERS": "me",
        "SLURM_CLUSTERS": "other",
        "SINFO_FORMAT": "%n",
        "SLURM_CONF": "/old",
        "HOME": "/h",
        "LC_ALL": "de_DE",
    }
    made = command.environment(users, tmp_path / "slurm.conf")
    assert made == {
        "HOME": "/h",
        "LC_ALL": "C",
        "SLURM_CONF": f"{tmp_path}/slurm.conf",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
    }
    assert command.environment(users, None)["SLURM_CONF"] == "/old"


def test_commands_are_found_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "squeue", """echo '{"jobs": []}'""")
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}")
    assert CliClient(timeout=60).jobs() == ()


def test_a_long_argument_is_cut_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(SlurmRefused) as refused:
        command.run([str(program(tmp_path, "c", "echo no >&2; exit 1")), "x" * 5000], env={}, timeout=60)
    assert len(str(refused.value)) < 1000
