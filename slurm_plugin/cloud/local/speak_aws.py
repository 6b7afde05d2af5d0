"""AWS's instance metadata, version 2 only: a token by PUT, then GETs that carry it.

Source: Amazon EC2 User Guide, "Use the Instance Metadata Service" and "Spot Instance interruption notices". Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from slurm_plugin.cloud.local.http_types import Reply, Request, text

_TTL = "x-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "x-aws-ec2-metadata-token"  # noqa: S105 - a header's name
LONGEST_TTL = 21600


def answer(request: Request, machine: Mapping[str, Any], control: Mapping[str, Any], now: float) -> Reply:
    """One request. Without a valid token 401, as with HttpTokens=required."""
    path = request.path.rstrip("/")
    if path == "/latest/api/token":
        return _token(request, machine, control, now)
    if not _valid(request.headers.get(_TOKEN, ""), machine, control, now):
        return text("", 401)
    if request.method not in ("GET", "HEAD"):
        return text("", 405)
    found = _values(machine, control, now).get(path)
    if found is not None:
        return text(found)
    return _listing(path, machine, control, now)


def _token(request: Request, machine: Mapping[str, Any], control: Mapping[str, Any], now: float) -> Reply:
    if request.method != "PUT":
        return text("", 405)
    if "x-forwarded-for" in request.headers:
        return text("", 403)
    try:
        ttl = int(request.headers.get(_TTL, ""))
    except ValueError:
        return text("", 400)
    if not 1 <= ttl <= LONGEST_TTL:
        return text("", 400)
    token = _make_token(machine, control, int(now) + ttl)
    return Reply(200, token, {"Content-Type": "text/plain", "X-Aws-Ec2-Metadata-Token-Ttl-Seconds": str(ttl)})


def _make_token(machine: Mapping[str, Any], control: Mapping[str, Any], ends: int) -> str:
    """Carries its end, and the generation whose change makes all older tokens invalid at once."""
    secret = f"{machine['instance_id']} {control.get('tokens', 0)} {ends}"
    return f"{ends:x}-{hashlib.sha256(secret.encode()).hexdigest()[:40]}=="


def _valid(token: str, machine: Mapping[str, Any], control: Mapping[str, Any], now: float) -> bool:
    if len(token) > 100:
        return False
    try:
        ends = int(token.split("-", 1)[0], 16)
    except ValueError:
        return False
    return now < ends and token == _make_token(machine, control, ends)


def stamp(seconds: float) -> str:
    """``2026-05-02T08:22:00Z``."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _values(machine: Mapping[str, Any], control: Mapping[str, Any], now: float) -> dict[str, str]:
    meta = "/latest/meta-data"
    spot = machine["market"] == "spot"
    values = {
        f"{meta}/instance-id": machine["instance_id"],
        f"{meta}/instance-type": machine["instance_type"],
        f"{meta}/instance-life-cycle": "spot" if spot else "on-demand",
        f"{meta}/hostname": machine["node"],
        f"{meta}/local-hostname": machine["node"],
        f"{meta}/local-ipv4": machine["address"],
        f"{meta}/placement/availability-zone": machine["zone"],
        f"{meta}/placement/region": machine["region"],
        f"{meta}/autoscaling/target-lifecycle-state": control.get("lifecycle", "InService"),
        f"{meta}/events/maintenance/scheduled": json.dumps(control.get("maintenance", [])),
        "/latest/dynamic/instance-identity/document": json.dumps(
            {
                "instanceId": machine["instance_id"],
                "instanceType": machine["instance_type"],
                "availabilityZone": machine["zone"],
                "region": machine["region"],
                "privateIp": machine["address"],
            }
        ),
    }
    values |= {f"{meta}/tags/instance/{key}": value for key, value in machine["tags"].items()}
    if (reclaim := control.get("reclaim")) is not None and float(reclaim["noticed"]) <= now:
        when = stamp(float(reclaim["deadline"]))
        values[f"{meta}/spot/instance-action"] = json.dumps({"action": reclaim["action"], "time": when})
        if reclaim["action"] == "terminate":
            values[f"{meta}/spot/termination-time"] = when
    if (rebalance := control.get("rebalance")) is not None:
        values[f"{meta}/events/recommendations/rebalance"] = json.dumps(
            {"noticeTime": stamp(float(rebalance["noticed"]))}
        )
    return values


def _listing(path: str, machine: Mapping[str, Any], control: Mapping[str, Any], now: float) -> Reply:
    below = sorted(
        {
            rest[: rest.index("/") + 1] if "/" in rest else rest
            for key in _values(machine, control, now)
            if key.startswith(path + "/")
            for rest in [key[len(path) + 1 :]]
        }
    )
    return text("\n".join(below)) if below else text("Not Found", 404)
