"""From a checkpoint URI to a store that is proven safe."""

from __future__ import annotations

import contextlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

from job_wrapper.errors import Damaged, ObjectMissing, StoreError, StoreRefused
from job_wrapper.store.checksum import checksum
from job_wrapper.store.io_types import ObjectStore
from job_wrapper.store.paths import PROOF_KEY
from job_wrapper.store.posix import PosixStore
from job_wrapper.store.shown import shown

SCHEMES = ("file://", "s3://", "gs://", "az://")
_ALIASES = {"s3a": "s3", "gcs": "gs", "azure": "az", "abfs": "az", "abfss": "az"}
"""Other spellings that the libraries of these stores take."""
_UNSAFE = {
    "memory": "what is in memory is gone with its process",
    "http": "for a bucket write s3://, gs:// or az://, and its server's address as --endpoint-url",
    "https": "for a bucket write s3://, gs:// or az://, and its server's address as --endpoint-url",
}
_UNPROVABLE = "it has no way to create an object only if it is not there yet, which is what keeps a lost attempt from overwriting its successor"


def open_store(
    uri: str,
    *,
    endpoint_url: str = "",
    prove: bool = True,
    create: bool | None = None,
    used: bool = False,
    mark: str = "",
) -> ObjectStore:
    """The store at ``uri``: ``file:///absolute/path``, an absolute path, ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``.

    ``endpoint_url`` names another server than the cloud's own; each cloud's environment variable does the same. With ``prove`` the first use of a URI
    proves that the store is safe for the run's log (see ``probe``), and leaves ``.spotburst/store.json`` there as a mark, so that later
    uses cost one read. A missing folder is created only then, or with ``create``: for whoever joins a store that is in use it would be a
    file system that went away. ``used`` says that the caller has used this store before (a job that comes back): a folder without the mark
    is then the bare mount point of a file system that is not there, where the work would begin from nothing, and ``StoreError``. So is one
    whose mark is not ``mark`` (``mark_of``), where the caller knows it. Raises ``StoreRefused`` for what can't be used, ``StoreError`` for what can't be reached now.
    """
    store = _backend(uri, endpoint_url, prove and not (used or mark) if create is None else create)
    if isinstance(store, PosixStore) and (used or mark):
        _require_mark(store, mark)
    if prove:
        from job_wrapper.store.probe import ensure_proved

        ensure_proved(store)
        if isinstance(store, PosixStore):
            store.folder.learn()
    return store


def mark_of(store: ObjectStore) -> str:
    """What tells this folder from any other that is found in its place; "" where it has no mark, and for buckets, which are never another's."""
    return checksum(store.folder.mark.encode()) if isinstance(store, PosixStore) and store.folder.mark else ""


def _require_mark(store: PosixStore, mark: str) -> None:
    """Raises ``StoreError`` where there is none, or not that one, and what else keeps it from being read."""
    found = mark_of(store)
    if not found:
        with contextlib.suppress(ObjectMissing, Damaged):
            store.get(PROOF_KEY)
        raise StoreError(
            f"{store.uri}: nobody has used this folder for checkpoints yet ({PROOF_KEY} is missing), but it was in use before. "
            "Is its file system mounted on this node? If it is, mark the folder: spotburst store check " + store.uri
        )
    if mark and found != mark:
        raise StoreError(
            f"{store.uri}: another folder than the cluster's ({PROOF_KEY} is not the one that this node was told of when it booted). "
            "Is its file system mounted on this node? If the folder was begun anew, nodes that were booted before have to boot again"
        )


def scheme_of(uri: str) -> str:
    """Which kind of store ``uri`` names: ``file``, ``s3``, ``gs`` or ``az``. Raises ``StoreRefused``, with the reason, for any other."""
    try:
        scheme = urlsplit(uri).scheme
    except ValueError as error:
        raise StoreRefused(f"checkpoint URI {shown(uri)}: {error}") from None
    if not scheme and uri.startswith("/"):
        return "file"
    found = _ALIASES.get(scheme, scheme)
    if f"{found}://" in SCHEMES:
        return found
    reason = f"{scheme}:// can't be used: {_UNSAFE.get(scheme, _UNPROVABLE)}; " if "://" in uri and scheme else ""
    raise StoreRefused(
        f"checkpoint URI {shown(uri)}: {reason}use one of {', '.join(SCHEMES)}, for example file:///shared/checkpoints or s3://bucket/prefix"
    )


def _backend(uri: str, endpoint_url: str, create: bool) -> ObjectStore:
    scheme = scheme_of(uri)
    if scheme == "s3":
        from job_wrapper.store.s3 import open_s3

        return open_s3(uri, endpoint_url)
    if scheme == "gs":
        from job_wrapper.store.gcs import open_gcs

        return open_gcs(uri, endpoint_url)
    if scheme == "az":
        from job_wrapper.store.azure import open_azure

        return open_azure(uri, endpoint_url)
    return _open_posix(uri, create)


def _open_posix(uri: str, create: bool) -> PosixStore:
    if uri.startswith("/"):
        path = Path(uri)
    else:
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise StoreRefused(
                f"checkpoint URI {shown(uri)}: write an absolute path with three slashes, like file:///shared/checkpoints"
            )
        if parts.query or parts.fragment:
            raise StoreRefused(f"checkpoint URI {shown(uri)}: write '?' and '#' in a path as %3F and %23")
        path = Path(unquote(parts.path))
    if ".." in path.parts or "\0" in str(path):
        raise StoreRefused(f"checkpoint URI {shown(uri)}: '..' is not allowed in it")
    if path == Path("/"):
        raise StoreRefused(f"checkpoint URI {shown(uri)}: name a folder, not the root of the file system")
    try:
        missing = not create and not path.exists()
    except OSError as error:  # a name that no file can have
        raise StoreRefused(f"checkpoint URI {shown(uri)}: {error.strerror}") from None
    if missing:
        raise StoreError(f"checkpoint URI {shown(uri)}: there is no {path} here. Is its file system mounted?")
    try:
        # Only the last step is created: a missing parent is more likely an unmounted file system than a wish.
        path.mkdir(exist_ok=True)
    except FileNotFoundError:
        if path.parent.is_dir():
            raise StoreRefused(
                f"checkpoint URI {uri!r}: {path} can't be created: {path.parent} belongs to a file system that holds no folders of users. "
                "Name a folder on a disk or a shared file system"
            ) from None
        raise StoreRefused(
            f"checkpoint URI {shown(uri)}: there is no {path.parent}. Is its file system mounted here? If it is, create it: mkdir -p {path.parent}"
        ) from None
    except FileExistsError:
        raise StoreRefused(f"checkpoint URI {shown(uri)}: {path} is a file, not a folder") from None
    except OSError as error:
        raise StoreRefused(f"checkpoint URI {shown(uri)}: can't create {path}: {error.strerror}") from None
    return PosixStore(path, "file://" + path.as_posix())
