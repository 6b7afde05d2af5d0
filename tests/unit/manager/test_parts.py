"""Lanes, damping, the wake-up, the lock, comments, and that one fault stays its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin.actions import Drain, PowerUp, RequeueJob, SetDown, Terminate
from slurm_plugin.errors import CloudUnavailable, ConfigError, SlurmRefused, SlurmUnavailable
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.apply import Applier, comment
from slurm_plugin.manager.damp import Damper
from slurm_plugin.manager.lane import Lane
from slurm_plugin.manager.launch import Launcher
from slurm_plugin.manager.say import Once
from slurm_plugin.manager.single import only_one
from slurm_plugin.manager.wake import Waker
from tests.unit.manager.harness import policy
from tests.unit.manager.listener import Listener
from tests.unit.reconcile.views import NOW, intent, job, view


class Hanging:
    name = "hanging"

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def instances(self) -> list[Any]:
        self.let_go.wait(20)
        return []


def test_a_hanging_cloud_is_unknown_and_does_not_pile_up_calls() -> None:
    cloud = Hanging()
    lane = Lane(cloud)  # type: ignore[arg-type]
    with pytest.raises(CloudUnavailable, match="no answer within"):
        lane.call(cloud.instances, timeout=0.05)
    with pytest.raises(CloudUnavailable, match="has not ended yet"):
        lane.call(cloud.instances, timeout=0.05)
    cloud.let_go.set()
    for _ in range(3000):
        try:
            assert lane.call(cloud.instances, timeout=5) == []
            break
        except CloudUnavailable:
            time.sleep(0.02)
    else:
        raise AssertionError("the lane stayed blocked")


def test_damping_spaces_repetitions_and_a_new_cause_acts_at_once() -> None:
    damper = Damper()
    done = []
    for second in range(60):
        if damper.due("act", float(second)):
            done.append(second)
            damper.done("act", float(second))
    assert done == [0, 2, 6, 14, 30]
    assert damper.due("other", 60.0)
    assert damper.due("act", 60.0 + 100)
    damper.forget_old(1000.0)
    assert not damper._acts


def test_a_clock_that_is_set_back_holds_up_nothing() -> None:
    damper = Damper()
    for second in (5000.0, 5002.0):
        assert damper.due("act", second)
        damper.done("act", second)
    assert not damper.due("act", 5003.0)
    assert damper.due("act", 1400.0)
    damper.done("act", 1400.0)
    assert not damper.due("act", 1401.0), "spaced anew"
    assert damper.due("act", 1402.0)


def test_datagrams_and_nudges_end_the_wait_and_stop_ends_it_for_good(tmp_path: Path) -> None:
    (tmp_path / "manager.sock").write_text("left by a dead one")
    waker = Waker(tmp_path / "manager.sock")
    assert (tmp_path / "manager.sock").stat().st_mode & 0o777 == 0o600

    def waits(seconds: float) -> bool:
        start = time.monotonic()
        waker.wait(seconds)
        return time.monotonic() - start >= seconds

    assert waits(0.3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for _ in range(3):
            sender.sendto(b"resume", str(tmp_path / "manager.sock"))
    assert not waits(60)
    assert waits(0.3), "all datagrams of a burst are one reason"
    waker.nudge()
    assert not waits(60)
    waker.stop()
    assert waker.stopped
    assert not waits(60)
    waker.close()
    assert not (tmp_path / "manager.sock").exists()


def test_one_manager_a_state_directory(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    with only_one(state):
        assert state.stat().st_mode & 0o777 == 0o700
        with (
            pytest.raises(
                ConfigError, match=rf"another manager runs already \(process {os.getpid()} on {socket.gethostname()}\)"
            ),
            only_one(state),
        ):
            pass
    with only_one(state):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be used"), only_one(tmp_path / "file" / "state"):
        pass


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        ("", "spotburst: new"),
        ("mine", "mine | spotburst: new"),
        ("spotburst: old", "spotburst: new"),
        ("mine | spotburst: old", "mine | spotburst: new"),
        ("a | b=c State=DOWN", "a | b=c State=DOWN | spotburst: new"),
    ],
)
def test_the_users_comment_is_kept(standing: str, expected: str) -> None:
    assert comment(standing, "new") == expected
    assert comment(comment(standing, "x"), "new") == expected


class Slurm:
    """Refuses some nodes, some jobs, or everything."""

    def __init__(self) -> None:
        self.nodes: list[tuple[tuple[str, ...], str]] = []
        self.reasons: list[str | None] = []
        self.jobs: list[str] = []
        self.fail: Callable[[str], None] = lambda name: None

    def update_nodes(self, names: Any, *, state: str, reason: str | None = None) -> None:
        names = tuple(names)
        for name in names:
            self.fail(name)
        self.nodes.append((names, state))
        self.reasons.append(reason)

    def requeue(self, job_id: str, *, hold: bool = False) -> None:
        self.fail(job_id)
        self.jobs.append(job_id)

    def comment(self, job_id: str) -> str:
        return ""

    def set_comment(self, job_id: str, text: str) -> None:
        self.fail(job_id)


class Cloud:
    name = "sim"

    def __init__(self) -> None:
        self.ended: list[str] = []

    def terminate(self, ids: list[str]) -> None:
        if "i-bad" in ids:
            raise RuntimeError("a bug in the provider")
        self.ended += ids


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Slurm, Cloud, Applier]:
    slurm, cloud, once = Slurm(), Cloud(), Once()
    ledger = Ledger.open(tmp_path / "ledger.db")
    launcher = Launcher(policy(("n1", "n2", "n3")), {"sim": Lane(cloud)}, ledger, lambda *_: {}, once)  # type: ignore[arg-type]
    return slurm, cloud, Applier(slurm, ledger, launcher, once)  # type: ignore[arg-type]


def refusing(*names: str, error: type[Exception] = SlurmRefused) -> Callable[[str], None]:
    def fail(name: str) -> None:
        if name in names:
            raise error(f"{name}: no")

    return fail


def test_cases_1_one_fault_stays_its_own(parts: tuple[Slurm, Cloud, Applier]) -> None:
    slurm, cloud, applier = parts
    slurm.fail = refusing("n1", "1", error=RuntimeError)
    actions = (
        SetDown("n1", "spotburst: a"),
        SetDown("n2", "spotburst: b"),
        RequeueJob(1, "1", 0, "x"),
        RequeueJob(2, "2", 0, "x"),
        Drain("n1", "spotburst: r1"),
        Drain("n3", "spotburst: r3"),
        Terminate("sim", "i-good", "l1", "n2", "x"),
    )
    applier.apply(actions, view(jobs=[job(1), job(2)]))
    assert slurm.nodes == [(("n2",), "down"), (("n3",), "drain")]
    assert slurm.jobs == ["2"]
    assert cloud.ended == ["i-good"]


def test_slurm_down_stops_no_termination(parts: tuple[Slurm, Cloud, Applier]) -> None:
    slurm, cloud, applier = parts
    slurm.fail = refusing("n1", error=SlurmUnavailable)
    applier.apply((SetDown("n1", "spotburst: a"), Terminate("sim", "i-1", "l1", "n2", "x")), view())
    assert cloud.ended == ["i-1"]


def test_many_nodes_are_one_call(parts: tuple[Slurm, Cloud, Applier]) -> None:
    slurm, _, applier = parts
    applier.apply(tuple(PowerUp(f"n{k}", k, str(k), 1, "lost") for k in (1, 2, 3)), view())
    assert slurm.nodes == [(("n1", "n2", "n3"), "power_up")]
    assert [r.node for r in applier.ledger.replacements()] == ["n1", "n2", "n3"]


def test_many_nodes_lost_at_once_are_one_call_and_each_is_told_in_the_ledger(
    parts: tuple[Slurm, Cloud, Applier],
) -> None:
    slurm, _, applier = parts
    names = [f"n{k}" for k in range(400)]
    intents = [intent(name, launch_id=f"l-{name}", instance_id=f"i-{name}") for name in names]
    downs = tuple(SetDown(name, f"spotburst: i-{name} is gone") for name in names)
    applier.apply(downs, view(intents=intents))
    assert slurm.nodes == [(tuple(names), "down")]
    assert slurm.reasons == ["spotburst: its machine is gone"]
    assert {e.node for e in applier.ledger.events() if e.kind == "down"} == set(names)
    slurm.nodes.clear()
    applier.apply(downs[:2], replace(view(intents=intents), now=NOW + 1000))
    assert slurm.reasons[1:] == [f"spotburst: i-{name} is gone" for name in names[:2]], "a few are told each its own"


def test_a_refused_act_is_not_repeated_in_the_next_pass(parts: tuple[Slurm, Cloud, Applier]) -> None:
    slurm, _, applier = parts
    tries: list[str] = []

    def fail(name: str) -> None:
        tries.append(name)
        raise SlurmRefused("Invalid node state specified")

    slurm.fail = fail
    for tenth in range(30):
        applier.apply((SetDown("n1", "spotburst: a"),), replace(view(), now=NOW + tenth / 10))
    assert len(tries) == 2


# --- the whole, as a process ------------------------------------------------------------------------------------------


def burst_yaml(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "burst.yaml"
    settings = {
        "cluster": "c",
        "state_dir": str(tmp_path / "state"),
        "slurm": {"conf": str(tmp_path / "slurm.conf"), "bin_dir": str(tmp_path / "bin")},
        "checkpoints": {"uri": f"file://{tmp_path}/store"},
        "providers": {"local": {"type": "local"}},
        "nodesets": [
            {"name": "spot", "nodes": "n[1-2]", "cpus": 1, "memory_mb": 100, "offerings": [{"provider": "local", "instance_type": "t"}]}
        ],
        "partitions": [{"name": "spot", "nodesets": ["spot"]}],
        **changes,
    }  # fmt: skip
    path.write_text(yaml.safe_dump(settings))
    return path


MAIN = "import sys; from pathlib import Path; from slurm_plugin.manager import main; sys.exit(main(Path(sys.argv[1])))"


def start(config: Path, environ: dict[str, str] | None = None, main: str = MAIN) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", main, str(config)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environ or {})})


def without_slurmctld(tmp_path: Path) -> Path:
    """burst.yaml of a site whose Slurm commands find no slurmctld."""
    (tmp_path / "slurm.conf").write_text("ClusterName=c\n")
    (tmp_path / "bin").mkdir()
    for name in ("sinfo", "squeue", "scontrol"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return burst_yaml(tmp_path, manager={"interval": 0.1, "busy_interval": 0.1})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_starts_without_slurmctld_says_so_once_and_ends_cleanly(tmp_path: Path, number: int) -> None:
    config = without_slurmctld(tmp_path)
    listener = Listener(tmp_path / "notify", watchdog=60)
    # A fault whose words have changed is said again after a minute, and each command has its own.
    manager = start(config, listener.environ, f"from slurm_plugin.manager import say; say.AGAIN = 3600.0; {MAIN}")
    sock = tmp_path / "state" / "manager.sock"
    told = listener.until(lambda words: words.count("WATCHDOG=1") >= 5)
    assert told[0] == "READY=1"
    assert re.match(r"STATUS=acting: 0 jobs, 0 machines; not well: .*\bSlurm\b", told[1])
    assert sock.exists()
    assert (tmp_path / "state" / "ledger.db").exists()
    second = start(config)
    _, said = second.communicate(timeout=120)
    assert second.returncode == 2
    assert f"another manager runs already (process {manager.pid} on {socket.gethostname()})" in said
    listener.hear()  # what the kernel has no room for is not told
    manager.send_signal(number)
    listener.until(lambda words: words[-1] == "STOPPING=1")
    _, log = manager.communicate(timeout=120)
    assert manager.returncode == 0, log
    assert not sock.exists()
    assert log.count("does not answer, so nothing is concluded") == 1, log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodesets": []}, "nodesets"),
        ({"providers": {"local": {"type": "moon"}}}, "'local', 'aws', 'gcp', 'azure'"),
        ({}, "slurm.conf"),
    ],
)
def test_bad_settings_are_one_clear_message(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    if changes:
        (tmp_path / "slurm.conf").write_text("ClusterName=c\n")
    manager = start(burst_yaml(tmp_path, **changes))
    _, said = manager.communicate(timeout=120)
    assert manager.returncode == 2
    assert message in said
    assert "Traceback" not in said


def test_busy_while_somebody_waits_and_calm_otherwise() -> None:
    from dataclasses import replace

    from slurm_plugin.manager.loop import in_transition
    from tests.unit.reconcile.views import intent, machine, node, waiting

    i = intent("n1")
    calm = view([node("n1", "ALLOCATED"), node("n2", "DOWN", "Ann")], [job(1, nodes=("n1",))], [i], [machine(i)])
    assert not in_transition(calm, ())
    assert in_transition(calm, (SetDown("n1", "spotburst: x"),))
    assert in_transition(replace(calm, silent_since={"n1": NOW - 30}), ())
    assert not in_transition(replace(calm, silent_since={"n2": NOW - 3600}), ()), "not for ever"
    assert in_transition(replace(calm, jobs=(waiting(),)), ())
    assert in_transition(view([node("n1", "IDLE POWERING_UP")]), ())
    assert not in_transition(view(known_nodes=None, known_jobs=None, cloud=False), ())
