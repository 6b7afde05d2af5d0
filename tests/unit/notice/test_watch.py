"""What is told from one look to the next; services that are ill; and that no answer whatever makes a watcher raise or cry wolf."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from job_wrapper.node_config import NodeConfig
from job_wrapper.notice import aws, azure, gcp
from job_wrapper.notice.choose import source_of
from job_wrapper.notice.http import Answer, Client
from job_wrapper.notice.types import TAKES_AWAY, Notice
from job_wrapper.notice.watch import MISSES, CloudWatcher, Look, Source, Standing
from tests.fixtures.imds import ACTION, EVENTS, INSTANCE, PREEMPTED, Imds
from tests.unit.notice.listening import Listening

Listen = Callable[..., Listening]
PROVIDERS = ("aws", "gcp", "azure")


def make(provider: str, url: str) -> Source:
    if provider == "aws":
        return aws.AwsSource(url, pause=0.02)
    if provider == "gcp":
        return gcp.GcpSource(url, pause=0.02, wait=1)
    return azure.AzureSource(url, pause=0.02)


def calm(service: Imds) -> None:
    service.pages |= {PREEMPTED: "FALSE", gcp.MAINTENANCE: "NONE", EVENTS: '{"Events":[]}'}
    service.pages[INSTANCE] = '{"compute":{"name":"vm-1","vmId":"x"}}'
    service.pages.pop(ACTION, None)


def reclaim(service: Imds) -> None:
    service.pages[ACTION] = '{"action":"terminate","time":"2099-05-02T08:22:00Z"}'
    service.pages[PREEMPTED] = "TRUE"
    event = {
        "EventId": "e",
        "EventType": "Preempt",
        "Resources": ["vm-1"],
        "EventStatus": "Scheduled",
        "NotBefore": "Mon, 19 Sep 2099 18:29:47 GMT",
    }
    service.pages[EVENTS] = json.dumps({"Events": [event]})


@pytest.mark.parametrize("ill", ["reset", "html", "hang", "drip"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_service_that_is_ill_says_nothing_and_is_heard_when_it_is_well(
    service: Imds, listen: Listen, monkeypatch: pytest.MonkeyPatch, provider: str, ill: str
) -> None:
    for module in (aws, gcp, azure):
        monkeypatch.setattr(module, "SECONDS", 0.3)
    monkeypatch.setattr(azure, "FIRST_SECONDS", 0.3)
    calm(service)
    reclaim(service)
    service.ill = ill
    ear = listen(make(provider, service.url))
    ear.looks(2)
    assert ear.heard == []
    assert len(ear.log) == 1
    service.ill = ""
    ear.until(lambda: ear.heard)
    service.ill = ill
    ear.looks(MISSES + 1)
    assert [n and n.kind for n in ear.heard] == ["reclaim"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_service_that_is_not_there(listen: Listen, provider: str) -> None:
    ear = listen(make(provider, "http://127.0.0.1:1"))
    ear.looks(4)
    assert ear.heard == []
    assert len(ear.log) == 1


@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_proxy_is_asked(service: Imds, listen: Listen, monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    calm(service)
    reclaim(service)
    ear = listen(make(provider, service.url))
    ear.until(lambda: ear.heard)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_all_of_a_slow_answer_has_one_bound(service: Imds, provider: str) -> None:
    """A byte every 50 ms would hold a client with a time limit on each read for ever."""
    service.ill = "drip"
    with pytest.raises(OSError):
        Client(service.url).ask("GET", "/x", {}, 0.4)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_ends_at_once_in_the_middle_of_a_request(service: Imds, listen: Listen, provider: str) -> None:
    service.ill = "hang"
    ear = listen(make(provider, service.url))
    ear.until(lambda: service.asked)
    ear.end()
    assert ear.log == [], "that it was stopped is no fault"


ACTS = ["terminate", "Preempt", "vm-1", "TRUE", "FALSE", "Terminated", "Scheduled", "Started", "2026-05-02T08:22:00Z"]
KEYS = [
    "action",
    "time",
    "Events",
    "EventId",
    "EventType",
    "EventStatus",
    "NotBefore",
    "Resources",
    "noticeTime",
    "Code",
]
WORDS = st.sampled_from([*ACTS, *KEYS])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=8),
    max_leaves=20,
)
BODIES = st.text() | WORDS | VALUES.map(json.dumps) | st.binary().map(lambda b: b.decode("utf-8", "replace"))
ANSWERS = st.tuples(st.sampled_from([200, 200, 200, 404, 401, 403, 429, 500, 503]), BODIES)


def true_losses(provider: str, pages: dict[str, tuple[int, str]]) -> bool:
    """Whether, by a reading of our own, some page tells of the end of this machine."""

    def data(path: str) -> object:
        status, body = pages.get(path, (404, ""))
        try:
            return json.loads(body) if status == 200 else None
        except ValueError:
            return None

    if provider == "gcp":
        status, body = pages.get(PREEMPTED, (404, ""))
        return status == 200 and body.strip() == "TRUE"
    if provider == "aws":
        action = data(ACTION)
        state = pages.get(aws.LIFECYCLE, (404, ""))
        told = isinstance(action, dict) and action.get("action") in ("terminate", "stop", "hibernate")
        return told or (state[0] == 200 and state[1].strip() == "Terminated")
    document = data(EVENTS)
    events = document.get("Events") if isinstance(document, dict) else None
    return any(
        isinstance(e, dict)
        and e.get("EventType") in ("Preempt", "Terminate")
        and "vm-1" in str(e.get("Resources")).lower()
        for e in (events if isinstance(events, list) else [])
    )


PATHS = [ACTION, aws.LIFECYCLE, aws.REBALANCE, aws.SCHEDULED, PREEMPTED, gcp.MAINTENANCE, EVENTS]


@given(
    provider=st.sampled_from(PROVIDERS), rounds=st.lists(st.dictionaries(st.sampled_from(PATHS), ANSWERS), max_size=5)
)
def test_no_answer_makes_it_raise_or_cry_wolf(provider: str, rounds: list[dict[str, tuple[int, str]]]) -> None:
    source = source_of(provider, NodeConfig(metadata_url="http://127.0.0.1:1", node="vm-1"))
    pages: dict[str, tuple[int, str]] = {}

    class Fake(Client):
        def __init__(self) -> None:
            pass

        def ask(self, method, path, headers, seconds, stopped=lambda _: False):  # type: ignore[no-untyped-def]
            if method == "PUT":
                return Answer(200, "token", {})
            status, body = pages.get(path.partition("?")[0], (404, ""))
            return Answer(status, body, {"metadata-flavor": "Google"})

    holder = source._metadata if isinstance(source, aws.AwsSource) else source  # type: ignore[attr-defined]
    holder._client = Fake()
    heard: list[Notice | None] = []
    told = False
    for pages in rounds:
        told = told or true_losses(provider, pages)
        # One look: stopped before the second.
        stops = iter([False])
        CloudWatcher(source).watch(heard.append, lambda _, stops=stops: next(stops, True))  # type: ignore[misc]
        assert told or not any(n is not None and n.kind in TAKES_AWAY for n in heard)
    for notice in heard:
        assert notice is not None
        assert Notice.from_json(notice.to_json()) == notice


HEADS = st.sampled_from(
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
TAILS = st.sampled_from(
    [b"", b"\r\n", b"\r\nTRUE", b"Content-Length: -1\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"]
)


@settings(max_examples=60)
@given(provider=st.sampled_from(PROVIDERS), head=HEADS, middle=st.binary(max_size=60), tail=TAILS)
def test_bytes_that_are_no_http_are_no_notice(provider: str, head: bytes, middle: bytes, tail: bytes) -> None:
    answer = head + middle + tail
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.recv(4096)
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        heard: list[Notice | None] = []
        stops = iter([False])
        source = make(provider, f"http://127.0.0.1:{listener.getsockname()[1]}")
        source.pause = 60.0  # so that it waits after the first look, however long that takes
        CloudWatcher(source).watch(heard.append, lambda seconds: seconds > 0 or next(stops, False))
        listener.shutdown(socket.SHUT_RDWR)
    # GCP's notice is one word: it is heard where Google's server says it, and nowhere else.
    assert not heard or (provider == "gcp" and b"Metadata-Flavor: Google" in answer and answer.endswith(b"TRUE"))


IDS = st.sampled_from(["a", "b"])
NOTICES = st.builds(
    lambda kind, name, deadline: Notice("aws", kind, name, 1.0, deadline),
    st.sampled_from(["reclaim", "rebalance"]),
    IDS,
    st.none() | st.floats(0, 100),
)
LOOKS = st.builds(Look, st.lists(NOTICES, max_size=3).map(tuple), st.booleans())


@given(st.lists(LOOKS, max_size=30))
def test_standing_tells_what_stands(looks: list[Look]) -> None:
    """Who listens always knows the notice that stands; a withdrawal comes after several complete looks without one, never otherwise."""
    standing = Standing()
    known: Notice | None = None
    quiet = 0
    for look in looks:
        losses = [n for n in look.notices if n.kind in TAKES_AWAY]
        quiet = 0 if losses else quiet + look.complete
        for said in standing.take(look):
            if said is None:
                assert known is not None
                assert quiet >= MISSES
                known = None
            elif said.kind in TAKES_AWAY:
                assert said != known, "nothing is told twice"
                assert said.source_id in {n.source_id for n in losses}
                known = said
        assert standing.current == known
        if losses:
            assert known is not None
            soonest = min(math.inf if n.deadline is None else n.deadline for n in losses)
            if look.complete or known.source_id in {n.source_id for n in losses}:
                assert (math.inf if known.deadline is None else known.deadline) <= soonest + 1.0
        if quiet >= MISSES:
            assert known is None
