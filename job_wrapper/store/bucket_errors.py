"""obstore's errors as ours: short, sorted by what can be done about them, and without anything secret in them.

obstore tells HTTP's 401, 403, 404, 409 and 412 by the class of the exception; the rest, and the provider's own code, only in its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, PreconditionError, UnauthenticatedError

from job_wrapper.errors import ObjectMissing, StoreError, StoreRefused
from job_wrapper.store.shown import hidden


@dataclass(frozen=True, slots=True)
class Provider:
    """What messages say differently for each provider, and its own error codes."""

    credentials: str
    """How to give credentials."""
    rights: str
    """What to look at when a request was refused."""
    container: str = "bucket"
    no_container: frozenset[str] = frozenset({"NoSuchBucket"})
    refused: frozenset[str] = frozenset()
    """Codes that trying again won't help, whatever HTTP's status is."""


S3 = Provider(
    credentials="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this machine a role",
    rights="Check the credentials, their rights on this bucket, and AWS_REGION",
    refused=frozenset(
        {
            "AccessDenied", "AllAccessDisabled", "AuthorizationHeaderMalformed", "InvalidAccessKeyId", "InvalidBucketName",
            "PermanentRedirect", "SignatureDoesNotMatch",
        }
    ),
)  # fmt: skip
GCS = Provider(
    credentials="set GOOGLE_APPLICATION_CREDENTIALS to a key file, or run: gcloud auth application-default login, "
    "or give this machine a service account",
    rights="Check the credentials and their rights on this bucket (roles/storage.objectUser)",
    # RetentionPolicyNotMet and ObjectUnderActiveHold: the bucket forbids to delete what is old.
    refused=frozenset(
        {
            "AccessDenied",
            "InvalidBucketName",
            "UserProjectMissing",
            "UserProjectAccountProblem",
            "RetentionPolicyNotMet",
        }
    ),
)
AZURE = Provider(
    credentials="set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or "
    "AZURE_STORAGE_SAS_TOKEN, or give this machine a managed identity",
    rights="Check the credentials and their rights on this container (Storage Blob Data Contributor)",
    container="container",
    no_container=frozenset({"ContainerNotFound", "FilesystemNotFound"}),
    refused=frozenset(
        {
            "AccountIsDisabled", "AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch", "FeatureNotSupportedForAccount",
            "InsufficientAccountPermissions", "InvalidAuthenticationInfo", "InvalidResourceName", "NoAuthenticationInformation", "OutOfRangeInput",
            "PublicAccessNotPermitted", "BlobImmutableDueToPolicy",
        }
    ),
)  # fmt: skip

_PASSING = {
    # Keys that are renewed while the job runs, and a clock that is being set.
    "ExpiredToken", "RequestTimeTooSkewed", "TokenRefreshRequired",
    # 409 of another kind than "it exists": two requests met, or the container is on its way.
    "ConditionalRequestConflict", "OperationAborted", "ContainerBeingDeleted", "ContainerBeingDisabled", "AccountBeingCreated",
}  # fmt: skip
_OTHER_CONFLICTS = {*_PASSING, "BlobImmutableDueToPolicy", "AccountIsDisabled", "FeatureNotSupportedForAccount"}
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]*)")
_PAST_THE_END = re.compile(
    r"\b416 Range Not Satisfiable\b|\b416 Requested Range Not Satisfiable\b|<Code>InvalidRange</Code>|^[^\n]*: Wanted range starting at "
)
_NO_CREDENTIALS = re.compile(
    # The machine's own role, asked at the cloud's metadata service; a token's renewal; the provider functions of s3 and gcs.
    r"Error performing \w+ http://(?:169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal)[/:]"
    r"|Error performing token request|for path External \w+ credential provider: "
)
# How obstore's text names a cause, and how a message does.
_CAUSES = {
    "Connection refused": "Connection refused",
    "dns error": "its name is not known",
    "timed out": "timed out",
    "TimedOut": "timed out",
    "Connection reset": "Connection reset",
    "No route to host": "No route to host",
    "Network is unreachable": "Network is unreachable",
    "certificate": "its certificate is not trusted",
}


def past_the_end(error: Exception) -> bool:
    """Whether a read failed because it began behind the end of the object."""
    return _PAST_THE_END.search(str(error)) is not None


def exists(error: Exception) -> bool:
    """Whether a put-if-absent was answered "it is there already". False for a conflict that leaves it open, as two requests that met."""
    if isinstance(error, PreconditionError):
        return True
    return isinstance(error, AlreadyExistsError) and _code(str(error)) not in _OTHER_CONFLICTS


def translated(error: Exception, where: str, provider: Provider = S3, *, writing: bool = False) -> StoreError:
    """obstore's error as ours: short, with what to do. ``where`` is the object's full name."""
    text = str(error)
    code, first = _code(text), text.split("\n", 1)[0]
    message = _MESSAGE.search(text)
    brief = hidden(f"{code}: {message.group(1).strip()}" if code and message else code or first[:300])
    if _NO_CREDENTIALS.search(first):
        return StoreError(f"{where}: no credentials for it: {provider.credentials} ({hidden(first[:200])})")
    if "error sending request" in first:
        cause = next((said for name, said in _CAUSES.items() if name.lower() in text.lower()), "no answer")
        return StoreError(f"{where}: the server can't be reached ({cause})")
    if code in _PASSING:
        return StoreError(f"{where}: {brief}")
    missing = isinstance(error, FileNotFoundError)
    if code in provider.no_container or (missing and writing):
        return StoreRefused(
            f"{where}: its {provider.container} is not there ({brief}). Create it, or correct the checkpoint URI"
        )
    if missing:
        return ObjectMissing(f"{where}: not there")
    if code in provider.refused or isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return StoreRefused(f"{where}: refused: {brief}. {provider.rights}")
    return StoreError(f"{where}: {brief}")


def _code(text: str) -> str:
    match = _CODE.search(text)
    return match.group(1) if match else ""
