"""The node agent as a process, with a metadata service and commands that answer as Slurm's do and record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from job_wrapper.agent import drain_reason, steps_here
from job_wrapper.notice.types import Notice
from slurm_plugin.render import Programs, agent_service
from tests.fixtures.imds import ACTION, PREEMPTED, Imds, imds
from tests.fixtures.unmet import need_program

TERMINATE = '{"action":"terminate","time":"2026-05-02T08:22:00Z"}'
OURS = "spotburst: aws reclaim by 2026-05-02T08:22:00Z"
_FAKE = """#!/bin/sh
[ "$(basename "$0")" = sinfo ] && { cat "$FAKE/state"; exit 0; }
echo "$*" >> "$FAKE/calls"
[ -e "$FAKE/down" ] && { echo "slurm_update error: Unable to contact slurm controller" >&2; exit 1; }
case "$*" in
*State=DRAIN*) echo "draining;${4#Reason=}" > "$FAKE/state" ;;
*State=UNDRAIN*) echo "idle;none" > "$FAKE/state" ;;
esac
"""


class Agent:
    """One agent and what is around it."""

    def __init__(self, path: Path, service: Imds) -> None:
        self.path = path
        self.service = service
        self.file = path / "run" / "notice.json"
        for name in ("sinfo", "scontrol"):
            (path / name).write_text(_FAKE)
            (path / name).chmod(0o755)
        self.state("idle;none")
        self.process: subprocess.Popen[bytes] | None = None

    def state(self, text: str) -> None:
        (self.path / "state").write_text(text + "\n")

    def standing(self) -> str:
        return (self.path / "state").read_text().strip()

    def calls(self) -> list[str]:
        try:
            return (self.path / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []

    def start(self, provider: str = "aws") -> None:
        settings = {
            "node": "n1",
            "provider": provider,
            "metadata_url": self.service.url,
            "notice_file": str(self.file),
            "slurm_bin": str(self.path),
        }
        (self.path / "node.json").write_text(json.dumps(settings))
        environ = {**os.environ, "SPOTBURST_NODE_CONFIG": str(self.path / "node.json"), "FAKE": str(self.path)}
        # Steps of other clusters may run on this host.
        command = (
            "import os, sys, pathlib; from job_wrapper import agent; from job_wrapper.notice import aws, gcp; "
            "agent.LAST_LOOK_SECONDS = aws.SECONDS = gcp.SECONDS = 60.0; "  # the service here may be slow
            "agent.steps_here = lambda: pathlib.Path(os.environ['FAKE'], 'steps').exists(); sys.exit(agent.main([]))"
        )
        with (self.path / "said").open("ab") as said:
            self.process = subprocess.Popen([sys.executable, "-c", command], env=environ, stderr=said)

    def said(self) -> str:
        """By all that were started."""
        return (self.path / "said").read_text()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(120), self.said()

    @staticmethod
    def until(what: Callable[[], object]) -> None:
        end = time.monotonic() + 120
        while not what():
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with imds() as service:
        made = Agent(tmp_path, service)
        yield made
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
            made.process.wait()


def test_notice_is_told_and_the_node_drained_until_it_is_withdrawn(agent: Agent) -> None:
    agent.start()
    agent.until(agent.file.with_name("agent.alive").exists)
    agent.service.pages[ACTION] = TERMINATE
    agent.until(lambda: agent.standing() == f"draining;{OURS}")
    notice = Notice.from_json(agent.file.read_text())
    assert (notice.kind, notice.deadline) == ("reclaim", 1777710120.0)
    del agent.service.pages[ACTION]
    agent.until(lambda: agent.standing() == "idle;none")
    assert not agent.file.exists()
    code, err = agent.end()
    assert code == 0
    assert "aws reclaim" in err
    assert len(agent.calls()) == 2


def test_drain_is_tried_until_it_is_done_while_the_jobs_know_at_once(agent: Agent) -> None:
    (agent.path / "down").touch()
    agent.service.pages[ACTION] = TERMINATE
    agent.start()
    agent.until(agent.file.exists)
    agent.until(lambda: len(agent.calls()) >= 2)
    (agent.path / "down").unlink()
    agent.until(lambda: agent.standing() == f"draining;{OURS}")


def test_administrators_own_drain_is_left_alone(agent: Agent) -> None:
    agent.state("drained;bad disk")
    agent.service.pages[ACTION] = TERMINATE
    agent.start()
    agent.until(agent.file.exists)
    del agent.service.pages[ACTION]
    agent.until(lambda: not agent.file.exists())
    time.sleep(0.2)
    assert agent.calls() == []
    assert agent.standing() == "drained;bad disk"


def test_killed_agent_is_made_good_by_the_next(agent: Agent) -> None:
    (agent.path / "down").touch()
    agent.service.pages[ACTION] = TERMINATE
    agent.start()
    agent.until(agent.file.exists)
    agent.end(signal.SIGKILL)
    (agent.path / "down").unlink()
    agent.start()
    agent.until(lambda: agent.standing() == f"draining;{OURS}")
    agent.end(signal.SIGKILL)
    del agent.service.pages[ACTION]
    agent.start()
    agent.until(lambda: agent.standing() == "idle;none")
    assert not agent.file.exists()


def stays(agent: Agent) -> bool:
    """Told to end, it is still there after some time in which it would have ended."""
    assert agent.process is not None
    try:
        agent.process.wait(2.0)
    except subprocess.TimeoutExpired:
        return True
    return False


def test_at_a_shutdown_it_stays_for_the_steps_of_a_node_that_is_taken_away(agent: Agent) -> None:
    (agent.path / "steps").touch()
    agent.service.pages[ACTION] = TERMINATE.replace("2026", "2099")
    agent.start()
    agent.until(agent.file.exists)
    assert agent.process is not None
    agent.process.terminate()
    agent.until(lambda: "staying for the job steps" in agent.said())
    assert stays(agent)
    (agent.path / "steps").unlink()
    assert agent.end()[0] == 0
    assert agent.standing().startswith("draining;spotburst: aws reclaim by 2099")


def test_told_to_end_without_a_notice_or_past_its_deadline_it_ends(agent: Agent) -> None:
    (agent.path / "steps").touch()
    agent.start()
    agent.until(agent.file.with_name("agent.alive").exists)
    assert agent.end()[0] == 0
    agent.service.pages[ACTION] = TERMINATE
    agent.start()
    agent.until(agent.file.exists)
    assert agent.end()[0] == 0


def test_notice_that_comes_with_the_shutdown_is_passed_on(agent: Agent) -> None:
    """Compute Engine's comes with the soft-off: here after the last look and before the agent is told to end."""
    agent.service.pages |= {PREEMPTED: "FALSE", "/computeMetadata/v1/instance/maintenance-event": "NONE"}
    agent.service.ill = "numb"
    agent.start("gcp")
    agent.until(lambda: any("wait_for_change" in q for q in agent.service.queries))
    agent.service.pages[PREEMPTED] = "TRUE"
    assert agent.end()[0] == 0
    assert agent.file.exists()
    assert agent.standing().startswith("draining;spotburst: gcp reclaim")


def test_steps_are_known_by_slurms_step_daemons(tmp_path: Path) -> None:
    for name, command in (("1", "init"), ("self", "slurmstepd"), ("22", "slurmd")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "comm").write_text(command + "\n")
    (tmp_path / "23").mkdir()
    assert not steps_here(tmp_path)
    (tmp_path / "23" / "comm").write_text("slurmstepd\n")
    assert steps_here(tmp_path)


def test_unit_is_one_that_systemd_understands(tmp_path: Path) -> None:
    analyze = need_program("systemd-analyze")
    unit = tmp_path / "spotburst-agent.service"
    programs = Programs(*(Path("/bin/true") for _ in range(4)))
    for text, right in (
        (agent_service(programs, slurm_conf=Path("/etc/slurm/slurm.conf")), True),
        ("[Unit]\nBefore slurmd\n[Service]\nType=party\nExecStart=/bin/true\n", False),
    ):
        unit.write_text(text)
        done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
        assert (unit.name not in done.stderr) == right, done.stderr


def test_settings_without_a_provider_are_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"node":"n1","metadata_url":"http://127.0.0.1:1"}')
    command = "import sys; from job_wrapper.agent import main; sys.exit(main([]))"
    environ = {**os.environ, "SPOTBURST_NODE_CONFIG": str(tmp_path / "node.json")}
    done = subprocess.run([sys.executable, "-c", command], env=environ, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"no provider" in done.stderr


def test_reason_without_a_deadline() -> None:
    assert drain_reason(Notice("gcp", "reclaim", "x", 0.0)) == "spotburst: gcp reclaim"
