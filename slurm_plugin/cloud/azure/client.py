"""The one place that imports azure-mgmt-compute: calls in one resource group, their errors as ``ApiError``, their rate as Azure allows it.

Bodies and answers are in the shape of the REST API. Nothing here waits for a long operation: the machines themselves tell how it went.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from azure.core import MatchConditions
from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.mgmt.compute import ComputeManagementClient

from slurm_plugin.cloud.azure.errors import NO_ANSWER, ApiError
from slurm_plugin.cloud.backoff import Backoff, Paused
from slurm_plugin.cloud.refusals import or_none, shorten
from slurm_plugin.config import AzureProvider

TIMEOUT = 8.0
"""Seconds for one answer; all calls here but one answer at once."""
LONG_TIMEOUT = 60.0
READ_PATIENCE = 6.0
WRITE_PATIENCE = 8.0
"""Seconds that a call may spend waiting for the shared pause (manager/lane.py waits 10 s and 15 s)."""


class _NoCredential:
    def get_token(self, *_: str, **__: Any) -> AccessToken:
        """For servers that are not Azure's."""
        return AccessToken("none", 1 << 40)


class Arm:
    """Safe in several threads; its client is made lazily. Every method raises ``ApiError``."""

    def __init__(self, config: AzureProvider) -> None:
        self.config = config
        self._group = config.resource_group
        self._reads, self._writes = Backoff(), Backoff()
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}

    def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Begin to make a machine, only if there is none of that name (``ApiError.exists``)."""
        options = {"etag": "*", "match_condition": MatchConditions.IfMissing, "polling": False}
        self._write(lambda vms: vms.begin_create_or_update(self._group, name, dict(body), **options))

    def delete(self, name: str) -> None:
        """Begin to delete a machine, at once; one that is gone is no error."""
        try:
            self._write(lambda vms: vms.begin_delete(self._group, name, force_deletion=True, polling=False))
        except ApiError as error:
            if error.status != 404:
                raise

    def get(self, name: str) -> dict[str, Any] | None:
        """A machine with its instance view; None where there is none."""
        return or_none(lambda: self._read(lambda vms: vms.get(self._group, name, expand="instanceView").as_dict()))

    def machines(self) -> list[dict[str, Any]]:
        """All of the resource group; ``properties.instanceView`` tells whether they run, where Azure knows."""
        machines: list[dict[str, Any]] = self._read(lambda vms: [vm.as_dict() for vm in vms.list(self._group)])
        # The group's own listing has no power states, and the one that has them has nothing else.
        states: list[dict[str, Any]] = self._read(lambda vms: [vm.as_dict() for vm in vms.list_all(status_only="true")])
        about = {str(m.get("id")).lower(): m.get("properties") for m in states}
        for machine in machines:
            told, shown = about.get(str(machine.get("id")).lower()), machine.setdefault("properties", {})
            if isinstance(told, dict) and isinstance(shown, dict) and told.get("instanceView"):
                shown["instanceView"] = told["instanceView"]
        return machines

    def skus(self) -> list[dict[str, Any]]:
        """What can be had in the region, of all kinds: a long list, that takes Azure many seconds."""
        here = f"location eq '{self.config.region}'"

        def listed() -> list[dict[str, Any]]:
            found = self._client().resource_skus.list(filter=here, read_timeout=LONG_TIMEOUT)
            return [sku.as_dict() for sku in found]

        return list(self._paced(self._reads, READ_PATIENCE, listed))

    def usages(self) -> list[dict[str, Any]]:
        """What the subscription may have in the region, and what it has."""
        found: list[dict[str, Any]] = self._look(
            self.config.subscription, lambda c: [one.as_dict() for one in c.usage.list(self.config.region)]
        )
        return found

    def managed_image(self, subscription: str, group: str, name: str) -> dict[str, Any]:
        """A managed image. Raises ``ApiError`` of status 404 where there is none, as the others below do."""
        found: dict[str, Any] = self._look(subscription, lambda c: c.images.get(group, name).as_dict())
        return found

    def gallery_image(self, subscription: str, group: str, gallery: str, name: str) -> dict[str, Any]:
        """The definition of a gallery's image."""
        found: dict[str, Any] = self._look(subscription, lambda c: c.gallery_images.get(group, gallery, name).as_dict())
        return found

    def gallery_versions(self, subscription: str, group: str, gallery: str, name: str) -> list[dict[str, Any]]:
        """All versions of a gallery's image."""
        found: list[dict[str, Any]] = self._look(
            subscription,
            lambda c: [v.as_dict() for v in c.gallery_image_versions.list_by_gallery_image(group, gallery, name)],
        )
        return found

    def market_versions(self, publisher: str, offer: str, sku: str) -> list[str]:
        """Of an image of the marketplace in the region, by name."""
        found: list[str] = self._look(
            self.config.subscription,
            lambda c: [
                str(v.as_dict().get("name"))
                for v in c.virtual_machine_images.list(self.config.region, publisher, offer, sku)
            ],
        )
        return found

    def market_image(self, publisher: str, offer: str, sku: str, version: str) -> dict[str, Any]:
        """A version of an image of the marketplace, in the region."""
        found: dict[str, Any] = self._look(
            self.config.subscription,
            lambda c: c.virtual_machine_images.get(self.config.region, publisher, offer, sku, version).as_dict(),
        )
        return found

    def _look(self, subscription: str, work: Callable[[Any], Any]) -> Any:
        return self._paced(self._reads, READ_PATIENCE, lambda: work(self._client(subscription)))

    def _read(self, work: Callable[[Any], Any]) -> Any:
        return self._paced(self._reads, READ_PATIENCE, lambda: work(self._client().virtual_machines))

    def _write(self, work: Callable[[Any], Any]) -> Any:
        return self._paced(self._writes, WRITE_PATIENCE, lambda: work(self._client().virtual_machines))

    def _paced(self, pace: Backoff, patience: float, work: Callable[[], Any]) -> Any:
        def once() -> Any:
            try:
                return _sorted(work)
            except ApiError as error:
                if error.status == 429 and error.retry_after:
                    pace.throttled(error.retry_after)
                raise

        try:
            return pace.call(once, _is_throttle, patience)
        except Paused as error:
            raise ApiError("TooManyRequests", str(error), 429) from None

    def _client(self, subscription: str = "") -> Any:
        """``subscription``: "" is burst.yaml's; an image may lie in another one."""
        wanted = subscription or self.config.subscription
        with self._lock:
            if wanted not in self._made:
                # Our own pause is shared by all callers; the library's retries would be each caller's own.
                options: dict[str, Any] = {"retry_total": 0, "connection_timeout": 3.0, "read_timeout": TIMEOUT}
                if self.config.endpoint_url:
                    options["authentication_policy"] = SansIOHTTPPolicy()
                    client = ComputeManagementClient(
                        _NoCredential(), wanted, base_url=self.config.endpoint_url, **options
                    )
                else:
                    from azure.identity import DefaultAzureCredential

                    client = ComputeManagementClient(DefaultAzureCredential(), wanted, **options)
                self._made[wanted] = client
            return self._made[wanted]


def _sorted(work: Callable[[], Any]) -> Any:
    """The answer, or ``ApiError``."""
    try:
        return work()
    except ClientAuthenticationError as error:
        raise ApiError("AuthorizationFailed", str(error.message), error.status_code or 401) from error
    except HttpResponseError as error:
        told = error.error
        wish = getattr(error.response, "headers", {}).get("Retry-After")
        raise ApiError(
            str((told and told.code) or error.status_code),
            str((told and told.message) or error.message),
            error.status_code,
            float(wish) if wish and wish.isdecimal() else None,
        ) from error
    except (AzureError, OSError) as error:
        raise ApiError(NO_ANSWER, str(error)) from error
    except (AttributeError, TypeError, ValueError, LookupError, RecursionError) as error:
        # The library's models take any JSON, and stumble over it where it is not what they expect.
        raise ApiError(NO_ANSWER, f"the answer can't be read: {type(error).__name__}: {shorten(str(error))}") from error


def _is_throttle(error: Exception) -> bool:
    return isinstance(error, ApiError) and error.status == 429
