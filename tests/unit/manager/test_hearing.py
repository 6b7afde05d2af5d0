"""What clouds send about machines, from the queue to the nodes: the manager over a simulated Slurm and cloud, and SQS on moto."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin import render
from slurm_plugin.cloud.aws import events
from slurm_plugin.cloud.aws.queue import Queue
from slurm_plugin.cloud.provider import Launched, LaunchRequest, Refused
from slurm_plugin.config import AwsProvider
from slurm_plugin.errors import CloudUnavailable
from slurm_plugin.manager import hearing
from slurm_plugin.manager.hearing import Hearing
from slurm_plugin.manager.say import Once
from tests.cloud.test_aws_events import AWS, config
from tests.fixtures.eventbridge import EventBridge, event_bridge
from tests.unit.manager.checks import running, states, until
from tests.unit.manager.fake_cloud import FakeCloud
from tests.unit.manager.harness import Manager, SteadyLane, policy
from tests.unit.manager.world import World


class TellingCloud(FakeCloud):
    """With instance ids as EC2 has them, and a queue."""

    bridge: EventBridge

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        answers = super().launch(requests)
        for machine in self.machine.values():
            machine.instance_id = "i-" + machine.instance_id.removeprefix("i-").rjust(17, "0")
        known = {m.request.launch_id: m.instance_id for m in self.machine.values()}
        return [replace(a, instance_id=known[a.launch_id]) if isinstance(a, Launched) else a for a in answers]

    def mailbox(self) -> Queue:
        settings = AwsProvider(**AWS, events_queue=self.bridge.url)  # type: ignore[arg-type]
        queue = Queue(settings, self.bridge.url, self.world.clock)
        queue._client = self.bridge.sqs  # takes half a second to make
        return queue


class Hearer(Manager):
    hearing: Hearing
    list_every = 0.0

    def start(self) -> None:
        super().start()
        self.woken = threading.Event()
        lanes = {"sim": SteadyLane(self.world.cloud, self.list_every)}
        self.once = Once()
        self.hearing = Hearing(
            lanes, self.ledger, self.world.state_dir, self.once, self.woken.set, pauses=(0.02,), clock=self.world.clock
        )
        self.observer.lanes, self.observer.hearing = lanes, self.hearing

    def hear(self) -> None:
        """All that is in the queue."""
        while self.hearing.look("sim"):
            pass

    def close(self) -> None:
        self.hearing.stop()
        for thread in self.hearing._threads:
            if thread.is_alive():
                thread.join(60)  # else it might take the next test's messages: the queue has the same name
        super().close()


@pytest.fixture(scope="module")
def server() -> Iterator[EventBridge]:
    with event_bridge() as made:
        yield made


@pytest.fixture
def bridge(server: EventBridge, tmp_path: Path) -> EventBridge:
    server.unreachable = False
    server.set_up(render.aws_events(config(tmp_path), "ec2"))
    return server


@pytest.fixture
def make(bridge: EventBridge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Hearer] = []
    monkeypatch.setattr(hearing, "WAIT", 1.0)  # its end is waited for

    def build(count: int = 4, list_every: float = 0.0) -> Hearer:
        names = tuple(f"n{i}" for i in range(1, count + 1))
        world = World(names, tmp_path / "state")
        world.cloud = TellingCloud(world)
        world.cloud.bridge = bridge
        made.append(type("Hearer", (Hearer,), {"list_every": list_every})(world, policy(names), tmp_path / "ledger.db"))
        return made[-1]

    yield build
    for manager in made:
        manager.close()


def warn(m: Hearer, bridge: EventBridge, *instances: str, ago: float = 0.0) -> None:
    details = [{"instance-id": i, "instance-action": "terminate"} for i in instances]
    bridge.emit(events.SPOT_WARNING, details, m.world.clock() - ago)


def notices(m: Hearer) -> list[str]:
    return [e.node for e in m.ledger.events() if e.kind == "notice" and e.text.startswith("reclaim,")]


def drained(m: Hearer) -> set[str]:
    return {name for name, node in m.world.slurm.node.items() if "DRAIN" in node.flags}


def test_of_a_hundred_notices_no_drain_is_lost(make: Any, bridge: EventBridge) -> None:
    """Cases 17 and 18. Slurm refuses a third of the drains at first, the manager is killed twice on the way, and each event comes twice."""
    m = make(101)
    jobs = [m.world.slurm.submit(5000) for _ in range(100)]
    until(m, lambda: all(states(m, job) == {"RUNNING"} for job in jobs))
    machines = {x.request.node: x.instance_id for x in m.world.cloud.living()}
    assert len(machines) == 100
    warn(m, bridge, *machines.values())
    warn(m, bridge, *machines.values())
    m.world.slurm.refuse = set(sorted(machines)[::3])
    m.hearing.look("sim")
    m.step()
    m.close()
    m.start()
    m.hear()
    assert bridge.left() == 0, "recorded, so nobody needs the messages any more"
    m.step()
    m.close()
    m.start()
    assert drained(m) == set(machines) - m.world.slurm.refuse
    m.world.slurm.refuse = set()
    m.run(5)
    assert drained(m) == set(machines)
    assert sorted(notices(m)) == sorted(machines), "one notice a node, however often it was told"


def test_a_notice_by_message_is_one_like_any_other(make: Any, bridge: EventBridge) -> None:
    """Replacement, requeue, the zone put last; told again by the listing, it is the same notice. A machine that outlives it stays."""
    m = make()
    job = m.world.slurm.submit(2000)
    until(m, running(m, job))
    old = m.world.slurm.job[job].record.nodes[0]
    machine = m.world.cloud.living()[0]
    warn(m, bridge, machine.instance_id, ago=3.0)
    m.hear()
    assert m.woken.is_set()
    until(m, lambda: drained(m) == {old}, 3)
    assert m.world.slurm.node[old].reason.startswith("spotburst: sim reclaim by ")
    assert m.world.slurm.node[old].reason.endswith(", told by the cloud")
    until(m, lambda: len(m.world.cloud.living()) == 2, 5)
    assert {x.request.offering.zone for x in m.world.cloud.living()} == {"a", "b"}
    machine.reclaim = m.world.clock() + 900
    m.run(5)
    assert notices(m) == [old]
    machine.reclaim = None
    m.run(200)
    assert drained(m) == {old}, "its deadline has passed, but not long ago"
    until(m, lambda: not drained(m), 150)
    assert states(m, job) == {"RUNNING"}
    assert [e.text for e in m.ledger.events(node=old) if e.kind == "notice"][-1] == "withdrawn"


def test_messages_about_other_machines_and_late_or_broken_ones_change_nothing(make: Any, bridge: EventBridge) -> None:
    m = make()
    job = m.world.slurm.submit(2000)
    until(m, running(m, job))
    machine = m.world.cloud.living()[0]
    warn(m, bridge, "i-0aaaaaaaaaaaaaaaa")
    warn(m, bridge, machine.instance_id, ago=3600.0)
    bridge.send("no JSON")
    bridge.send('{"detail-type": "EC2 Spot Instance Interruption Warning", "source": "aws.ec2"}')
    bridge.emit(
        events.REBALANCE, [{"instance-id": i} for i in ("i-0aaaaaaaaaaaaaaaa", machine.instance_id)], m.world.clock()
    )
    m.hear()
    m.run(5)
    assert bridge.left() == 0
    assert (drained(m), notices(m)) == (set(), [])
    [warning] = [e for e in m.ledger.events(node=machine.request.node) if e.kind == "notice"]
    assert "rebalance, told by sim: EC2 recommends to leave it" in warning.text
    aside = (m.world.state_dir / "told" / "sim.unreadable.jsonl").read_text().splitlines()
    assert len(aside) == 2
    assert "no JSON" in aside[0] + aside[1]


def test_a_message_that_could_not_be_recorded_comes_again(make: Any, bridge: EventBridge) -> None:
    m = make()
    job = m.world.slurm.submit(2000)
    until(m, running(m, job))
    machine = m.world.cloud.living()[0]
    blocked = m.world.state_dir / "told"
    blocked.write_text("a file where the folder should be")
    warn(m, bridge, machine.instance_id)
    with pytest.raises(CloudUnavailable, match="told"):
        m.hear()
    m.run(3)
    assert bridge.left() == 1
    assert not drained(m)
    blocked.unlink()
    while not m.hearing.look("sim", 1.0):
        pass
    m.run(3)
    assert bridge.left() == 0
    assert drained(m) == {machine.request.node}


def test_an_ending_that_is_told_is_looked_at_at_once(make: Any, bridge: EventBridge) -> None:
    """The listing is asked for seldom here; the event makes it be asked for now."""
    m = make(list_every=10_000.0)
    m.world.cloud.boots_in = lambda: 0.0
    job = m.world.slurm.submit(2000)
    until(m, running(m, job))
    machine = m.world.cloud.living()[0]
    m.world.cloud.vanish(machine)
    bridge.emit(events.STATE_CHANGE, [{"instance-id": "i-0aaaaaaaaaaaaaaaa", "state": "terminated"}], m.world.clock())
    m.hear()
    m.run(20)
    assert m.world.slurm.job[job].record.restart_count == 0
    bridge.emit(events.STATE_CHANGE, [{"instance-id": machine.instance_id, "state": "terminated"}], m.world.clock())
    m.hear()
    until(m, lambda: m.world.slurm.job[job].record.restart_count == 1, 3)


def test_a_queue_that_is_away_holds_up_no_pass_and_is_heard_when_it_is_back(make: Any, bridge: EventBridge) -> None:
    m = make()
    bridge.unreachable = True
    m.hearing.start()
    job = m.world.slurm.submit(2000)
    until(m, running(m, job))
    machine = m.world.cloud.living()[0]
    end = time.monotonic() + 60
    while m.once.lasting() != ("messages of sim",):
        assert time.monotonic() < end
        time.sleep(0.02)
    bridge.unreachable = False
    warn(m, bridge, machine.instance_id)
    assert m.woken.wait(120)
    m.run(3)
    assert drained(m) == {machine.request.node}


def test_a_damaged_record_is_moved_aside(make: Any, bridge: EventBridge) -> None:
    m = make()
    job = m.world.slurm.submit(2000)
    until(m, running(m, job))
    path = m.world.state_dir / "told" / "sim.json"
    path.parent.mkdir()
    path.write_text('[{"instance_id": "i-1"')
    m.close()
    m.start()
    [aside] = path.parent.iterdir()
    assert aside.name.startswith("sim.json.damaged-")
    warn(m, bridge, m.world.cloud.living()[0].instance_id)
    m.hear()
    m.run(3)
    assert len(drained(m)) == 1
