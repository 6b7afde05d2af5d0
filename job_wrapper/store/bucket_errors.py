"""obstore's errors as ours: short, sorted by what can be done about them, and without anything secret in them."""

from __future__ import annotations

import re

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from job_wrapper.errors import ObjectMissing, StoreError, StoreRefused

_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_REFUSED_CODES = {
    "AccessDenied", "AllAccessDisabled", "AuthorizationHeaderMalformed", "InvalidAccessKeyId", "InvalidBucketName",
    "NoSuchBucket", "PermanentRedirect", "SignatureDoesNotMatch",
}  # fmt: skip
_CAUSES = (
    "Connection refused",
    "dns error",
    "timed out",
    "Connection reset",
    "No route to host",
    "Network is unreachable",
    "certificate",
)
_PAST_THE_END = re.compile(r"\b416 Range Not Satisfiable\b|<Code>InvalidRange</Code>")
_PASSING_CODES = {"ExpiredToken", "RequestTimeTooSkewed", "TokenRefreshRequired"}


def past_the_end(error: Exception) -> bool:
    """Whether a read failed because it began behind the end of the object."""
    return _PAST_THE_END.search(str(error)) is not None


def translated(error: Exception, where: str, *, writing: bool = False) -> StoreError:
    """obstore's error as ours: short, with what to do. ``where`` is the object's full name."""
    text = str(error)
    code_match, message = _CODE.search(text), _MESSAGE.search(text)
    code = code_match.group(1) if code_match else ""
    first = text.split("\n", 1)[0]
    brief = f"{code}: {message.group(1)}" if code and message else code or first[:300]
    if "169.254.169.254" in text or "credential" in first.lower():
        return StoreError(
            f"{where}: no credentials for it: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role "
            f"({first[:200]})"
        )
    if "error sending request" in first:
        cause = next((c for c in _CAUSES if c.lower() in text.lower()), "no answer")
        return StoreError(f"{where}: the server can't be reached ({cause})")
    if code in _PASSING_CODES:
        return StoreError(f"{where}: {brief}")
    if code == "NoSuchBucket" or (writing and isinstance(error, FileNotFoundError)):
        return StoreRefused(f"{where}: its bucket is not there ({brief}). Create it, or correct the checkpoint URI")
    if isinstance(error, FileNotFoundError):
        return ObjectMissing(f"{where}: not there")
    if code in _REFUSED_CODES or isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return StoreRefused(
            f"{where}: refused: {brief}. Check the credentials, their rights on this bucket, and AWS_REGION"
        )
    return StoreError(f"{where}: {brief}")
