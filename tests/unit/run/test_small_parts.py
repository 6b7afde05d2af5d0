"""Identity, options, bounds, Slurm's answers: pure values."""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from job_wrapper.errors import MaxAttempts, NoProgress, StoreError, StoreRefused, UsageError
from job_wrapper.node_config import NodeConfig, load_node_config
from job_wrapper.run.attempt import Attempt
from job_wrapper.run.bounds import Bounds, check_bounds
from job_wrapper.run.counters import Counters
from job_wrapper.run.events import Save
from job_wrapper.run.identity import BATCH_STEP, _number, identify
from job_wrapper.run.local_job import local_job_alive, local_job_id
from job_wrapper.run.oom import memory_files, oom_kills
from job_wrapper.run.options import _count, parse_duration, parse_options, parse_size
from job_wrapper.run.rules import Rules, Verdict, judge_signal
from job_wrapper.run.server import Server, remove_dead, socket_path
from job_wrapper.slurm_job import JobView, SlurmJob, parse_view
from job_wrapper.store.io_types import Summary
from job_wrapper.store.open import open_store
from job_wrapper.store.posix import PosixStore

STEP = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}


def test_identity_of_a_first_attempt() -> None:
    who = identify(STEP, NodeConfig(), "")
    assert (who.cluster, who.job_id, who.name_id, who.restart_count, who.step_id, who.rank, who.tasks) == (
        "c", "7", "7", 0, 0, 0, 1,
    )  # fmt: skip
    assert not who.in_batch_step


@pytest.mark.parametrize(("restarts", "seconds"), [(0, 60), (1, 1800)])
def test_a_job_that_has_work_to_lose_waits_longer_for_its_store(
    monkeypatch: pytest.MonkeyPatch, restarts: int, seconds: int
) -> None:
    now = [0.0]

    def away(*_: object, **__: object) -> None:
        raise StoreError("no answer")

    monkeypatch.setattr("job_wrapper.run.beginning.open_store", away)
    monkeypatch.setattr("time.sleep", lambda pause: now.__setitem__(0, now[0] + pause))
    options = parse_options(["--uri", "s3://b/p", "--", "true"], NodeConfig(), {})
    who = identify({**STEP, "SLURM_RESTART_COUNT": str(restarts)}, NodeConfig(), "")
    said: list[str] = []
    with pytest.raises(StoreError, match="no answer"):
        Attempt(options, who, NodeConfig(), None, said.append, steady=lambda: now[0]).begin()
    assert seconds <= now[0] < seconds + 10
    assert len(said) == 1


def test_what_is_told_of_the_restore_outlives_a_commit_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse_options(
        ["--uri", f"file://{tmp_path}", "--continuity", "restartable", "--", "true"], NodeConfig(), {}
    )
    attempt = Attempt(options, identify(STEP, NodeConfig(), ""), NodeConfig(), None, lambda text: None)
    attempt.begin()
    attempt.note_going(1.5)
    attempt.counters = Counters(1)
    asked = Save(None, None, {}, "interval", False)
    with monkeypatch.context() as away:
        away.setattr(PosixStore, "put_if_absent", raising(StoreRefused("no answer")))
        with pytest.raises(StoreRefused):
            attempt.commit(asked, None)
    first, _ = attempt.commit(asked, None)
    attempt.counters = Counters(2)
    second, _ = attempt.commit(asked, None)
    assert (first.body["restore_seconds"], "restore_seconds" in second.body) == (1.5, False)


def raising(error: Exception) -> Callable[..., Any]:
    def act(*_: object, **__: object) -> None:
        raise error

    return act


def test_identity_of_an_array_task_and_a_rank() -> None:
    more = {
        "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "4", "SLURM_RESTART_COUNT": "2", "SLURM_STEP_ID": "3",
        "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_NUM_NODES": "2",
    }  # fmt: skip
    who = identify({**STEP, **more}, NodeConfig(), "")
    assert (who.job_id, who.name_id, who.restart_count, who.step_id) == ("7", "5_4", 2, 3)
    assert (who.rank, who.tasks, who.nodes) == (1, 8, 2)


@pytest.mark.parametrize("step", [None, "4294967291", "batch"])
def test_batch_step(step: str | None) -> None:
    environ = {k: v for k, v in STEP.items() if k != "SLURM_STEP_ID"} | {"SLURM_NTASKS": "4"}
    if step is not None:
        environ["SLURM_STEPID"] = step
    who = identify(environ, NodeConfig(), "")
    assert who.in_batch_step
    assert (who.step_id, who.rank, who.tasks) == (BATCH_STEP, 0, 1)


def test_environment_that_is_not_slurms() -> None:
    with pytest.raises(UsageError, match="not a number"):
        identify({**STEP, "SLURM_RESTART_COUNT": "two"}, NodeConfig(), "")
    with pytest.raises(UsageError, match="no cluster"):
        identify({"SLURM_JOB_ID": "7"}, NodeConfig(), "")
    with pytest.raises(UsageError, match="--run NAME"):
        identify({}, NodeConfig(), "")
    assert identify({"SLURM_JOB_ID": "7"}, NodeConfig(cluster="d"), "").cluster == "d"


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("1.5h", 5400), ("1d", 86400), ("45", 45)])
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1s", "10x", "ten", "1e3"])
def test_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("10", 10), ("1K", 1024), ("512MiB", 512 << 20), ("1.5G", 3 << 29), ("1TiB", 1 << 40)]
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "10X", "10 kb", "-1"])
def test_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_size(text)


def test_arguments_before_settings_before_defaults() -> None:
    node = NodeConfig(uri="s3://b/p", endpoint_url="http://e", interval=60.0)
    plain = parse_options(["--", "prog", "--flag", "--", "x"], node)
    assert plain.command == ("prog", "--flag", "--", "x")
    assert (plain.uri, plain.endpoint_url, plain.interval, plain.keep, plain.requeue) == (
        "s3://b/p", "http://e", 60.0, 3, True,
    )  # fmt: skip
    given = parse_options(
        ["--uri", "file:///x/", "--interval", "5m", "--keep", "5", "--on-interruption", "fail", "prog", "-v"], node
    )
    assert (given.uri, given.endpoint_url, given.interval, given.keep, given.requeue) == (
        "file:///x",
        "",
        300.0,
        5,
        False,
    )
    assert given.command == ("prog", "-v")
    named = parse_options(["prog"], node, {"SPOTBURST_URI": "file:///y"})
    assert (named.uri, named.endpoint_url) == ("file:///y", "")
    with pytest.raises(UsageError, match="no program"):
        parse_options(["--"], node)
    with pytest.raises(UsageError, match="--uri"):
        parse_options(["--", "prog"], NodeConfig())
    with pytest.raises(SystemExit):
        parse_options(["--no-such", "--", "prog"], node)


def test_a_misspelt_option_is_told_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--statedir=/x", "--", "prog"], NodeConfig())
    assert ended.value.code == 2
    assert "did you mean --state-dir?" in capsys.readouterr().err


def test_bounds() -> None:
    bounds = Bounds(recoveries=8, barren=2)
    assert check_bounds(Summary(recoveries=8, barren=1), bounds) is None
    assert isinstance(check_bounds(Summary(recoveries=9), bounds), MaxAttempts)
    assert isinstance(check_bounds(Summary(recoveries=2, barren=2), bounds), NoProgress)


def test_view_of_a_job() -> None:
    # As 22.05.8 answers with SLURM_TIME_FORMAT=%s.
    view = parse_view("RUNNING;0;1795983572;1;1;1795983569;1795983592;9;\n")
    assert view == JobView("RUNNING", 0, 1795983572.0, True, True, 1795983569.0, 1795983592.0)
    assert view.running
    done = parse_view("COMPLETING;1;N/A;1;0;N/A;NONE;9;")
    assert (done.running, done.coming_back, done.batch, done.preempt_time) == (False, False, False, None)
    assert parse_view("RUNNING;1;N/A;1;2;1;2;9;").batch, (
        "as 24.11.5 answers of a batch job whose launch has failed once"
    )
    assert parse_view("RUNNING,COMPLETING;1;N/A;1;1;1;2;9;").state == "COMPLETING"
    assert parse_view("RUNNING,SIGNALING;1;N/A;1;1;1;2;9;").running
    assert parse_view("PENDING;3;N/A;0;1;N/A;N/A;9;").coming_back


@pytest.mark.parametrize(
    "view, verdict, reason",
    [
        (JobView("COMPLETING"), Verdict.LEAVE, "the job was ended"),  # scancel, the time limit: squeue tells no more
        (JobView("CANCELLED"), Verdict.LEAVE, "cancelled"),
        (JobView("COMPLETING", restart_count=1), Verdict.LEAVE, "requeued"),
        (JobView("RUNNING", start_time=5.0, preempt_time=7.0, end_time=9.0), Verdict.REQUEUE, "preempted"),
        (JobView("RUNNING", start_time=5.0, preempt_time=3.0), Verdict.GO_ON, "signal"),
    ],
)
def test_what_a_signal_meant(view: JobView, verdict: Verdict, reason: str) -> None:
    assert judge_signal(view, Rules())[:2] == (verdict, reason)


@pytest.mark.parametrize(
    "line", ["", "RUNNING", "RUNNING;x;N/A;1;1;N/A;N/A;9;", "a;b;c;d;e;f;g;h;", ";0;N/A;1;1;N/A;N/A;9;"]
)
def test_no_view(line: str) -> None:
    with pytest.raises(ValueError):
        parse_view(line)


def test_slurm_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    job = SlurmJob("7", bin_dir=str(tmp_path))
    assert job.view() is None
    assert job.alive("8"), "what is not known may be alive"
    assert "squeue" not in job.requeue()
    assert job.requeue() != ""


@pytest.mark.parametrize(
    ("script", "alive"),
    [
        ("echo 'RUNNING;0;N/A;1;1;1;N/A;9;'", True),
        ("echo 'COMPLETED;0;N/A;1;1;1;2;9;'", False),
        ("echo 'COMPLETED;0;N/A;1;1;1;2;9;'; echo 'PENDING;0;N/A;1;1;1;2;9;'", True),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", True),
        ("echo 'what?'", True),
        ("true", False),
    ],
)
def test_whether_another_job_lives(tmp_path: Path, script: str, alive: bool) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "squeue").chmod(0o755)
    assert SlurmJob("7", bin_dir=str(tmp_path)).alive("8_1") is alive


def test_local_process_is_known_by_its_start() -> None:
    import os

    mine = local_job_id(os.getpid())
    assert local_job_alive(mine)
    pid, start = mine.split("-")[1:3]
    assert not local_job_alive(mine.replace(f"-{start}-", f"-{int(start) + 1}-"))
    assert not local_job_alive(mine.replace(f"-{pid}-", "-4194304-"))
    assert not local_job_alive("123_4")


def test_a_dead_process_that_nobody_has_waited_for_holds_no_run() -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        job_id = local_job_id(process.pid)
        assert local_job_alive(job_id)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not local_job_alive(job_id)


def test_out_of_memory_counters(tmp_path: Path) -> None:
    proc = tmp_path / "cgroup"
    proc.write_text("0::/slurm/step_0\n5:memory:/slurm/step_0\n6:cpu,cpuacct:/x\nodd\n")
    assert [str(f.relative_to(tmp_path)) for f in memory_files(proc.read_text(), tmp_path)] == [
        "slurm/step_0/memory.events",
        "memory/slurm/step_0/memory.oom_control",
    ]
    assert oom_kills(proc, tmp_path) is None
    for name, text in (
        ("slurm/step_0/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("memory/slurm/step_0/memory.oom_control", "under_oom 0\noom_kill 1\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(proc, tmp_path) == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("interval", "10m"),
        ("interval", -1),
        ("interval", True),
        ("keep", "3"),
        ("keep", 0),
        ("keep", 1.5),
        ("uri", 5),
        ("cluster", None),
        ("max_attempts", -1),
        ("slurm_bin", []),
    ],
)
def test_node_settings_of_another_kind_are_named(tmp_path: Path, key: str, value: object) -> None:
    file = tmp_path / "node.json"
    file.write_text(json.dumps({"cluster": "c", key: value}))
    with pytest.raises(UsageError, match=rf"node\.json: can't be read as this node's settings: {key}: "):
        load_node_config({"SPOTBURST_NODE_CONFIG": str(file)})


def test_node_settings_and_what_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    file.write_text(json.dumps({"cluster": "c", "interval": 60, "keep": 2, "of a later version": [1]}))
    node = load_node_config({"SPOTBURST_NODE_CONFIG": str(file)})
    assert (node.cluster, node.interval, node.keep, node.max_attempts) == ("c", 60, 2, 8)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A socket's path may have 107 characters, and ``tmp_path`` of one of several workers is longer."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_sockets_of_the_dead_are_removed_and_nothing_else(short_path: Path) -> None:
    ours = Path(socket_path({"TMPDIR": "/tmp"})).parent.name[:-16]

    def folder(number: int, prefix: str = ours) -> Path:
        made = short_path / f"{prefix}{number:016x}"
        made.mkdir()
        return made

    def bound(number: int) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(folder(number) / "events"))
        return made

    empty, full, young = folder(1), folder(2), folder(3)
    (full / "notes").write_text("mine")
    (short_path / "spotburst-my-own").mkdir()
    (short_path / f"{ours}{9:016x}").symlink_to(full)
    dead, live = bound(4), bound(5)
    live.listen(1)
    dead.close()
    elsewhere = folder(6, "spotburst-00000000-")  # a wrapper of another host, in a folder that both see
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(elsewhere / "events"))
    now = young.stat().st_mtime + 3600.0
    os.utime(young, (now, now))
    removed = remove_dead(short_path, now)
    live.close()
    assert sorted(path.name[-1] for path in removed) == ["1", "4"]
    assert not empty.exists()
    assert (full / "notes").exists() and young.exists()
    assert (short_path / f"{ours}{5:016x}" / "events").exists() and (elsewhere / "events").exists()


def test_a_client_that_never_reads_is_closed_and_holds_no_more_memory(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as deaf:
        server = Server(selector, str(tmp_path / "own" / "events"))
        deaf.connect(server.path)
        server.drain()
        for _ in range(80):
            server.send(1, {"type": "stop", "more": "x" * 100_000})
        heard = [said for key, mask in selector.select(10.0) for said in server.handle(key, mask)]
        server.close()
    assert heard == [(1, None)]


def test_numbers_that_are_none_of_a_computers(tmp_path: Path) -> None:
    for read, word in ((parse_size, "9" * 400), (parse_size, "9" * 400 + "T"), (_count, "²"), (_count, "9" * 5000)):
        with pytest.raises(argparse.ArgumentTypeError):
            read(word)
    for word in ("²", "9" * 5000):
        with pytest.raises(UsageError, match="was not made by Slurm"):
            _number({"SLURM_NNODES": word}, "SLURM_NNODES", 1)
    view = parse_view("RUNNING;0;N/A;1;1;1777710120;" + "9" * 400 + ";5;")
    assert (view.start_time, view.end_time) == (1777710120.0, None)
    with pytest.raises(StoreRefused, match="File name too long"):
        open_store("file:///" + "x" * 5000, prove=False)
    deep = tmp_path / "node.json"
    deep.write_text("[" * 20_000)
    with pytest.raises(UsageError, match="can't be read as this node's settings"):
        load_node_config({"SPOTBURST_NODE_CONFIG": str(deep)})
