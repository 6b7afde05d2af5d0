"""Google Cloud Storage and Azure Blob: where credentials come from, and what users read when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from obstore import sign
from obstore.store import AzureStore

from job_wrapper.errors import ExitCode, StoreError, StoreRefused
from job_wrapper.store.azure import connection_string
from job_wrapper.store.check import check_store
from job_wrapper.store.open import open_store
from tests.fixtures.azurite import ACCOUNT, KEY
from tests.fixtures.gcs_server import Bucket, Handler, Metadata, serving
from tests.fixtures.ports import free_ports
from tests.fixtures.rclone import rclone
from tests.fixtures.server import Server
from tests.store.conftest import use

TOKEN = "ya29.test-token"
EMAIL = "trainer@project.iam.gserviceaccount.com"


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A certificate for 127.0.0.1 with its key in one file, and the key alone."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
            "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", str(key), "-out", str(certificate),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    both = folder / "both.pem"
    both.write_text(certificate.read_text() + key.read_text())
    return both, key.read_text()


@pytest.fixture
def guarded(pem: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A bucket behind TLS that wants a token; no credentials anywhere yet. Yields its URI."""
    main, metadata = free_ports(2)
    settings = {"bucket": Bucket("checkpoints", 1000), "token": TOKEN, "account": EMAIL}
    environment = {
        "GOOGLE_BASE_URL": f"https://127.0.0.1:{main}",
        "REQUESTS_CA_BUNDLE": str(pem[0]),
        "HOME": str(tmp_path),
    }
    use(monkeypatch, environment)
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{metadata}")
    with (
        serving(main, type("Handler", (Handler,), settings), str(pem[0])),
        serving(metadata, type("Metadata", (Metadata,), {"token": TOKEN})),
    ):
        yield "gs://checkpoints/p"


def works(uri: str) -> None:
    store = open_store(uri, prove=False)
    store.put("x", b"1")
    assert store.get("x") == b"1"
    store.delete(["x"])


def key_file(path: Path, key: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {
                "type": "service_account",
                "client_email": EMAIL,
                "private_key": key,
                "private_key_id": "1",
                "token_uri": "",
            }
        )
    )
    return path


def test_gcs_token_of_the_machine(guarded: str) -> None:
    works(guarded)


def test_gcs_key_file(guarded: str, pem: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file(tmp_path / "key.json", pem[1])))
    works(guarded)


def test_gcs_application_default_credentials_of_gcloud(
    guarded: str, pem: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    key_file(tmp_path / "gcloud/application_default_credentials.json", pem[1])
    works(guarded)


def test_gcs_federated_identity_by_google_auth(guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "subject").write_text("subject")
    identity = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/providers/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"http://{os.environ['GCE_METADATA_HOST']}/v1/token",
        "credential_source": {"file": str(tmp_path / "subject")},
    }
    (tmp_path / "identity.json").write_text(json.dumps(identity))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "identity.json"))
    works(guarded)


def test_gcs_without_rights_is_refused_without_showing_the_token(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "ya29.of-another")
    with pytest.raises(
        StoreRefused, match=r"gs://checkpoints/p/.*refused: AccessDenied.*roles/storage\.objectUser"
    ) as refused:
        open_store(guarded)
    assert "of-another" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no such file"),
        ("SECRET, not JSON", "is not a file of Google credentials"),
        ('{"no": "type"}', "is not a file of Google credentials"),
        ('{"type": "service_account", "client_email": "a", "private_key": "SECRET", "private_key_id": "1"}', "pem"),
    ],
)
def test_gcs_key_file_that_is_none(
    guarded: str, content: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(StoreRefused, match=says) as refused:
        open_store(guarded)
    assert "SECRET" not in str(refused.value) and "\n" not in str(refused.value)


def test_gcs_without_any_credentials(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing answers there, nor at the address that is asked next: this machine is none of Google's.
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setattr("job_wrapper.store.bucket_clients.RETRIES", 0)
    with pytest.raises(StoreError, match=r"no credentials for it: set GOOGLE_APPLICATION_CREDENTIALS"):
        open_store(guarded)


@pytest.mark.parametrize("kind", ["gcs", "azurite"])
def test_a_container_that_is_not_there(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    use(monkeypatch, server.environment)
    uri = server.uri.replace("checkpoints", "elsewhere")
    for prove in (True, False):
        with pytest.raises(StoreRefused, match=r"its (bucket|container) is not there.*Create it"):
            open_store(f"{uri}/p", prove=prove).put("x", b"1")
    assert "is not there" in check_store(f"{uri}/p").verdict


def azure(server: Server) -> tuple[dict[str, str], str]:
    """Its connection string's fields, and its endpoint."""
    fields = connection_string(server.environment["AZURE_STORAGE_CONNECTION_STRING"])
    return fields, fields["BlobEndpoint"]


@pytest.mark.parametrize("key", ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"])
@pytest.mark.parametrize("name", ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT", ""])
def test_azure_account_and_key(azurite_server: Server, key: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, endpoint = azure(azurite_server)
    use(monkeypatch, {key: KEY, "AZURE_STORAGE_ENDPOINT": endpoint} | ({name: ACCOUNT} if name else {}))
    container = "az://checkpoints" if name else f"abfss://checkpoints@{ACCOUNT}.dfs.core.windows.net"
    uri = f"{container}/{os.urandom(4).hex()}"
    works(uri)
    assert open_store(uri, prove=False).uri == uri


def test_azure_shared_access_signature_is_never_shown(azurite_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    _, endpoint = azure(azurite_server)
    store = AzureStore(
        "checkpoints",
        config={"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint},
        client_options={"allow_http": True},
    )
    # Signed for one object and for reading only.
    signature = sign(store, "GET", "p/x", timedelta(hours=1)).partition("?")[2]
    secret = signature.partition("sig=")[2].partition("&")[0]
    account = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ENDPOINT": endpoint}
    for environment in (
        account | {"AZURE_STORAGE_SAS_TOKEN": f"?{signature}"},
        {
            "AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={endpoint};AccountName={ACCOUNT};SharedAccessSignature={signature}"
        },
    ):
        use(monkeypatch, environment)
        with pytest.raises(StoreRefused, match=r"refused: Auth.*Storage Blob Data Contributor") as refused:
            open_store("az://checkpoints/p", prove=False).put("x", b"1")
        assert secret not in str(refused.value)
        verdict = check_store("az://checkpoints/p").verdict
        assert "refused" in verdict and secret not in verdict
    with pytest.raises(StoreRefused) as refused:
        open_store(f"az://checkpoints/p?{signature}")
    assert secret not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "uri", "says"),
    [
        ({}, "az://checkpoints/p", r"Account must be specified.*AZURE_STORAGE_CONNECTION_STRING"),
        ({"AZURE_STORAGE_ENDPOINT": "https://blob.example"}, "az://checkpoints/p", "no storage account is known"),
        ({"AZURE_STORAGE_CONNECTION_STRING": "SECRET"}, "az://checkpoints/p", "not of the form Name=value"),
        ({"AZURE_STORAGE_CONNECTION_STRING": "AccountKey=SECRET"}, "az://checkpoints/p", "names no account"),
        (
            {"AZURE_STORAGE_ACCOUNT": "one"},
            "abfss://c11@two.dfs.core.windows.net/p",
            "it is in account two, but .* account one",
        ),
        ({"AZURE_STORAGE_ACCOUNT": "one", "AZURE_STORAGE_KEY": "##SECRET"}, "az://checkpoints/p", "Invalid Access Key"),
    ],
)
def test_azure_settings_that_cannot_be_used(
    environment: dict[str, str], uri: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, environment)
    with pytest.raises(StoreRefused, match=says) as refused:
        open_store(uri)
    assert "SECRET" not in str(refused.value) and "\n" not in str(refused.value)


def test_azure_wrong_key_is_refused_with_advice(azurite_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    _, endpoint = azure(azurite_server)
    use(
        monkeypatch,
        {"AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": "d3Jvbmc=", "AZURE_STORAGE_ENDPOINT": endpoint},
    )
    with pytest.raises(StoreRefused, match=r"refused: AuthorizationFailure.*Check the credentials"):
        open_store("az://checkpoints/p")


def test_development_storage_is_a_connection_string() -> None:
    fields = connection_string("UseDevelopmentStorage=true")
    assert (fields["AccountName"], fields["BlobEndpoint"]) == (ACCOUNT, f"http://127.0.0.1:10000/{ACCOUNT}")
    sas = connection_string("BlobEndpoint=https://one.blob.core.windows.net/;SharedAccessSignature=sv=2023&sig=a%3D=")
    assert (sas["AccountName"], sas["SharedAccessSignature"]) == ("one", "sv=2023&sig=a%3D=")


def test_a_server_that_ignores_the_precondition_is_refused_by_name_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rclone(tmp_path) as server:
        use(monkeypatch, server.environment)
        uri = f"{server.uri}/p"
        reason = rf"{uri}: refused, because put-if-absent is not kept: creating an object that was there already was not refused"
        with pytest.raises(StoreRefused, match=reason):
            open_store(uri)
        report = check_store(uri)
        assert not report.safe and report.verdict.startswith(f"{uri}: refused, because put-if-absent")
        assert [i.key for i in open_store(uri, prove=False).list("")] == []
        spotburst = [str(Path(sys.executable).parent / "spotburst"), "store", "check", uri]
        said = subprocess.run(spotburst, capture_output=True, text=True, check=False)
        assert said.returncode == ExitCode.STORE_REFUSED
        assert "refused, because put-if-absent is not kept" in " ".join(said.stdout.split())
        told = subprocess.run([*spotburst, "--json"], capture_output=True, text=True, check=False)
        assert told.returncode == ExitCode.STORE_REFUSED
        assert json.loads(told.stdout)["safe"] is False
