"""What the clients of all providers have in common: the URI's form, the endpoint, time limits and repeats."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from job_wrapper.errors import StoreRefused
from job_wrapper.store.bucket import BucketStore
from job_wrapper.store.bucket_errors import Provider
from job_wrapper.store.paths import is_key
from job_wrapper.store.shown import hidden, shown

RETRIES = 8
"""How often a request other than put-if-absent is repeated, for 90 s at most."""
TIMEOUT, ONCE_TIMEOUT = "120s", "15s"
"""For one request and its answer; the second for put-if-absent, whose caller reads back and tries again."""
_BACKOFF = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2}


def place(uri: str, container: re.Pattern[str], form: str) -> tuple[str, str]:
    """Container and prefix that ``uri`` names. Raises ``StoreRefused``, showing ``form``, for anything else."""
    parts = urlsplit(uri)
    prefix = parts.path.strip("/")
    if not container.match(parts.netloc) or parts.query or parts.fragment or (prefix and not is_key(prefix)):
        raise StoreRefused(f"checkpoint URI {shown(uri)}: write it as {form}, in letters, digits, '.', '_' and '-'")
    return parts.netloc, prefix


def checked_endpoint(endpoint: str) -> str:
    """``endpoint`` without a slash at its end. Raises ``StoreRefused`` for what is no URL of a server."""
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError as error:
        raise StoreRefused(f"endpoint URL {shown(endpoint)}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise StoreRefused(f"endpoint URL {shown(endpoint)}: write it as https://host or http://host:port")
    return endpoint.rstrip("/")


def client_options(endpoint: str, bundle: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Options of the HTTP client. ``bundle`` names the environment variable with the path of a file of trusted certificates."""
    options: dict[str, Any] = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": "5s",
        "user_agent": "spotburst",
    }
    path = environ.get(bundle)
    if path:
        try:
            options["root_certificate"] = Path(path).read_bytes()
        except OSError as error:
            raise StoreRefused(f"{bundle} {path}: can't be read: {error.strerror}") from None
    return options


def bucket_store(
    uri: str, name: str, prefix: str, provider: Provider, options: Mapping[str, Any], make: Callable[..., Any]
) -> BucketStore:
    """The store ``name`` (its canonical URI) with two clients out of ``make(client_options=…, retry_config=…)``: one that repeats a request
    that failed, and one that never does, for put-if-absent. Raises ``StoreRefused`` where obstore takes no client of these settings.
    """

    def client(retries: int, timeout: str) -> Any:
        retry = {"max_retries": retries, "retry_timeout": timedelta(seconds=90), "backoff": _BACKOFF}
        try:
            return make(client_options={**options, "timeout": timeout}, retry_config=retry)
        except StoreRefused:
            raise
        except Exception as error:
            raise StoreRefused(
                f"checkpoint URI {shown(uri)}: {hidden(str(error).splitlines()[0])}. To give credentials, {provider.credentials}"
            ) from error

    return BucketStore(name, prefix, client(RETRIES, TIMEOUT), client(0, ONCE_TIMEOUT), provider)
