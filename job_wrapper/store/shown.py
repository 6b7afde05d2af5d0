"""What of a URI or of another's error text may be shown: everything but secrets."""

from __future__ import annotations

import re

_SECRETS = re.compile(
    r"(?i)\b((?:sig|signature|token|accountkey|sharedaccesssignature|key|password|secret|credential|x-amz-[a-z-]+|x-goog-[a-z-]+)=)[^&;\s'\"<>)]+"
    r"|(?<=://)[^/@\s'\"]+:[^/@\s'\"]*(?=@)"
    r"|\bBearer +\S+"
)


def hidden(text: str) -> str:
    """``text`` without what may be a secret: signatures and keys in a query, a password before a URL's host, bearer tokens."""
    return _SECRETS.sub(lambda match: (match.group(1) or "") + "…", text)


def without_end(uri: str) -> str:
    """``uri`` without slashes at its end; those of ``s3://`` and ``file:///`` stay, so that a message shows what was written."""
    return re.sub(r"(?<=[^:/])/+\Z", "", uri)


def shown(uri: str) -> str:
    """``uri`` as messages name it: quoted, on one line, without secrets."""
    return repr(hidden(uri))
