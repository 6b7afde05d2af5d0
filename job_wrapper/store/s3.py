"""S3 and servers that speak it: where the endpoint and the credentials come from.

As the AWS command line has it: ``AWS_ACCESS_KEY_ID`` and its companions, ``AWS_PROFILE`` and the files in ``~/.aws`` (these need
boto3), a web identity, a container's or a machine's role; ``AWS_REGION``, ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``, ``AWS_CA_BUNDLE``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from job_wrapper.errors import StoreRefused
from job_wrapper.store.bucket import BucketStore
from job_wrapper.store.bucket_clients import bucket_store, checked_endpoint, client_options, place
from job_wrapper.store.bucket_errors import S3
from job_wrapper.store.s3_uploads import discard_uploads

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}\Z")
_TTL = timedelta(minutes=15)


def open_s3(uri: str, endpoint_url: str = "", environ: Mapping[str, str] = os.environ) -> BucketStore:
    """The store at ``s3://bucket/prefix``. Raises ``StoreRefused`` for a malformed URI or settings that can't be used."""
    from obstore.store import S3Store

    bucket, prefix = place(uri, _BUCKET, "s3://bucket/prefix")
    config, provider = _settings(uri, environ)
    endpoint = (
        endpoint_url
        or environ.get("AWS_ENDPOINT_URL_S3")
        or environ.get("AWS_ENDPOINT_URL")
        or config.pop("endpoint", "")
    )
    if endpoint:
        endpoint = checked_endpoint(endpoint)
        # Both: obstore reads the second from the environment too, and prefers it.
        config["endpoint"] = config["aws_endpoint_url_s3"] = endpoint
        config.setdefault("region", environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1")
    if not endpoint.startswith("http://") and "AWS_UNSIGNED_PAYLOAD" not in environ:
        # TLS guards the bytes on their way, and our own checksums for good: signing them as well costs half the speed.
        config["unsigned_payload"] = True
    settings: dict[str, Any] = {"config": config}
    if provider is not None:
        settings["credential_provider"] = provider
    options = client_options(endpoint, "AWS_CA_BUNDLE", environ)
    name = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"

    def make(**more: Any) -> Any:
        return S3Store(bucket, **settings, **more)

    store = bucket_store(uri, name, prefix, S3, options, make)
    region = config.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    store.uploads = partial(discard_uploads, bucket, endpoint, region)
    return store


def _settings(uri: str, environ: Mapping[str, str]) -> tuple[dict[str, Any], Callable[[], Any] | None]:
    """What a profile gives: region, endpoint and credentials. Empty where the environment has the keys, or there is no profile."""
    profile = environ.get("AWS_PROFILE")
    shared = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials")
    if environ.get("AWS_ACCESS_KEY_ID") or not (profile or shared.exists()):
        return {}, None
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError:
        if not profile:
            return {}, None
        raise StoreRefused(
            f"checkpoint URI {uri!r}: AWS_PROFILE={profile} needs boto3 to be read: pip install 'spotburst[aws]', "
            "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    try:
        session = boto3.Session(profile_name=profile)
        credentials = session.get_credentials()
        endpoint = session.client("s3", region_name=session.region_name or "us-east-1").meta.endpoint_url
    except (BotoCoreError, ValueError) as error:
        raise StoreRefused(f"checkpoint URI {uri!r}: AWS_PROFILE={profile or 'default'}: {error}") from None
    config: dict[str, Any] = {"region": session.region_name or "us-east-1"}
    if endpoint and not (urlsplit(endpoint).hostname or "").endswith(("amazonaws.com", "amazonaws.com.cn")):
        config["endpoint"] = endpoint
    if credentials is None:
        return config, None

    def provide() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + _TTL,
        }

    return config, provide
