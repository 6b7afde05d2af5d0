"""What clouds and the node's agent tell of machines that go away."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from job_wrapper.notice.aws import AwsSource
from job_wrapper.notice.azure import AzureSource
from job_wrapper.notice.file import FileWatcher, read_notice
from job_wrapper.notice.gcp import GcpSource
from job_wrapper.notice.http import GivenUp
from job_wrapper.notice.types import Notice
from job_wrapper.notice.watch import Standing
from slurm_plugin.cloud.aws import events
from tests.fuzz.answering import Answering
from tests.fuzz.target import Feed, Room, Target, pure, text

_NOTICE = Notice("aws", "reclaim", "x", 1777710120.0, 1777710240.0, "terminate at …").to_json()
_WHEN = "2026-05-02T08:22:00Z"
_EVENTS = (
    {"id": "e1", "source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning", "time": _WHEN, "detail": {"instance-id": "i-0123456789abcdef0", "instance-action": "terminate"}},
    {"id": "e2", "source": "aws.ec2", "detail-type": "EC2 Instance Rebalance Recommendation", "time": _WHEN, "detail": {"instance-id": "i-0123456789abcdef0"}},
    {"id": "e3", "source": "aws.ec2", "detail-type": "EC2 Instance State-change Notification", "time": _WHEN, "detail": {"instance-id": "i-0123456789abcdef0", "state": "stopping"}},
    {"id": "e4", "source": "aws.health", "detail-type": "AWS Health Event", "time": _WHEN, "detail": {"service": "EC2", "eventTypeCategory": "scheduledChange", "eventArn": "arn:x",
     "eventTypeCode": "AWS_EC2_X", "startTime": "Sat, 02 May 2026 08:22:00 GMT", "affectedEntities": [{"entityValue": "i-0123456789abcdef0"}]}},
    {"id": "e5", "source": "aws.ec2", "detail-type": "EC2 Interruptible Capacity Reservation Instance Interruption Warning", "time": _WHEN, "detail": {"instance-id": "i-0123456789abcdef0", "instance-action": "hibernate", "instance-termination-time": _WHEN}},
)  # fmt: skip
_AWS = (
    json.dumps({"action": "terminate", "time": _WHEN}), "Terminated", "InService", json.dumps({"noticeTime": _WHEN}),
    json.dumps([{"EventId": "instance-event-1", "Code": "system-reboot", "NotBefore": "21 Jan 2026 09:00:43 GMT", "State": "active", "Description": "x"}]),
)  # fmt: skip
_GCP = ("TRUE", "FALSE", "NONE", "TERMINATE_ON_HOST_MAINTENANCE")
_AZURE = (
    json.dumps({"DocumentIncarnation": 1, "Events": [{"EventId": "A", "EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": ["spot-1"], "EventStatus": "Scheduled", "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT"}]}),
    json.dumps({"compute": {"name": "spot-1"}}),
)  # fmt: skip


def targets() -> list[Target]:
    """All of them."""
    known = (OSError, ValueError, RecursionError)
    return [
        Target("notice-file", _file, (_NOTICE.encode(),)),
        pure("eventbridge", _eventbridge, tuple(json.dumps(event) for event in _EVENTS)),
        Target("metadata-aws", _source(AwsSource), _framed(*_AWS), known),
        Target("metadata-gcp", _source(GcpSource), _framed(*_GCP, headers="Metadata-Flavor: Google\r\nETag: a1\r\n"), known),
        Target("metadata-azure", _source(lambda url: AzureSource(url, "spot-1")), _framed(*_AZURE), known),
    ]  # fmt: skip


def _framed(*bodies: str, headers: str = "") -> tuple[bytes, ...]:
    return (
        *(body.encode() for body in bodies),
        *(
            f"HTTP/1.1 200 OK\r\n{headers}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode()
            for body in bodies
        ),
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nTRUE\r\n0\r\n\r\n",
    )


def _source(make: Callable[[str], Any]) -> Callable[[Room], Feed]:
    def open_(room: Room) -> Feed:
        server = room.stack.enter_context(
            Answering("Metadata-Flavor: Google\r\nETag: a1\r\nContent-Type: text/plain\r\n")
        )
        for name in ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "GCE_METADATA_HOST"):
            os.environ.pop(name, None)

        def feed(data: bytes) -> None:
            server.answer = data
            source = make(server.url)
            standing = Standing(Notice.from_json(_NOTICE))
            try:
                for _ in range(2):
                    for notice in standing.take(source.look(lambda: 1777710120.0, lambda _: False)):
                        assert notice is None or Notice.from_json(notice.to_json()) == notice, "a notice can't be told"
            except GivenUp:
                raise AssertionError("nobody gave up") from None

        return feed

    return open_


def _file(room: Room) -> Feed:
    path = room.file("notice.json")

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        heard: list[Notice | None] = []
        FileWatcher(str(path)).look(heard.append)
        found = read_notice(path)
        assert heard in ([], [found]), "the two readers differ"
        if found is not None:
            Notice.from_json(found.to_json())

    return feed


def _eventbridge(data: bytes) -> None:
    message = events.read("r", text(data), 1777710120.0)
    for told in message.notices:
        assert Notice.from_json(told.notice.to_json()) == told.notice, "a notice can't be told"
