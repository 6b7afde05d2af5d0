"""AWS's reclaim notices, heard from a service that speaks IMDSv2."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from job_wrapper.notice.aws import AwsWatcher, parse_action, parse_time
from job_wrapper.notice.types import Notice
from tests.fixtures.imds import ACTION, REBALANCE, Imds, imds

TERMINATE = '{"action":"terminate","time":"2026-05-02T08:22:00Z"}'


class Listening:
    """A watcher in a thread, and what it emitted."""

    def __init__(self, service: Imds, **more: object) -> None:
        self.heard: list[Notice | None] = []
        self.log: list[str] = []
        self.stop = threading.Event()
        watcher = AwsWatcher(service.url, interval=0.02, log=self.log.append, **more)  # type: ignore[arg-type]
        self.thread = threading.Thread(target=watcher.watch, args=(self.heard.append, self.stop.wait), daemon=True)
        self.thread.start()

    def until(self, what: Callable[[], object]) -> None:
        end = time.monotonic() + 10
        while not what():
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture
def service() -> Iterator[Imds]:
    with imds() as found:
        yield found


@pytest.fixture
def listen(service: Imds) -> Iterator[Callable[..., Listening]]:
    made: list[Listening] = []

    def start(**more: object) -> Listening:
        made.append(Listening(service, **more))
        return made[-1]

    yield start
    for one in made:
        one.stop.set()
        one.thread.join(5)
        assert not one.thread.is_alive()


def looks(service: Imds, ear: Listening, count: int = 5) -> None:
    """That many more looks have passed."""
    before = service.gets()
    ear.until(lambda: service.gets() >= before + count)


@pytest.mark.parametrize(("action", "kind"), [("terminate", "reclaim"), ("stop", "stop"), ("hibernate", "hibernate")])
def test_notice_is_heard_once(service: Imds, listen: Callable[..., Listening], action: str, kind: str) -> None:
    ear = listen()
    looks(service, ear)
    assert ear.heard == []
    service.pages[ACTION] = TERMINATE.replace("terminate", action)
    ear.until(lambda: ear.heard)
    looks(service, ear)
    (notice,) = ear.heard
    assert notice is not None
    assert (notice.provider, notice.kind, notice.deadline) == ("aws", kind, 1777710120.0)


def test_identity_does_not_depend_on_who_looks_when() -> None:
    first, second = parse_action(TERMINATE, 1.0), parse_action(TERMINATE, 2.0)
    assert first.source_id == second.source_id
    assert parse_action(TERMINATE.replace("08:22", "08:23"), 1.0).source_id != first.source_id


def test_time() -> None:
    assert parse_time("2026-05-02T08:22:00Z") == 1777710120.0
    with pytest.raises(ValueError):
        parse_time("May 2nd")


def test_expired_token_is_renewed_once(service: Imds, listen: Callable[..., Listening]) -> None:
    ear = listen()
    looks(service, ear)
    service.expire()
    service.pages[ACTION] = TERMINATE
    ear.until(lambda: ear.heard)
    assert len([1 for _, _, status in service.asked if status == 401]) == 1
    assert len([1 for method, _, _ in service.asked if method == "PUT"]) == 2


@pytest.mark.parametrize(
    "page",
    [
        "",
        "null",
        "[]",
        "{",
        '{"action":"terminate"}',
        '{"action":"dance","time":"2026-05-02T08:22:00Z"}',
        (500, "oops"),
        (403, ""),
    ],
)
def test_nonsense_is_neither_a_notice_nor_a_withdrawal(
    service: Imds, listen: Callable[..., Listening], page: str | tuple[int, str]
) -> None:
    ear = listen()
    service.pages[ACTION] = page
    looks(service, ear)
    assert ear.heard == []
    assert len(ear.log) == 1, "said once, not at every look"
    service.pages[ACTION] = TERMINATE
    ear.until(lambda: ear.heard)
    service.pages[ACTION] = page
    looks(service, ear)
    assert len(ear.heard) == 1


def test_withdrawn_only_after_several_looks_that_find_nothing(service: Imds, listen: Callable[..., Listening]) -> None:
    service.pages[ACTION] = TERMINATE
    ear = listen()
    ear.until(lambda: ear.heard)
    del service.pages[ACTION]
    ear.until(lambda: len(ear.heard) == 2)
    assert ear.heard[1] is None
    service.pages[ACTION] = TERMINATE
    ear.until(lambda: len(ear.heard) == 3)


def test_notice_known_before_is_not_emitted_again_but_its_withdrawal_is(
    service: Imds, listen: Callable[..., Listening]
) -> None:
    service.pages[ACTION] = TERMINATE
    ear = listen(known=parse_action(TERMINATE, 5.0))
    looks(service, ear)
    assert ear.heard == []
    del service.pages[ACTION]
    ear.until(lambda: ear.heard == [None])


def test_rebalance_is_a_warning_of_its_own(service: Imds, listen: Callable[..., Listening]) -> None:
    service.pages[REBALANCE] = '{"noticeTime":"2026-05-02T08:00:00Z"}'
    ear = listen()
    looks(service, ear, 20)
    (notice,) = ear.heard
    assert notice is not None
    assert notice.kind == "rebalance"


def test_service_that_is_not_there_is_looked_for_again(listen: Callable[..., Listening], service: Imds) -> None:
    url, service.url = service.url, "http://127.0.0.1:1"
    ear = listen()
    ear.until(lambda: ear.log)
    assert ear.heard == []
    service.url = url


def test_asleep_while_the_agent_looks(service: Imds, listen: Callable[..., Listening]) -> None:
    awake = threading.Event()
    service.pages[ACTION] = TERMINATE
    ear = listen(asleep=lambda: not awake.is_set())
    time.sleep(0.2)
    assert service.asked == []
    awake.set()
    ear.until(lambda: ear.heard)
