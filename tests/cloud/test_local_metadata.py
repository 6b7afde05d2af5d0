"""What the metadata service of a local machine answers, and the server that carries it. Needs no root."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from http.server import ThreadingHTTPServer

import pytest

from job_wrapper.notice import aws as aws_notice
from job_wrapper.notice import azure as azure_notice
from job_wrapper.notice import gcp as gcp_notice
from job_wrapper.notice import probe as probing
from job_wrapper.notice.aws import AwsSource
from job_wrapper.notice.azure import AzureSource
from job_wrapper.notice.gcp import GcpSource
from job_wrapper.notice.watch import Source
from slurm_plugin.cloud.local import metadata, speak_aws, speak_azure, speak_gcp
from slurm_plugin.cloud.local.http_types import Reply, Request
from tests.unit.notice.listening import Listening

MACHINE = {
    "instance_id": "i-0123456789abcdef0",
    "node": "spot-1",
    "address": "10.77.0.2",
    "region": "local",
    "zone": "zone-a",
    "instance_type": "small",
    "market": "spot",
    "tags": {"spotburst-node": "spot-1"},
}
NOW = 1_800_000_000.0
RECLAIM = {"reclaim": {"notice_id": "i-1-1", "noticed": NOW, "deadline": NOW + 120.5, "action": "terminate"}}
META = "/latest/meta-data"


def aws(path: str, control=None, token: str | None = None, now: float = NOW) -> Reply:
    if token is None:
        token = aws_token(control)
    return speak_aws.answer(
        Request("GET", path, headers={"x-aws-ec2-metadata-token": token}), MACHINE, control or {}, now
    )


def aws_token(control=None, ttl: str = "60", now: float = NOW, method: str = "PUT", **headers: str) -> str:
    headers = {"x-aws-ec2-metadata-token-ttl-seconds": ttl, **{k.replace("_", "-"): v for k, v in headers.items()}}
    reply = speak_aws.answer(Request(method, "/latest/api/token", headers=headers), MACHINE, control or {}, now)
    return reply.body if reply.status == 200 else str(reply.status)


def test_aws_instance_action_is_missing_until_there_is_one() -> None:
    assert aws(f"{META}/spot/instance-action").status == 404
    assert aws(f"{META}/events/recommendations/rebalance").status == 404
    told = aws(f"{META}/spot/instance-action", RECLAIM)
    # Whole seconds, rounded down: the machine is never there shorter than it was told.
    assert json.loads(told.body) == {"action": "terminate", "time": "2027-01-15T08:02:00Z"}
    assert aws(f"{META}/spot/termination-time", RECLAIM).body == "2027-01-15T08:02:00Z"
    rebalance = aws(f"{META}/events/recommendations/rebalance", {"rebalance": {"noticed": NOW}})
    assert json.loads(rebalance.body) == {"noticeTime": "2027-01-15T08:00:00Z"}


def test_aws_wants_a_valid_token() -> None:
    assert aws(f"{META}/instance-id", token="").status == 401
    assert aws(f"{META}/instance-id", token="garbage").status == 401
    token = aws_token(ttl="60")
    assert aws(f"{META}/instance-id", token=token, now=NOW + 59).body == MACHINE["instance_id"]
    assert aws(f"{META}/instance-id", token=token, now=NOW + 61).status == 401
    assert aws(f"{META}/instance-id", {"tokens": 1}, token=token).status == 401
    assert aws_token(ttl="0") == aws_token(ttl="21601") == aws_token(ttl="x") == "400"
    assert aws_token(method="GET") == "405"
    assert aws_token(x_forwarded_for="1.2.3.4") == "403"


def test_aws_lists_what_is_below() -> None:
    lines = aws(f"{META}/").body.splitlines()
    assert {"instance-id", "placement/", "tags/", "autoscaling/"} <= set(lines)
    assert "spot/" not in lines
    assert "spot/" in aws(f"{META}/", RECLAIM).body.splitlines()
    assert aws(f"{META}/nothing").status == 404


def gcp(path: str, control=None, **headers: str) -> Reply:
    headers = headers or {"metadata-flavor": "Google"}
    return speak_gcp.answer(Request("GET", f"/computeMetadata/v1/{path}", headers=headers), MACHINE, control or {}, NOW)


def test_gcp_says_preempted() -> None:
    assert gcp("instance/preempted").body == "FALSE"
    assert gcp("instance/preempted", RECLAIM).body == "TRUE"
    assert gcp("instance/preempted", RECLAIM, accept="x").status == 403
    assert gcp("instance/maintenance-event", {"maintenance_event": "MIGRATE_ON_HOST_MAINTENANCE"}).body.startswith(
        "MIGRATE"
    )
    assert gcp("instance/nothing").status == 404


def azure(control=None, method: str = "GET", body: bytes = b"", version: str = "2020-07-01", **headers: str) -> Reply:
    headers = headers or {"metadata": "true"}
    return speak_azure.answer(
        Request(method, "/metadata/scheduledevents", {"api-version": version}, headers, body),
        MACHINE,
        control or {},
        NOW,
    )


def test_azure_tells_events() -> None:
    assert json.loads(azure().body) == {"DocumentIncarnation": 1, "Events": []}
    [event] = json.loads(azure(RECLAIM).body)["Events"]
    assert (event["EventType"], event["EventStatus"], event["Resources"]) == ("Preempt", "Scheduled", ["spot-1"])
    assert parsedate_to_datetime(event["NotBefore"]).timestamp() == int(NOW + 120.5)
    assert azure(RECLAIM, x="y").status == 400
    assert azure(RECLAIM, version="1999-01-01").status == 400


def test_azure_machine_gives_itself_up() -> None:
    body = json.dumps({"StartRequests": [{"EventId": "i-1-1"}]}).encode()
    reply = azure(RECLAIM, "POST", body)
    assert reply.status == 200
    assert reply.control is not None
    assert reply.control["reclaim"]["deadline"] <= NOW + 1
    [event] = json.loads(azure(reply.control).body)["Events"]
    assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")
    assert azure({}, "POST", body).status == 400
    assert azure(RECLAIM, "POST", b"no json").status == 400


@pytest.fixture
def gcp_server() -> Iterator[tuple[str, metadata.Control, ThreadingHTTPServer]]:
    control = metadata.Control()
    server = metadata.serve("127.0.0.1", {**MACHINE, "speaks": "gcp"}, control, port=0)
    yield f"http://127.0.0.1:{server.server_port}/computeMetadata/v1/instance/preempted", control, server
    server.shutdown()
    server.server_close()


class Waited(threading.Condition):
    """Tells when somebody waits for a change; ``told`` is set with the lock held, so that no change is made in between."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.told.set()
        return super().wait(timeout)


def ask(url: str) -> str:
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
        return answer.read().decode()


def test_gcp_hanging_get_returns_with_the_change(gcp_server) -> None:
    url, control, _ = gcp_server
    control.changed = waiting = Waited()
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(ask(f"{url}?wait_for_change=true&timeout_sec=240")))
    thread.start()
    assert waiting.told.wait(60)
    assert answers == [], "nothing has changed yet"
    waiting.told.clear()
    control.replace({"rebalance": {"noticed": 0}})
    assert waiting.told.wait(60)
    assert answers == [], "something else has changed"
    control.replace({"reclaim": {"notice_id": "x", "noticed": 0, "deadline": 1e12, "action": "terminate"}})
    thread.join(60)
    assert answers == ["TRUE"]


def test_gcp_hanging_get_ends_without_a_change(gcp_server) -> None:
    url, _, _ = gcp_server
    assert ask(f"{url}?wait_for_change=true&timeout_sec=0.2") == "FALSE"
    assert ask(f"{url}?wait_for_change=true&timeout_sec=x&last_etag=other") == "FALSE"


def source_of(speaks: str, url: str) -> Source:
    if speaks == "aws":
        return AwsSource(url, pause=0.05)
    return GcpSource(url, pause=0.05) if speaks == "gcp" else AzureSource(url, pause=0.05)


@pytest.mark.parametrize("speaks", ["aws", "gcp", "azure"])
def test_watcher_hears_a_reclaim_and_its_withdrawal(speaks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each dialect, and also when the machine's tokens are made invalid in between (AWS)."""
    for module in (aws_notice, azure_notice, gcp_notice, probing):
        monkeypatch.setattr(module, "SECONDS", 60.0)  # the service answers in this process
    control = metadata.Control()
    server = metadata.serve("127.0.0.1", {**MACHINE, "speaks": speaks}, control, port=0)
    url = f"http://127.0.0.1:{server.server_port}"
    ear = Listening(source_of(speaks, url))
    try:
        assert probing.probe(url) == speaks
        ear.looks(4 if speaks != "gcp" else 3)
        assert ear.heard == []
        control.replace({"tokens": 1})
        now = time.time()
        plan = {"notice_id": "x-1", "noticed": now, "deadline": now + 30, "action": "terminate"}
        control.replace({"tokens": 1, "reclaim": plan})
        ear.until(lambda: ear.heard)
        (notice,) = ear.heard
        assert notice is not None
        assert (notice.provider, notice.kind) == (speaks, "reclaim")
        assert notice.deadline is not None
        # AWS and Azure tell whole seconds; GCP tells none, and what it gives counts from the moment that it was heard.
        assert int(plan["deadline"]) <= notice.deadline <= notice.arrived + 30
        control.replace({"tokens": 1})
        ear.until(lambda: len(ear.heard) == 2)
        assert ear.heard[1] is None
        assert ear.log == []
    finally:
        ear.end()
        server.shutdown()
        server.server_close()


def test_the_server_survives_nonsense(gcp_server) -> None:
    url, _, _ = gcp_server
    request = urllib.request.Request(url, method="DELETE")  # noqa: S310
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=60)  # noqa: S310
    request = urllib.request.Request(url, data=b"x", headers={"Content-Length": "nonsense"})  # noqa: S310
    with pytest.raises(OSError):
        urllib.request.urlopen(request, timeout=60)  # noqa: S310
    assert ask(url) == "FALSE"


@pytest.mark.parametrize("length", ["\xb2", "9" * 5000, "-1", "1e3"])
def test_a_length_that_is_none_is_refused(length: str) -> None:
    server = metadata.serve("127.0.0.1", {**MACHINE, "speaks": "gcp"}, metadata.Control(), 0)
    try:
        with socket.create_connection(server.server_address[:2], 60.0) as stream:
            stream.sendall(f"POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode("latin-1"))
            assert stream.recv(100).startswith(b"HTTP/1.1 400 ")
    finally:
        server.shutdown()
        server.server_close()
