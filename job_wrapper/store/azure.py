"""Azure Blob Storage: where the account, the endpoint and the credentials come from.

As Azure's own tools have it: ``AZURE_STORAGE_CONNECTION_STRING``; else ``AZURE_STORAGE_ACCOUNT_NAME`` (or ``AZURE_STORAGE_ACCOUNT``, or the
account in an ``abfss://`` URI) with ``AZURE_STORAGE_ACCOUNT_KEY`` or ``AZURE_STORAGE_SAS_TOKEN``, with a service principal
(``AZURE_CLIENT_ID``, ``AZURE_TENANT_ID``, ``AZURE_CLIENT_SECRET``), with a workload identity (``AZURE_FEDERATED_TOKEN_FILE``), with the login of
the ``az`` command (``AZURE_USE_AZURE_CLI=true``), or else with the managed identity of the machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from job_wrapper.errors import StoreRefused
from job_wrapper.store.bucket import BucketStore
from job_wrapper.store.bucket_clients import bucket_store, checked_endpoint, client_options, place
from job_wrapper.store.bucket_errors import AZURE
from job_wrapper.store.shown import shown

_CONTAINER = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]\Z")
_WITH_ACCOUNT = re.compile(r"([^@]+)@([a-z0-9]{3,24})\.(?:dfs|blob)\.([a-z0-9.-]+)\Z")
_FORM = "az://container/prefix or abfss://container@account.dfs.core.windows.net/prefix"
_CLOUD = "core.windows.net"
# The account of Microsoft's storage emulators, the same everywhere: no secret.
_DEVELOPMENT = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


def open_azure(uri: str, endpoint_url: str = "", environ: Mapping[str, str] = os.environ) -> BucketStore:
    """The store at ``az://container/prefix``. Raises ``StoreRefused`` for a malformed URI or settings that can't be used."""
    from obstore.store import AzureStore

    plain, host, named, suffix = _taken_apart(uri)
    container, prefix = place(plain, _CONTAINER, _FORM)
    string = connection_string(environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
    account = (
        string.get("AccountName")
        or environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        or environ.get("AZURE_STORAGE_ACCOUNT")
        or named
        or ""
    )
    if named and account != named:
        raise StoreRefused(
            f"checkpoint URI {shown(uri)}: it is in account {named}, but the environment (AZURE_STORAGE_…) is set for account {account}"
        )
    config: dict[str, Any] = {}
    if account:
        config["account_name"] = account
    config |= _secrets(string, environ)
    endpoint = (
        endpoint_url
        or string.get("BlobEndpoint")
        or environ.get("AZURE_STORAGE_ENDPOINT")
        or environ.get("AZURE_ENDPOINT")
        or ""
    )
    suffix = suffix or string.get("EndpointSuffix") or ""
    if not endpoint and account and suffix not in ("", _CLOUD):
        endpoint = f"https://{account}.blob.{suffix}"
    if endpoint:
        endpoint = checked_endpoint(endpoint)
        config["endpoint"] = endpoint
        if not account:
            raise StoreRefused(
                f"checkpoint URI {shown(uri)}: no storage account is known: set AZURE_STORAGE_ACCOUNT_NAME, or write it as {_FORM}"
            )
    options = client_options(endpoint, "REQUESTS_CA_BUNDLE", environ)
    name = host + (f"/{prefix}" if prefix else "")

    def make(**more: Any) -> Any:
        settings: Any = config
        return AzureStore(container, config=settings, **more)

    return bucket_store(uri, name, prefix, AZURE, options, make)


def _taken_apart(uri: str) -> tuple[str, str, str, str]:
    """``uri`` without an account, its canonical beginning with it, the account, and the cloud's domain; the last two may be empty."""
    parts = urlsplit(uri)
    match = _WITH_ACCOUNT.match(parts.netloc)
    if match is None:
        return uri, f"az://{parts.netloc}", "", ""
    container, account, suffix = match.groups()
    return parts._replace(netloc=container).geturl(), f"abfss://{container}@{account}.dfs.{suffix}", account, suffix


def _secrets(string: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Any]:
    if "AccountKey" in string:
        return {"account_key": string["AccountKey"], "credential_type": "access_key"}
    if "SharedAccessSignature" in string:
        return {"sas_key": string["SharedAccessSignature"].lstrip("?"), "credential_type": "sas_token"}
    # The az command's names for what obstore reads under AZURE_STORAGE_ACCOUNT_KEY and AZURE_STORAGE_SAS_TOKEN.
    key, sas = environ.get("AZURE_STORAGE_KEY"), environ.get("AZURE_STORAGE_SAS_TOKEN")
    config = {}
    if key:
        config["account_key"] = key
    if sas:
        config["sas_key"] = sas.lstrip("?")
    return config


def connection_string(text: str) -> dict[str, str]:
    """A connection string's fields. Raises ``StoreRefused``, without showing it, for what is none."""
    fields = {}
    for piece in filter(None, (piece.strip() for piece in text.split(";"))):
        name, equals, value = piece.partition("=")
        if not equals:
            raise StoreRefused(
                "AZURE_STORAGE_CONNECTION_STRING: it is not of the form Name=value;Name=value (the portal shows it under Access keys)"
            )
        fields[name] = value
    if fields.pop("UseDevelopmentStorage", "").lower() == "true":
        return {**_DEVELOPMENT, **fields}
    if fields and "AccountName" not in fields:
        # One with a signature names the account in its endpoint alone.
        host = urlsplit(fields.get("BlobEndpoint", "")).hostname or ""
        if ".blob." not in host:
            raise StoreRefused("AZURE_STORAGE_CONNECTION_STRING: it names no account (AccountName or BlobEndpoint)")
        fields["AccountName"] = host.partition(".")[0]
    return fields
