"""The process that holds libslurm: whatever it does, whoever asks gets an answer or a reason, and the next question a process that works.

The pyslurm here is a small module that hangs, dies and refuses on demand; the real one answers in tests/cluster/test_slurm_client.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_plugin.config import Slurm
from slurm_plugin.errors import ConfigError, SlurmRefused, SlurmUnavailable
from slurm_plugin.slurm import connect, pyslurm_client
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.parse import job
from slurm_plugin.slurm.pyslurm_client import PyslurmClient
from slurm_plugin.slurm.pyslurm_worker import job_of
from slurm_plugin.slurm.worker import Worker

MODULE = """
import os, sys, time
__version__ = "22.5.3"
print("libslurm says something")

class Job:
    def __init__(self, number): self.number = number
    def requeue(self, hold):
        if self.number == 1: raise RuntimeError("Invalid job id specified")
        if self.number == 2: raise RuntimeError("Unable to contact slurm controller (connect failure)")
        if self.number == 3: time.sleep(60)
        if self.number == 4:
            os.write(2, b"fatal: Unable to process configuration file\\n")
            os._exit(1)
        if self.number == 5: raise SystemExit(3)
        if self.number == 6:
            os.write(int(sys.argv[1]), b"\\0")
            time.sleep(60)
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may take its time to begin, to answer, and to end once it has closed its pipe: the machine is busy."""
    wait = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", lambda process, timeout=None: wait(process, timeout and 120.0))
    monkeypatch.setattr(connect, "PyslurmClient", partial(PyslurmClient, timeout=120.0))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    (tmp_path / "pyslurm.py").write_text(MODULE)
    worker = Worker({**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=120.0)
    yield worker
    worker.close()


@pytest.mark.parametrize(
    ("number", "error", "words"),
    [
        (1, SlurmRefused, "requeue 1: Invalid job id specified"),
        (2, SlurmUnavailable, "requeue 2: Unable to contact slurm controller"),
        (3, SlurmUnavailable, "requeue 3: no answer within 2 s"),
        (6, SlurmUnavailable, "requeue 6: no answer within 2 s"),
        (4, SlurmUnavailable, "requeue 4: .*status 1; .*fatal: Unable to process configuration file"),
        (5, SlurmUnavailable, "requeue 5: .*ended with status 3"),
    ],
)
def test_trouble_is_told_and_the_next_answer_comes(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception], words: str
) -> None:
    assert worker.ask("pyslurm", "version") == "22.5.3"
    with pytest.raises(error, match=words), monkeypatch.context() as short:
        if "no answer" in words:
            short.setattr(worker, "_timeout", 2.0)
        worker.ask(f"requeue {number}", "requeue", job_id=number, hold=False)
    assert worker.ask("pyslurm", "version") == "22.5.3"
    worker.ask("requeue 9", "requeue", job_id=9, hold=True)


def test_a_killed_process_is_begun_anew(worker: Worker) -> None:
    worker.ask("pyslurm", "version")
    assert worker._process is not None
    os.kill(worker._process.pid, signal.SIGKILL)
    worker._process.wait()
    with pytest.raises(SlurmUnavailable, match="ended with status -9"):
        worker.ask("pyslurm", "version")
    assert worker.ask("pyslurm", "version") == "22.5.3"


def test_it_ends_with_whoever_asked(worker: Worker) -> None:
    worker.ask("pyslurm", "version")
    process = worker._process
    assert process is not None
    assert worker._pipe is not None
    worker._pipe.close()
    worker._pipe = None
    assert process.wait(60.0) == 0


def test_no_pyslurm_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "pyslurm.py").write_text("raise ImportError('libslurm.so.38: cannot open shared object file')")
    worker = Worker({**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=120.0)
    with pytest.raises(SlurmUnavailable, match=r"libslurm\.so\.38: cannot open"):
        worker.ask("pyslurm", "version")
    worker.close()


COMMANDS = """#!/bin/sh
echo "SLURM_VERSION           = 22.05.8"
"""


def settings(folder: Path, client: str) -> Slurm:
    for name in ("scontrol", "slurm.conf"):
        (folder / name).write_text(COMMANDS)
        (folder / name).chmod(0o755)
    return Slurm.model_validate({"conf": folder / "slurm.conf", "bin_dir": folder, "client": client})


@pytest.mark.parametrize(("built", "chosen"), [("22.5.3", PyslurmClient), ("24.11.0", CliClient)])
def test_auto_takes_the_pyslurm_of_this_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: str, chosen: type
) -> None:
    (tmp_path / "pyslurm.py").write_text(f"__version__ = {built!r}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    client = connect.connect_for_long(settings(tmp_path, "auto"))
    assert type(client) is chosen
    if isinstance(client, PyslurmClient):
        client.close()


def test_pyslurm_that_is_asked_for_and_can_not_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "installed", lambda: False)
    with pytest.raises(ConfigError, match="not installed here"):
        connect.connect_for_long(settings(tmp_path, "pyslurm"))
    assert type(connect.connect_for_long(settings(tmp_path, "auto"))) is CliClient
    monkeypatch.setattr(connect, "installed", lambda: True)
    (tmp_path / "pyslurm.py").write_text("__version__ = '25.11.2'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"built for Slurm 25\.11, and slurmctld is 22\.05\.8"):
        connect.connect_for_long(settings(tmp_path, "pyslurm"))


@pytest.mark.parametrize(
    ("array", "task", "waiting", "name_id"),
    [(None, None, None, "7"), (7, 3, None, "7_3"), (7, None, None, "7_0"), (7, None, "1-9", "7_[1-9%2]")],
)
def test_names_of_array_tasks(array: int | None, task: int | None, waiting: str | None, name_id: str) -> None:
    class Record(SimpleNamespace):
        def __getattr__(self, name: str) -> None:
            return None

    one = Record(
        id=7,
        state="PENDING",
        array_id=array,
        array_task_id=task,
        array_tasks_waiting=waiting,
        array_tasks_parallel=2,
    )
    assert job(job_of(one, {})).name_id == name_id


def test_installed_imports_nothing() -> None:
    pyslurm_client.installed()
    assert "pyslurm" not in sys.modules
