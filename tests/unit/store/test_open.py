from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from job_wrapper.errors import StoreError, StoreRefused
from job_wrapper.store.check import check_store
from job_wrapper.store.open import open_store


@pytest.mark.parametrize(
    ("uri", "what"),
    [
        ("ftp://host/x", "ftp:// can't be used: it has no way to create an object only if it is not there"),
        ("hf://datasets/a/b", "hf:// can't be used.*use one of file://, s3://, gs://, az://"),
        ("memory://x", "gone with its process"),
        ("https://bucket.s3.amazonaws.com/x", "--endpoint-url"),
        ("relative/path", "use one of file://"),
        ("", "use one of file://"),
        ("file://host/x", "three slashes"),
        ("file:///a/../b", r"'\.\.'"),
        ("/", "name a folder"),
        ("file:///", "name a folder"),
        ("file:///tmp/x?y", "%3F"),
        ("file:///nowhere/at/all", "Is its file system mounted here"),
        ("/etc/hostname", "is a file"),
        ("s3://", "s3://bucket/prefix"),
        ("s3://b/../x", "s3://bucket/prefix"),
        ("s3://b/x?y=1", "s3://bucket/prefix"),
        ("s3:///x", "s3://bucket/prefix"),
        ("file://[", "checkpoint URI"),
        ("gs://", "gs://bucket/prefix"),
        ("gs://UPPER/x", "gs://bucket/prefix"),
        ("gs://b..c/../x", "gs://bucket/prefix"),
        ("az://", "az://container/prefix"),
        ("az://No_Such/x", "az://container/prefix"),
        ("az://a--b/x", "az://container/prefix"),
        ("abfss://c@account/x", "abfss://container@account.dfs"),
    ],
)
def test_a_uri_that_cannot_be_used_is_one_clear_message(uri: str, what: str) -> None:
    with pytest.raises(StoreRefused, match=what) as caught:
        open_store(uri)
    assert "\n" not in str(caught.value) and repr(uri) in str(caught.value)
    report = check_store(uri)
    assert not report.safe and report.verdict == str(caught.value)


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}", "file://{}/"])
def test_forms_of_one_folder(tmp_path: Path, form: str) -> None:
    store = open_store(form.format(tmp_path / "a%20b" if form == "{}" else f"{tmp_path}/a%2520b"))
    store.put("x", b"1")
    assert (tmp_path / "a%20b" / "x").read_bytes() == b"1"
    assert store.uri == f"file://{tmp_path}/a%20b"


def test_a_store_in_use_whose_folder_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/store"
    with pytest.raises(StoreError, match="Is its file system mounted"):
        open_store(uri, prove=False)
    assert not (tmp_path / "store").exists()
    open_store(uri).put("x", b"1")
    assert open_store(uri, prove=False).get("x") == b"1"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="holds no folders of users"):
        open_store("file:///proc/spotburst")
    with pytest.raises(StoreError, match="/sys/kernel"):
        open_store("file:///sys/kernel")


def test_a_server_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with socket.socket() as nobody:  # has the port, and does not listen
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(StoreError, match=r"s3://bucket/x/.*the server can't be reached \(Connection refused\)"):
            open_store("s3://bucket/x", endpoint_url=url)
    with pytest.raises(StoreRefused, match="endpoint URL"):
        open_store("s3://bucket/x", endpoint_url="127.0.0.1:22098")
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nonexistent.pem")
    with pytest.raises(StoreRefused, match=r"AWS_CA_BUNDLE /nonexistent\.pem"):
        open_store("s3://bucket/x", endpoint_url="https://127.0.0.1:22098")


def test_a_posix_store_imports_nothing_heavy() -> None:
    code = (
        "import sys; from job_wrapper.store.open import open_store; from job_wrapper.store.log import RunLog; "
        "print([m for m in ('obstore', 'boto3', 'torch', 'asyncio', 'concurrent.futures.thread') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
