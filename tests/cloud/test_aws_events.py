"""EC2's events, from EventBridge's rules by way of SQS to notices: on moto, set up by the template that comes with the project."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin import render
from slurm_plugin.cloud.aws import events
from slurm_plugin.cloud.aws.queue import Queue
from slurm_plugin.config import AwsProvider, Config, load_config
from slurm_plugin.errors import CloudUnavailable, ConfigError
from slurm_plugin.local_cluster.settings import default_settings
from tests.fixtures.eventbridge import EventBridge, event_bridge
from tests.fixtures.moto_ec2 import REGION

NOW = 1_800_000_000.0
MACHINE = "i-0123456789abcdef0"
AWS = {"type": "aws", "region": REGION, "image": "ami-1", "subnets": {"eu-west-1a": "subnet-1"}}


def config(folder: Path, **more: Any) -> Config:
    plan = {**default_settings(2), "checkpoints": {"uri": "file:///shared"}}
    plan["providers"] = {**plan["providers"], "ec2": AWS, **more}
    path = folder / "burst.yaml"
    path.write_text(yaml.safe_dump(plan))
    return load_config(path)


@pytest.fixture(scope="module")
def server() -> Iterator[EventBridge]:
    with event_bridge() as made:
        yield made


@pytest.fixture
def bridge(server: EventBridge, tmp_path: Path) -> EventBridge:
    server.set_up(render.aws_events(config(tmp_path), "ec2"))
    return server


def queue(bridge: EventBridge) -> Queue:
    return Queue(AwsProvider(**AWS, events_queue=bridge.url), bridge.url, lambda: NOW)  # type: ignore[arg-type]


def event(kind: str, detail: object, source: str = "aws.ec2", **changes: object) -> str:
    base = {"version": "0", "id": "e-1", "detail-type": kind, "source": source, "time": "2027-01-15T08:00:00Z"}
    return json.dumps({**base, "region": REGION, "resources": [], "detail": detail, **changes})


def test_the_template_lets_in_what_the_manager_hears_and_nothing_else(bridge: EventBridge) -> None:
    machine = {"instance-id": MACHINE}
    bridge.emit(events.SPOT_WARNING, [{**machine, "instance-action": "terminate"}], NOW)
    bridge.emit(events.RESERVATION_WARNING, [{**machine, "instance-action": "terminate"}], NOW)
    bridge.emit(events.REBALANCE, [machine], NOW)
    bridge.emit(events.STATE_CHANGE, [{**machine, "state": s} for s in ("pending", "running", *events.ENDING)], NOW)
    health = {
        "service": "EC2",
        "eventTypeCategory": "scheduledChange",
        "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
        "eventArn": "arn:aws:health:eu-west-1::event/EC2/AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED/1",
        "startTime": "Fri, 15 Jan 2027 09:00:00 GMT",
        "affectedEntities": [{"entityValue": MACHINE}, {"entityValue": "vol-1"}],
    }
    bridge.emit(events.HEALTH, [health], NOW, "aws.health")
    bridge.emit(
        events.HEALTH, [{**health, "service": "RDS"}, {**health, "eventTypeCategory": "issue"}], NOW, "aws.health"
    )
    bridge.emit(events.SPOT_WARNING, [{**machine, "instance-action": "terminate"}], NOW, "somebody.else")
    bridge.emit("EBS Volume Notification", [{}], NOW)
    messages = queue(bridge).receive(0)
    found = [(n.instance_id, n.notice.kind, n.notice.deadline) for m in messages for n in m.notices]
    assert sorted(found, key=str) == [
        (MACHINE, "maintenance", NOW + 3600),
        (MACHINE, "rebalance", None),
        (MACHINE, "reclaim", NOW + 120),
        (MACHINE, "reclaim", NOW + 120),
    ]
    assert [i for m in messages for i in m.ended] == [MACHINE] * 4
    assert bridge.left() == len(messages) == 8


def test_the_template_gives_no_more_rights_than_are_used(bridge: EventBridge, tmp_path: Path) -> None:
    class Cfn(yaml.SafeLoader):
        pass

    Cfn.add_multi_constructor("!", lambda loader, tag, node: f"{tag} {node.value}")
    made = yaml.load(render.aws_events(config(tmp_path), "ec2"), Cfn)["Resources"]  # noqa: S506
    [sender] = made["QueuePolicy"]["Properties"]["PolicyDocument"]["Statement"]
    rules = [f"GetAtt {name}.Arn" for name, r in made.items() if r["Type"] == "AWS::Events::Rule"]
    assert (sender["Principal"], sender["Action"]) == ({"Service": "events.amazonaws.com"}, "sqs:SendMessage")
    assert sender["Condition"] == {"ArnEquals": {"aws:SourceArn": rules}}
    [reader] = made["ManagerPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert reader == {
        "Effect": "Allow",
        "Action": ["sqs:ReceiveMessage", "sqs:DeleteMessage"],
        "Resource": "GetAtt Queue.Arn",
    }
    bridge.send(event(events.REBALANCE, {"instance-id": MACHINE}))
    reading = queue(bridge)
    reading.delete(reading.receive(0))
    assert set(bridge.calls) - {"SendMessage"} == {"ReceiveMessage", "DeleteMessageBatch"}


def test_messages_stay_until_they_are_deleted_and_go_in_batches_of_ten(bridge: EventBridge) -> None:
    for number in range(23):
        bridge.send(event(events.REBALANCE, {"instance-id": f"i-{number:08x}"}, id=f"e-{number}"))
    bridge.sqs.set_queue_attributes(QueueUrl=bridge.url, Attributes={"VisibilityTimeout": "3600"})
    reading = queue(bridge)
    messages = [m for _ in range(3) for m in reading.receive(0)]
    assert len({n.notice.source_id for m in messages for n in m.notices}) == 23
    assert bridge.left() == 23
    reading.delete(messages[:22])
    assert bridge.calls.count("DeleteMessageBatch") == 3
    assert bridge.left() == 1
    left = {"QueueUrl": bridge.url, "ReceiptHandle": messages[22].receipt}
    bridge.sqs.change_message_visibility(**left, VisibilityTimeout=0)
    [again] = reading.receive(3)
    assert again.notices == messages[22].notices, "the one that was not deleted"
    bad = type(again)("no receipt", "")
    with pytest.raises(CloudUnavailable, match="1 deletion failed"):
        reading.delete([bad, again])
    assert bridge.left() == 0, "one that can't be deleted does not keep the other"


def test_a_queue_that_is_not_there_is_named(bridge: EventBridge) -> None:
    bridge.url += "-missing"
    with pytest.raises(CloudUnavailable, match=r"-missing.*NonExistentQueue"):
        queue(bridge).receive(0)
    bridge.unreachable = True
    try:
        with pytest.raises(CloudUnavailable, match=bridge.endpoint):
            queue(bridge).receive(0)
    finally:
        bridge.unreachable = False


def test_the_same_event_has_the_same_identity_whenever_it_is_read() -> None:
    body = event(events.SPOT_WARNING, {"instance-id": MACHINE, "instance-action": "stop"})
    [first], [second] = (events.read("r", body, now).notices for now in (NOW, NOW + 999))
    assert first.notice.source_id == second.notice.source_id
    assert first.notice.deadline == second.notice.deadline == NOW + 120
    health = {
        "service": "EC2",
        "eventTypeCategory": "scheduledChange",
        "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
        "eventArn": "arn:1",
        "startTime": "Fri, 15 Jan 2027 09:00:00 GMT",
        "affectedEntities": [{"entityValue": MACHINE}],
    }
    [one], [other] = (events.read("r", event(events.HEALTH, health, "aws.health", id=i), NOW).notices for i in "ab")
    assert one == other, "news of an event that is known, under another id of EventBridge's"
    for over in ({"statusCode": "closed"}, {"affectedEntities": [{"entityValue": MACHINE, "status": "RESOLVED"}]}):
        assert events.read("r", event(events.HEALTH, {**health, **over}, "aws.health"), NOW).notices == ()


def test_what_a_warning_warns_of() -> None:
    def read(**detail: str) -> tuple[str, float | None]:
        body = event(events.SPOT_WARNING, {"instance-id": MACHINE, **detail})
        [found] = events.read("r", body, NOW + 30).notices
        return found.notice.kind, found.notice.deadline

    assert read(**{"instance-action": "terminate"}) == ("reclaim", NOW + 120)
    assert read(**{"instance-action": "hibernate"}) == ("hibernate", NOW), "begins at once"
    told = {"instance-action": "terminate", "instance-termination-time": "2027-01-15T08:01:00Z"}
    assert read(**told) == ("reclaim", NOW + 60)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no JSON",
        "[]",
        "[" * 100_000,
        "{}",
        event(events.SPOT_WARNING, None),
        event(events.SPOT_WARNING, {"instance-action": "terminate"}),
        event(events.SPOT_WARNING, {"instance-id": MACHINE}),
        event(events.SPOT_WARNING, {"instance-id": MACHINE, "instance-action": "explode"}),
        event(events.SPOT_WARNING, {"instance-id": "../../etc", "instance-action": "terminate"}),
        event(events.SPOT_WARNING, {"instance-id": MACHINE, "instance-action": "terminate"}, time="soon"),
        event(events.SPOT_WARNING, {"instance-id": MACHINE, "instance-action": "terminate"}, id=7),
        event(events.REBALANCE, {"instance-id": 5}),
        event(events.STATE_CHANGE, {"instance-id": MACHINE}),
        event(
            events.HEALTH,
            {
                "service": "EC2",
                "eventTypeCategory": "scheduledChange",
                "eventArn": "a",
                "eventTypeCode": "c",
                "startTime": "?",
            },
            "aws.health",
        ),
    ],
)
def test_what_can_not_be_read_is_said_to_be_so(body: str) -> None:
    message = events.read("r", body, NOW)
    assert message.unreadable
    assert (message.notices, message.ended, message.body) == ((), (), body)


def test_other_events_are_read_and_mean_nothing() -> None:
    for body in (
        event("EBS Volume Notification", {}),
        event(events.SPOT_WARNING, {"instance-id": MACHINE, "instance-action": "terminate"}, "somebody.else"),
        event(events.STATE_CHANGE, {"instance-id": MACHINE, "state": "running"}),
    ):
        message = events.read("r", body, NOW)
        assert (message.notices, message.ended, message.unreadable) == ((), (), "")


def test_settings(tmp_path: Path) -> None:
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/q"
    with pytest.raises(ConfigError, match="two have the same events_queue"):
        config(tmp_path, one={**AWS, "events_queue": url}, two={**AWS, "events_queue": url})
    with pytest.raises(ConfigError, match=r"providers\.one\.aws\.events_queue"):
        config(tmp_path, one={**AWS, "events_queue": "q"})
    with pytest.raises(ConfigError, match="no 'local' of type aws; there are: ec2"):
        render.aws_events(config(tmp_path), "local")
