"""Which watchers a node gets."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from job_wrapper.errors import UsageError
from job_wrapper.node_config import NodeConfig
from job_wrapper.notice import probe
from job_wrapper.notice.choose import find_provider, source_of, wrapper_watchers
from job_wrapper.notice.file import FileWatcher
from job_wrapper.notice.types import Notice
from job_wrapper.notice.watch import CloudWatcher
from tests.fixtures.imds import ACTION, EVENTS, INSTANCE, PREEMPTED, Imds

HERE = {
    "aws": {"/latest/meta-data/instance-id": "i-0123456789abcdef0"},
    "gcp": {"/computeMetadata/v1/instance/id": "1234"},
    "azure": {INSTANCE: '{"compute":{"name":"vm-1","vmId":"1-2"}}', EVENTS: '{"Events":[]}'},
}


@pytest.mark.parametrize("provider", HERE)
def test_whose_service_answers(service: Imds, provider: str) -> None:
    service.pages = HERE[provider]
    assert probe.probe(service.url) == provider
    assert find_provider(NodeConfig(metadata_url=service.url), lambda _: False) == provider


@pytest.mark.parametrize("ill", ["html", "reset"])
def test_what_answers_in_nobodys_manner_is_nobodys(service: Imds, ill: str) -> None:
    service.ill = ill
    assert probe.probe(service.url) == ""


def test_nobody_is_there(service: Imds, monkeypatch: pytest.MonkeyPatch) -> None:
    until = time.monotonic() + 120
    monkeypatch.setattr(probe, "SECONDS", 0.2)
    service.ill = "hang"
    assert probe.probe(service.url) == ""
    while not service.asked:  # it may not have come to the request yet
        assert time.monotonic() < until
        time.sleep(0.01)
    assert len(service.asked) == 1, "the others would take as long"
    assert probe.probe("http://127.0.0.1:1") == ""


def test_settings_come_first(service: Imds) -> None:
    service.pages = HERE["aws"]
    node = NodeConfig(provider="gcp", metadata_url=service.url)
    assert find_provider(node, lambda _: False) == "gcp"
    assert find_provider(NodeConfig(provider="none", metadata_url=service.url), lambda _: False) == ""
    assert service.asked == []


@pytest.mark.parametrize(("provider", "kinds"), [("aws", 2), ("gcp", 2), ("azure", 2), ("none", 1), ("auto", 2)])
def test_wrapper_watches_the_file_and_the_cloud(provider: str, kinds: int) -> None:
    watchers = wrapper_watchers(NodeConfig(provider=provider), lambda _: None)
    assert len(watchers) == kinds
    assert isinstance(watchers[0], FileWatcher)
    if provider in HERE:
        assert isinstance(watchers[1], CloudWatcher)
        assert watchers[1].source.provider == provider


def test_without_settings_only_a_clouds_own_machine_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not probe.vendor_hint(tmp_path)
    (tmp_path / "sys_vendor").write_text("LENOVO\n")
    assert not probe.vendor_hint(tmp_path)
    for vendor in ("Amazon EC2", "Google", "Microsoft Corporation"):
        (tmp_path / "sys_vendor").write_text(vendor + "\n")
        assert probe.vendor_hint(tmp_path)
    for hint in (True, False):
        monkeypatch.setattr(probe, "vendor_hint", lambda hint=hint: hint)
        assert len(wrapper_watchers(NodeConfig(), lambda _: None)) == 1 + hint


def test_found_service_is_watched(service: Imds) -> None:
    service.pages = {**HERE["gcp"], PREEMPTED: "TRUE"}
    heard: list[Notice | None] = []
    stop = threading.Event()
    node = NodeConfig(provider="auto", metadata_url=service.url, notice_file="/nonexistent/notice.json")
    (_, watcher) = wrapper_watchers(node, lambda _: None)

    def emit(notice: Notice | None) -> None:
        heard.append(notice)
        stop.set()

    thread = threading.Thread(target=watcher.watch, args=(emit, stop.wait), daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    assert [n and n.provider for n in heard] == ["gcp"]


def test_search_ends_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TRIES", (0.0, 0.0))
    node = NodeConfig(provider="auto", metadata_url="http://127.0.0.1:1")
    (_, watcher) = wrapper_watchers(node, lambda _: None)
    watcher.watch(lambda _: pytest.fail("no notice"), lambda _: False)
    assert find_provider(node, lambda _: False) == ""


def test_wrong_settings_are_named() -> None:
    with pytest.raises(UsageError, match="'hetzner'; known here: aws, azure, gcp"):
        source_of("hetzner", NodeConfig())
    for url in ("https://x", "http://", "http://x:port", ""):
        with pytest.raises(UsageError, match="metadata_url"):
            source_of("aws", NodeConfig(metadata_url=url))
        with pytest.raises(UsageError, match="metadata_url"):
            find_provider(NodeConfig(metadata_url=url), lambda _: False)


def test_a_watcher_that_finds_no_address_says_so_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    watchers = wrapper_watchers(NodeConfig(provider="auto", metadata_url="ftp://x"), said.append)
    watchers[1].watch(lambda _: None, lambda _: False)
    assert len(said) == 1
    assert "'ftp://x' is not the address of a metadata service" in said[0]


def test_address_from_the_environment(service: Imds, monkeypatch: pytest.MonkeyPatch) -> None:
    service.pages[ACTION] = '{"action":"terminate","time":"2026-05-02T08:22:00Z"}'
    service.pages[PREEMPTED] = "TRUE"
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url)
    monkeypatch.setenv("GCE_METADATA_HOST", service.url.removeprefix("http://"))
    for provider in ("aws", "gcp"):
        look = source_of(provider, NodeConfig()).look(lambda: 1.0, lambda _: False)
        assert [n.kind for n in look.notices] == ["reclaim"]
