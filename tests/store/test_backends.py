"""What every backend promises (``ObjectStore``), on a real file system and a server of every kind."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from job_wrapper.errors import Damaged, ObjectMissing, StoreRefused
from job_wrapper.store.check import check_store
from job_wrapper.store.io_types import ObjectStore, Put
from job_wrapper.store.open import open_store
from tests.fixtures.seaweedfs import S3Server


def test_an_object_is_created_once(store: ObjectStore) -> None:
    assert store.put_if_absent("a/b/one", b"first") is Put.CREATED
    assert store.put_if_absent("a/b/one", b"second") is Put.EXISTS
    assert store.get("a/b/one") == b"first"


def test_racing_creations_have_one_winner(store: ObjectStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: store.put_if_absent("race", f"{n}".encode()), range(8)))
    assert results.count(Put.CREATED) == 1
    assert store.get("race") == f"{results.index(Put.CREATED)}".encode()


def test_a_large_object_is_read_as_it_was_written(store: ObjectStore) -> None:
    data = os.urandom(21 << 20)
    pieces = [0, 1, 1000, 9 << 20, (17 << 20) + 5, len(data)]
    writer = store.open_write("data/large.pack")
    reused = bytearray(len(data))
    for start, end in pairwise(pieces):
        piece = memoryview(reused)[: end - start]
        piece[:] = data[start:end]
        writer.write(piece)
        piece[:] = bytes(len(piece))  # the caller may reuse its memory at once
    assert [i.key for i in store.list("data/")] == []  # nothing is seen before it is whole
    writer.close()
    assert [(i.key, i.size) for i in store.list("data/")] == [("data/large.pack", len(data))]
    assert store.get("data/large.pack") == data
    assert store.get_range("data/large.pack", 12345, 9 << 20) == data[12345 : 12345 + (9 << 20)]
    into = bytearray(1000)
    store.read_into("data/large.pack", len(data) - 1000, memoryview(into))
    assert into == data[-1000:]


def test_a_large_object_that_is_given_up_is_never_seen(store: ObjectStore) -> None:
    writer = store.open_write("data/x.pack")
    writer.write(os.urandom(20 << 20))
    writer.abort()
    writer.abort()
    with pytest.raises(ObjectMissing):
        store.get("data/x.pack")
    assert list(store.list("data/")) == []


def test_missing_and_short_objects_are_named(store: ObjectStore) -> None:
    store.put("short", b"0123456789")
    for read in (lambda: store.get("a/none"), lambda: store.get_range("a/none", 0, 1)):
        with pytest.raises(ObjectMissing, match="a/none"):
            read()
    for offset, length in ((5, 6), (10, 1), (100, 10)):
        with pytest.raises(Damaged, match="short"):
            store.get_range("short", offset, length)


def test_listing_is_by_prefix_and_in_key_order(store: ObjectStore) -> None:
    keys = ["run/log/00000002.json", "run/log/00000000.json", "run/logs/x", "run/log-a", "run/log/00000010.json"]
    for key in keys:
        store.put(key, b"xy")
    assert [i.key for i in store.list("run/log/")] == sorted(k for k in keys if k.startswith("run/log/"))
    assert [i.key for i in store.list("run/log")] == sorted(keys)
    assert list(store.list("nothing/")) == []


def test_more_objects_than_a_page_of_a_listing_and_a_request_to_delete(
    store: ObjectStore, request: pytest.FixtureRequest
) -> None:
    # Azure lists 5000 a page, too many for a test, and deletes 256 in one request; ministack is slower than SeaweedFS.
    count = 1100 if request.node.callspec.params["uri"] in ("file", "seaweedfs", "gcs") else 300
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.put(f"many/{n:05d}", b""), range(count)))
    assert [i.key for i in store.list("many/")] == [f"many/{n:05d}" for n in range(count)]
    store.delete([f"many/{n:05d}" for n in range(count)])
    assert list(store.list("many/")) == []


def test_deleting_what_is_not_there_is_no_error(store: ObjectStore) -> None:
    store.put("x/y/z", b"1")
    store.delete(["x/y/z", "x/y/z", "never/was"])
    assert list(store.list("")) == []
    store.put("x/y/z", b"2")
    assert store.get("x/y/z") == b"2"


@pytest.mark.parametrize("key", ["../out", "/etc/passwd", "a//b", "a/../b", "", "a/./b", "a/b~1", "a\nb", "a/"])
def test_no_key_leaves_the_store(store: ObjectStore, key: str) -> None:
    for act in (lambda: store.put(key, b""), lambda: store.get(key), lambda: store.delete([key])):
        with pytest.raises(Damaged, match="not a name"):
            act()


def test_first_use_proves_the_store_and_leaves_only_the_mark(uri: str) -> None:
    store = open_store(uri)
    assert [i.key for i in store.list("")] == [".spotburst/store.json"]
    open_store(uri)
    assert [i.key for i in store.list("")] == [".spotburst/store.json"]


def test_check_reports_and_leaves_only_the_mark(uri: str) -> None:
    report = check_store(uri, size=16 << 20)
    assert report.safe, report.verdict
    assert [p.kept for p in report.proofs] == [True] * 6
    assert report.write_speed > 0 and report.read_speed > 0 and report.measured_bytes >= 16 << 20
    assert [i.key for i in open_store(uri, prove=False).list("")] == [".spotburst/store.json"]


@pytest.mark.s3
def test_wrong_credentials_are_refused_with_advice(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreRefused, match=r"SignatureDoesNotMatch.*Check the credentials"):
        open_store(s3_uri)
    assert "Check the credentials" in check_store(s3_uri).verdict


@pytest.mark.s3
def test_profile_gives_credentials_and_endpoint(
    s3_server: S3Server, s3_uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in s3_server.environment:
        monkeypatch.delenv(name)
    config, credentials = tmp_path / "config", tmp_path / "credentials"
    config.write_text(f"[profile burst]\nregion = us-east-1\nendpoint_url = {s3_server.endpoint_url}\n")
    credentials.write_text(
        f"[burst]\naws_access_key_id = {s3_server.access_key}\naws_secret_access_key = {s3_server.secret_key}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_PROFILE", "burst")
    store = open_store(s3_uri, prove=False)
    store.put("x", b"1")
    assert store.get("x") == b"1"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreRefused, match="nobody"):
        open_store(s3_uri, prove=False)
