"""The one place that imports google-cloud-compute: calls to Compute Engine, their errors as ``ApiError``, their rate as it allows.

Operations are polled by clients of their own: the library's ``ExtendedOperation`` asks Google's host whatever endpoint was named. The
library's own retries are off, since the pause is shared by all callers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import google.api_core.exceptions
import google.auth.exceptions
import requests
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1
from google.protobuf import json_format

from slurm_plugin.cloud.backoff import Backoff, Paused
from slurm_plugin.cloud.gcp.errors import NO_ANSWER, THROTTLES, ApiError
from slurm_plugin.cloud.refusals import or_none, shorten
from slurm_plugin.config import GcpProvider

READ_TIMEOUT = 8.0
WRITE_TIMEOUT = 30.0
READ_PATIENCE = 6.0
WRITE_PATIENCE = 8.0
"""Seconds for one answer, and that a call may spend waiting for the shared pause (manager/lane.py waits 10 s and 15 s)."""
PAGE = 500


class Gce:
    """Safe in several threads; its clients are made lazily. Every method raises ``ApiError``."""

    def __init__(self, config: GcpProvider) -> None:
        self.config = config
        # Compute Engine counts reads and changes apart, so a launch that is put off holds up no listing.
        self._reads, self._writes = Backoff(), Backoff()
        self._lock = threading.Lock()
        self._clients: dict[type, Any] = {}

    def insert(self, zone: str, resource: compute_v1.BulkInsertInstanceResource, request_id: str) -> str:
        """Bulk-insert into a zone, or ("") into the region. Returns the operation's name."""
        place = {"project": self.config.project, "request_id": request_id}
        if zone:
            request: Any = compute_v1.BulkInsertInstanceRequest(
                **place, zone=zone, bulk_insert_instance_resource_resource=resource
            )
            return str(self._write(compute_v1.InstancesClient, "bulk_insert_unary", request).name)
        request = compute_v1.BulkInsertRegionInstanceRequest(
            **place, region=self.config.region, bulk_insert_instance_resource_resource=resource
        )
        return str(self._write(compute_v1.RegionInstancesClient, "bulk_insert_unary", request).name)

    def operation(self, zone: str, name: str) -> list[ApiError] | None:
        """What went wrong in it; None while it is running."""
        project = self.config.project
        if zone:
            client: type = compute_v1.ZoneOperationsClient
            request: Any = compute_v1.GetZoneOperationRequest(project=project, zone=zone, operation=name)
        else:
            client = compute_v1.RegionOperationsClient
            request = compute_v1.GetRegionOperationRequest(project=project, region=self.config.region, operation=name)
        answer = self._read(client, "get", request)
        return _errors(answer) if answer.status == compute_v1.Operation.Status.DONE else None

    def instances(self, label: str, value: str) -> list[Any]:
        """All of the project's region that bear the label: every page of every zone, or ``ApiError``.

        Plain protobuf messages: the library's wrappers around each field take several times as long to read.
        """
        request = compute_v1.AggregatedListInstancesRequest(
            project=self.config.project,
            filter=f"labels.{label}={value}",
            max_results=PAGE,
        )
        found: list[Any] = []
        for wrapped in self._pages(compute_v1.InstancesClient, "aggregated_list", request):
            page: Any = compute_v1.InstanceAggregatedList.pb(wrapped)
            if page.unreachables:
                raise ApiError(NO_ANSWER, f"the listing lacks {', '.join(page.unreachables)}")
            for scope, part in page.items.items():
                if part.warning.code not in ("", "NO_RESULTS_ON_PAGE"):
                    raise ApiError(NO_ANSWER, f"{scope}: {part.warning.code}: {part.warning.message}")
                if scope.startswith(f"zones/{self.config.region}-"):
                    found += part.instances
        return found

    def instance(self, zone: str, name: str) -> Any:
        """By name or number, as a plain protobuf message; None where there is none."""
        request = compute_v1.GetInstanceRequest(project=self.config.project, zone=zone, instance=name)
        return or_none(lambda: compute_v1.Instance.pb(self._read(compute_v1.InstancesClient, "get", request)))

    def delete(self, zone: str, number: int) -> None:
        """End and delete a machine; one that is gone is no error."""
        request = compute_v1.DeleteInstanceRequest(project=self.config.project, zone=zone, instance=str(number))
        try:
            self._write(compute_v1.InstancesClient, "delete_unary", request)
        except ApiError as error:
            if error.status != 404:
                raise

    def zones(self) -> list[str]:
        """Of the region."""
        return sorted(str(url).rsplit("/", 1)[-1] for url in self._region().zones)

    def quotas(self) -> dict[str, tuple[float, float]]:
        """Of the project in the region: limit and usage by metric."""
        return {str(one.metric): (float(one.limit), float(one.usage)) for one in self._region().quotas}

    def _region(self) -> Any:
        request = compute_v1.GetRegionRequest(project=self.config.project, region=self.config.region)
        return self._read(compute_v1.RegionsClient, "get", request)

    def image(self, project: str, name: str, *, family: bool) -> Any:
        """An image, or the newest of a family that is not withdrawn; None where there is none of that name."""
        images = compute_v1.ImagesClient
        if family:
            newest = compute_v1.GetFromFamilyImageRequest(project=project, family=name)
            return or_none(lambda: self._read(images, "get_from_family", newest))
        named = compute_v1.GetImageRequest(project=project, image=name)
        return or_none(lambda: self._read(images, "get", named))

    def machine_type(self, zone: str, name: str) -> Any:
        """As the zone has it; None where it has none of that name."""
        request = compute_v1.GetMachineTypeRequest(project=self.config.project, zone=zone, machine_type=name)
        return or_none(lambda: self._read(compute_v1.MachineTypesClient, "get", request))

    # Inside.

    def _read(self, client: type, method: str, request: Any) -> Any:
        return self._paced(
            self._reads,
            READ_PATIENCE,
            lambda: getattr(self._client(client), method)(request, retry=None, timeout=READ_TIMEOUT),
        )

    def _write(self, client: type, method: str, request: Any) -> Any:
        return self._paced(
            self._writes,
            WRITE_PATIENCE,
            lambda: getattr(self._client(client), method)(request, retry=None, timeout=WRITE_TIMEOUT),
        )

    def _pages(self, client: type, method: str, request: Any) -> Iterator[Any]:
        while True:
            pager = self._read(client, method, request)
            page = next(iter(pager.pages))  # the first one; the pager's own way on would pass by the shared pause
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _paced(self, pace: Backoff, patience: float, work: Callable[[], Any]) -> Any:
        try:
            return pace.call(lambda: _sorted(work), _is_throttle, patience)
        except Paused as error:
            raise ApiError("rateLimitExceeded", str(error)) from None

    def _client(self, client: type) -> Any:
        with self._lock:
            if client not in self._clients:
                if self.config.endpoint_url:
                    options = ClientOptions(api_endpoint=self.config.endpoint_url)
                    self._clients[client] = client(credentials=AnonymousCredentials(), client_options=options)  # type: ignore[no-untyped-call]
                else:
                    self._clients[client] = client()
            return self._clients[client]


def has_notice() -> bool:
    """Whether the installed API knows the longer preemption notice."""
    return "preemption_notice_duration" in compute_v1.Scheduling.meta.fields


def _sorted(work: Callable[[], Any]) -> Any:
    """The answer, or ``ApiError``."""
    try:
        return work()
    except google.api_core.exceptions.GoogleAPICallError as error:
        reasons = [e.get("reason") for e in _told(error) if isinstance(e, dict)]
        code = next((str(r) for r in reasons if r), str(error.code))
        raise ApiError(code, str(error.message), int(error.code) if error.code is not None else None) from error
    except (google.auth.exceptions.DefaultCredentialsError, google.auth.exceptions.RefreshError) as error:
        raise ApiError("forbidden", f"credentials: {error}") from error
    except (
        google.api_core.exceptions.GoogleAPIError,
        google.auth.exceptions.GoogleAuthError,
        requests.exceptions.RequestException,
        OSError,
    ) as error:
        raise ApiError(NO_ANSWER, str(error)) from error
    except (json_format.Error, AttributeError, TypeError, ValueError, LookupError, RecursionError) as error:
        # The library reads any answer as JSON of its model.
        raise ApiError(NO_ANSWER, f"the answer can't be read: {type(error).__name__}: {shorten(str(error))}") from error


def _told(error: google.api_core.exceptions.GoogleAPICallError) -> list[Any]:
    """The parts of an error's answer, of which the library makes a list when it is asked, whatever they are."""
    try:
        return list(error.errors)
    except TypeError:
        return []


def _errors(operation: compute_v1.Operation) -> list[ApiError]:
    found = []
    for error in operation.error.errors:
        limits = [
            d.quota_info.limit for d in error.error_details if d.quota_info.limit_name or d.quota_info.metric_name
        ]
        found.append(ApiError(error.code, error.message, None, limits[0] if limits else None))
    if not found and operation.http_error_status_code:
        status = int(operation.http_error_status_code)
        found.append(ApiError(str(status), operation.http_error_message or "the operation failed", status))
    return found


def _is_throttle(error: Exception) -> bool:
    return isinstance(error, ApiError) and (error.code in THROTTLES or error.status == 429)
