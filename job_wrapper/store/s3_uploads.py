"""Uploads to S3 that nobody finished. A process that is killed leaves the parts that it has sent: they cost, and no listing shows them.

obstore can't list them, boto3 can; without it (``spotburst[aws]``) they stay until the bucket's own rule takes them
(``AbortIncompleteMultipartUpload`` of a lifecycle configuration).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

log = logging.getLogger("spotburst")


def discard_uploads(bucket: str, endpoint: str, region: str | None, prefixes: Sequence[str]) -> list[str]:
    """Give up all uploads to keys that start with one of ``prefixes``; returns the keys. What can't be done now is left for the next time."""
    if find_spec("boto3") is None:
        return []
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    gone: list[str] = []
    config = Config(
        connect_timeout=5,
        read_timeout=30,
        retries={"max_attempts": 2},
        s3={"addressing_style": "path"} if endpoint else None,
    )
    try:
        # A session of its own: the process's default one keeps the credentials that it found first.
        client: Any = boto3.Session().client("s3", endpoint_url=endpoint or None, region_name=region, config=config)
        for prefix in prefixes:
            for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
                for upload in page.get("Uploads", ()):
                    if upload["Key"].startswith(prefix):
                        client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                        gone.append(upload["Key"])
    except (BotoCoreError, ClientError, ValueError) as error:
        log.debug("unfinished uploads in s3://%s were not looked for: %s", bucket, error)
    return gone
