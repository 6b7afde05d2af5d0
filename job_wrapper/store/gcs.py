"""Google Cloud Storage: where the endpoint and the credentials come from.

As Google's own libraries have it: ``GOOGLE_APPLICATION_CREDENTIALS``, else what ``gcloud auth application-default login`` left, else the
service account of the machine. Key files and a user's login are read by obstore; federated and impersonated identities need google-auth,
which ``spotburst[gcp]`` brings. ``STORAGE_EMULATOR_HOST`` names a server that wants no credentials; ``GOOGLE_BASE_URL`` another endpoint.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import timezone
from pathlib import Path
from typing import Any

from job_wrapper.errors import StoreRefused
from job_wrapper.store.bucket import BucketStore
from job_wrapper.store.bucket_clients import bucket_store, checked_endpoint, client_options, place
from job_wrapper.store.bucket_errors import GCS
from job_wrapper.store.shown import shown

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]\Z")
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_OBSTORE_READS = ("service_account", "authorized_user")


def open_gcs(uri: str, endpoint_url: str = "", environ: Mapping[str, str] = os.environ) -> BucketStore:
    """The store at ``gs://bucket/prefix``. Raises ``StoreRefused`` for a malformed URI or settings that can't be used."""
    from obstore.store import GCSStore

    bucket, prefix = place(uri, _BUCKET, "gs://bucket/prefix")
    emulator = environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator and "://" not in emulator:
        emulator = f"http://{emulator}"
    endpoint = endpoint_url or emulator or environ.get("GOOGLE_BASE_URL", "")
    settings: dict[str, Any] = {"config": {}}
    if endpoint:
        endpoint = checked_endpoint(endpoint)
        settings["config"]["base_url"] = endpoint
    if endpoint.startswith("http://") or (emulator and not endpoint_url):
        # A token is worth too much to be sent in the clear; emulators want none.
        settings["credential_provider"] = lambda: {"token": "none", "expires_at": None}
    else:
        settings |= _credentials(uri, environ)
    options = client_options(endpoint, "REQUESTS_CA_BUNDLE", environ)
    name = f"gs://{bucket}/{prefix}" if prefix else f"gs://{bucket}"

    def make(**more: Any) -> Any:
        return GCSStore(bucket, **settings, **more)

    return bucket_store(uri, name, prefix, GCS, options, make)


def _credentials(uri: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """A function that renews tokens, for those application default credentials that obstore can't read; empty for all others."""
    if any(
        environ.get(f"GOOGLE_{name}")
        for name in ("SERVICE_ACCOUNT", "SERVICE_ACCOUNT_PATH", "SERVICE_ACCOUNT_KEY", "BEARER_TOKEN")
    ):
        return {}
    given = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    folder = environ.get("CLOUDSDK_CONFIG")
    path = (
        Path(given)
        if given
        else Path(folder or Path.home() / ".config/gcloud") / "application_default_credentials.json"
    )
    try:
        content = json.loads(path.read_bytes())
        kind = content["type"]
    except FileNotFoundError:
        if given:
            raise StoreRefused(f"GOOGLE_APPLICATION_CREDENTIALS {path}: there is no such file") from None
        return {}
    except OSError as error:
        raise StoreRefused(f"{path}: can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise StoreRefused(f"{path}: is not a file of Google credentials (JSON with a type)") from None
    if kind in _OBSTORE_READS:
        return {} if given else {"application_credentials": str(path)}
    return {"credential_provider": _google_auth(uri, path, kind)}


def _google_auth(uri: str, path: Path, kind: str) -> Callable[[], dict[str, Any]]:
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request
    except ImportError:
        raise StoreRefused(
            f"checkpoint URI {shown(uri)}: credentials of type {kind!r} in {path} need google-auth: pip install 'spotburst[gcp]'"
        ) from None
    default: Any = google.auth.default  # finds the same file
    try:
        credentials, _ = default(scopes=[_SCOPE])
    except (GoogleAuthError, ValueError) as error:
        raise StoreRefused(f"{path}: {str(error).splitlines()[0]}") from None

    def provide() -> dict[str, Any]:
        credentials.refresh(Request())
        expiry = credentials.expiry
        return {"token": credentials.token, "expires_at": expiry and expiry.replace(tzinfo=timezone.utc)}

    return provide
