"""EventBridge's events about EC2 instances as notices. Nothing is sent here.

Sources: EC2 User Guide, "Spot Instance interruption notices" (the event of an interruption comes two minutes ahead of it, of a hibernation not
ahead at all; ``time`` is when it was sent), "EC2 instance rebalance recommendations", "State change events", "Interruptible Capacity
Reservations"; AWS Health User Guide, "AWS Health events Amazon EventBridge schema".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from job_wrapper.notice.aws import parse_time
from job_wrapper.notice.types import Kind, Notice
from slurm_plugin.cloud.mailbox import MachineNotice, Message

SPOT_WARNING = "EC2 Spot Instance Interruption Warning"
RESERVATION_WARNING = "EC2 Interruptible Capacity Reservation Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
STATE_CHANGE = "EC2 Instance State-change Notification"
HEALTH = "AWS Health Event"
AHEAD: Mapping[str, float] = {"terminate": 120.0, "stop": 120.0, "hibernate": 0.0}
"""Seconds between the sending of a warning and what it warns of, by action."""
ENDING = ("stopping", "stopped", "shutting-down", "terminated")
_KINDS: Mapping[str, Kind] = {"terminate": "reclaim", "stop": "stop", "hibernate": "hibernate"}
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")


def read(receipt: str, body: str, now: float) -> Message:
    """A message of the queue. ``now``: when it came, Unix seconds; nothing but ``arrived`` follows from it."""
    try:
        event = json.loads(body)
        if not isinstance(event, dict) or not isinstance(event.get("detail-type"), str):
            raise ValueError("it is no event of EventBridge")
        reader = _READERS.get((event.get("source"), event["detail-type"]))
        notices: list[MachineNotice] = []
        ended: list[str] = []
        for found in reader(event, now) if reader else ():
            if isinstance(found, str):
                ended.append(found)
            else:
                notices.append(found)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        return Message(receipt, body, unreadable=str(error) or type(error).__name__)
    return Message(receipt, body, tuple(notices), tuple(ended))


def _interruption(event: Mapping[str, Any], now: float) -> Iterator[MachineNotice]:
    detail = _table(event, "detail")
    action = _text(detail, "instance-action")
    if action not in _KINDS:
        raise ValueError(f"instance-action is {action!r}, none of {', '.join(_KINDS)}")
    told = detail.get("instance-termination-time")
    deadline = parse_time(told) if isinstance(told, str) else parse_time(_text(event, "time")) + AHEAD[action]
    notice = Notice("aws", _KINDS[action], _text(event, "id"), now, deadline, f"EC2 means to {action} it")
    yield MachineNotice(_instance(detail), notice)


def _rebalance(event: Mapping[str, Any], now: float) -> Iterator[MachineNotice]:
    when = _text(event, "time")
    parse_time(when)
    text = f"EC2 recommends to leave it, since {when}"
    yield MachineNotice(
        _instance(_table(event, "detail")), Notice("aws", "rebalance", _text(event, "id"), now, None, text)
    )


def _state_change(event: Mapping[str, Any], now: float) -> Iterator[str]:
    detail = _table(event, "detail")
    instance_id = _instance(detail)
    if _text(detail, "state") in ENDING:
        yield instance_id


def _health(event: Mapping[str, Any], now: float) -> Iterator[MachineNotice]:
    detail = _table(event, "detail")
    if detail.get("service") != "EC2" or detail.get("eventTypeCategory") != "scheduledChange":
        return
    if detail.get("statusCode") == "closed":
        return
    arn, code, start = _text(detail, "eventArn"), _text(detail, "eventTypeCode"), _text(detail, "startTime")
    deadline = parsedate_to_datetime(start).timestamp()
    for entity in detail.get("affectedEntities") or ():
        name = entity.get("entityValue") if isinstance(entity, dict) else None
        # Volumes and reservations stand there too.
        if not isinstance(name, str) or not _INSTANCE.fullmatch(name) or entity.get("status") == "RESOLVED":
            continue
        # The same event is sent again with news, under other ids of EventBridge's.
        notice = Notice("aws", "maintenance", f"{arn}:{name}", now, deadline, f"{code} from {start}")
        yield MachineNotice(name, notice)


_Reader = Callable[[Mapping[str, Any], float], Iterator[MachineNotice] | Iterator[str]]
_READERS: Mapping[tuple[Any, str], _Reader] = {
    ("aws.ec2", SPOT_WARNING): _interruption,
    ("aws.ec2", RESERVATION_WARNING): _interruption,
    ("aws.ec2", REBALANCE): _rebalance,
    ("aws.ec2", STATE_CHANGE): _state_change,
    ("aws.health", HEALTH): _health,
}


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} is {str(value)[:80]!r}, no object")
    return value


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is {str(value)[:80]!r}, no text")
    return value


def _instance(detail: Mapping[str, Any]) -> str:
    instance_id = _text(detail, "instance-id")
    if not _INSTANCE.fullmatch(instance_id):
        raise ValueError(f"instance-id is {instance_id[:80]!r}, no instance's")
    return instance_id
