"""What clouds answer: their APIs by their own client libraries, price lists, and buckets by the client of stores."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any
from unittest.mock import patch

import requests

from job_wrapper.errors import StoreError
from job_wrapper.store import bucket_clients
from job_wrapper.store.gcs import open_gcs
from job_wrapper.store.open import open_store
from slurm_plugin.checks import images, quotas
from slurm_plugin.checks.finding import Finding
from slurm_plugin.cloud.asking import readable
from slurm_plugin.cloud.aws import fleet, listing, names
from slurm_plugin.cloud.aws.cloud import AwsCloud
from slurm_plugin.cloud.aws.errors import ApiError as AwsError
from slurm_plugin.cloud.azure import catalog as azure_catalog
from slurm_plugin.cloud.azure import prices as azure_prices
from slurm_plugin.cloud.azure import shape as azure_shape
from slurm_plugin.cloud.azure.cloud import AzureCloud
from slurm_plugin.cloud.azure.errors import ApiError as AzureError
from slurm_plugin.cloud.backoff import Backoff
from slurm_plugin.cloud.gcp import prices as gcp_prices
from slurm_plugin.cloud.gcp.cloud import GcpCloud
from slurm_plugin.cloud.gcp.errors import ApiError as GcpError
from slurm_plugin.cloud.images import ImageFacts
from slurm_plugin.cloud.instants import unix_seconds
from slurm_plugin.cloud.provider import Instance, Market, Offering
from slurm_plugin.config import AwsProvider, AzureProvider, GcpProvider
from slurm_plugin.errors import CloudUnavailable
from tests.fuzz.answering import Answering
from tests.fuzz.target import Feed, Room, Target, pure, text

_UUID = "6f9619ff-8b86-4d11-b42d-00c04fc90001"
_TAGS = {"spotburst-cluster": "demo", "spotburst-node": "spot-1", "spotburst-nodeset": "spot", "spotburst-launch": _UUID, "spotburst-offering": "ec2/eu-west-1/eu-west-1a/g5.xlarge/spot"}  # fmt: skip
_FLEET = {"spotburst-cluster": "demo", "spotburst-batch": _UUID, "spotburst-fleet": _UUID, "spotburst-nodes-0": "spot-[1-3],gpu-[07-09]", "spotburst-numbers": "0-2,5", "spotburst-digits": "2", "spotburst-digit-0": "1", "spotburst-digit-1": "0"}  # fmt: skip
_RECORD = {"InstanceId": "i-0123456789abcdef0", "Tags": [{"Key": k, "Value": v} for k, v in _TAGS.items()], "State": {"Name": "running"}, "PrivateIpAddress": "10.0.0.1", "Placement": {"AvailabilityZone": "eu-west-1a"}, "InstanceLifecycle": "spot"}  # fmt: skip
_VM = {"id": "/subscriptions/s/x", "name": "spot-1", "tags": _TAGS, "properties": {"provisioningState": "Failed", "timeCreated": "2026-05-02T08:22:00.123+00:00", "instanceView": {"statuses": [
    {"code": "ProvisioningState/failed/AllocationFailed", "message": "Allocation failed"}, {"code": "PowerState/running"}]}}}  # fmt: skip
_SKU = {"name": "Standard_NC4", "resourceType": "virtualMachines", "capabilities": [{"name": "vCPUs", "value": "4"}, {"name": "MemoryGB", "value": "28"}, {"name": "GPUs", "value": "1"}]}  # fmt: skip
_METER = {"type": "Consumption", "unitOfMeasure": "1 Hour", "currencyCode": "USD", "productName": "NC", "skuName": "NC4 Spot", "armSkuName": "Standard_NC4", "retailPrice": 0.1, "effectiveStartDate": "2026-01-01T00:00:00Z"}  # fmt: skip
_GSKU = {"category": {"usageType": "Preemptible", "resourceFamily": "Compute"}, "serviceRegions": ["r"], "description": "Spot Preemptible G2 Instance Core running in Americas",
         "pricingInfo": [{"pricingExpression": {"usageUnit": "h", "tieredRates": [{"unitPrice": {"currencyCode": "USD", "units": "0", "nanos": 12500000}}]}}]}  # fmt: skip
_EC2 = (
    "<DescribeImagesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><imagesSet><item><imageId>ami-1</imageId><imageState>available</imageState><architecture>arm64</architecture><deprecationTime>2026-05-02T08:22:00.000Z</deprecationTime></item></imagesSet>"
    "<instanceTypeSet><item><instanceType>g2-standard-8</instanceType><processorInfo><supportedArchitectures><item>x86_64</item></supportedArchitectures></processorInfo><vCpuInfo><defaultVCpus>8</defaultVCpus></vCpuInfo><memoryInfo><sizeInMiB>9</sizeInMiB></memoryInfo></item></instanceTypeSet></DescribeImagesResponse>",
    json.dumps({"Quota": {"QuotaName": "All G", "Value": 64.0}, "Parameters": [{"Value": "ami-1"}]}),
    '<?xml version="1.0" encoding="UTF-8"?><DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId><reservationSet><item><reservationId>r-1</reservationId><instancesSet><item>'
    "<instanceId>i-0123456789abcdef0</instanceId><instanceState><code>16</code><name>running</name></instanceState><launchTime>2026-05-02T08:22:00.000Z</launchTime><privateIpAddress>10.0.0.1</privateIpAddress>"
    "<placement><availabilityZone>eu-west-1a</availabilityZone></placement><tagSet>" + "".join(f"<item><key>{k}</key><value>{v}</value></item>" for k, v in _TAGS.items()) + "</tagSet></item></instancesSet></item></reservationSet></DescribeInstancesResponse>",
    "<Response><Errors><Error><Code>RequestLimitExceeded</Code><Message>Request limit exceeded.</Message></Error></Errors><RequestID>r</RequestID></Response>",
    'HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 2\r\n\r\nno', "HTTP/1.1 400 Bad Request\r\nContent-Type: text/xml\r\n\r\n<Response><Errors><Error><Code>AuthFailure</Code><Message>x</Message></Error></Errors></Response>",
)  # fmt: skip
_ARM = (
    json.dumps({"value": [{"unit": "Count", "currentValue": 8, "limit": 64, "name": {"value": "lowPriorityCores", "localizedValue": "Spot"}}, {**_SKU, "name": "g2-standard-8", "family": "f"}]}),
    json.dumps({"location": "r", "properties": {"provisioningState": "Succeeded", "architecture": "x64"}, "name": "1.0.0"}),
    json.dumps({"value": [_VM]}), json.dumps({"error": {"code": "SkuNotAvailable", "message": "x", "details": [{"code": "y"}]}}),
    'HTTP/1.1 429 Too Many Requests\r\nRetry-After: 17\r\nContent-Type: application/json\r\n\r\n{"error":{"code":"TooManyRequests","message":"x"}}',
    'HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\n\r\n{"error":{"code":"OperationNotAllowed","message":"exceeding approved quota. Current Limit: 0, Additional Required: 4"}}',
)  # fmt: skip
_GCE = (
    json.dumps({"quotas": [{"metric": "PREEMPTIBLE_NVIDIA_L4_GPUS", "limit": 8, "usage": 1}], "guestCpus": 8, "memoryMb": 32768, "architecture": "X86_64", "accelerators": [{"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 1}]}),
    json.dumps({"name": "i", "status": "READY", "architecture": "ARM64", "deprecated": {"state": "OBSOLETE", "replacement": "https://x/projects/p/global/images/j"}}),
    json.dumps({"items": {"zones/r-a": {"instances": [{"id": "123", "name": "spot-1", "zone": "https://x/zones/r-a", "status": "RUNNING", "creationTimestamp": "2026-05-02T08:22:00.000-07:00", "scheduling": {"provisioningModel": "SPOT"},
                "metadata": {"items": [{"key": "spotburst-cluster", "value": "demo"}, {"key": "spotburst-base", "value": _UUID}, {"key": "spotburst-members", "value": "0001:spot-1"}]},
                "networkInterfaces": [{"networkIP": "10.0.0.1"}]}]}, "zones/r-b": {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "x"}}}}),
    'HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n\r\n{"error":{"code":403,"message":"x","errors":[{"reason":"rateLimitExceeded","message":"x"}]}}',
    json.dumps({"name": "op", "status": "DONE", "httpErrorStatusCode": 409, "error": {"errors": [{"code": "QUOTA_EXCEEDED", "message": "Limit: 64.0", "errorDetails": [{"quotaInfo": {"limit": 0, "metricName": "m"}}]}]}}),
)  # fmt: skip
_LIST = (
    '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>p/</Prefix><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>'
    "<Contents><Key>p/c/12/main/log/00000001.json</Key><LastModified>2026-05-02T08:22:00.000Z</LastModified><ETag>&quot;x&quot;</ETag><Size>5</Size><StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>",
    'HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\n\r\n<?xml version="1.0"?><Error><Code>NoSuchBucket</Code><Message>x</Message></Error>',
    'HTTP/1.1 403 Forbidden\r\n\r\n<Error><Code>AccessDenied</Code><Message>x</Message></Error>', 'HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/4\r\nContent-Length: 4\r\nETag: "x"\r\nLast-Modified: Sat, 02 May 2026 08:22:00 GMT\r\n\r\nabcd',
    'HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n', 'HTTP/1.1 200 OK\r\nETag: "x"\r\nLast-Modified: Sat, 02 May 2026 08:22:00 GMT\r\nContent-Length: 4\r\n\r\nabcd',
    json.dumps({"kind": "storage#objects", "items": [{"name": "p/x", "size": "5", "updated": "2026-05-02T08:22:00Z", "etag": "x"}]}),
    '<?xml version="1.0"?><EnumerationResults><Blobs><Blob><Name>p/x</Name><Properties><Last-Modified>Sat, 02 May 2026 08:22:00 GMT</Last-Modified><Etag>x</Etag><Content-Length>5</Content-Length></Properties></Blob></Blobs><NextMarker/></EnumerationResults>',
)  # fmt: skip


def targets() -> list[Target]:
    """All of them."""
    return [
        pure("aws-records", _aws_records, tuple(json.dumps(r) for r in (_RECORD, {**_RECORD, "Tags": [{"Key": k, "Value": v} for k, v in _FLEET.items()]})), _WRONG),
        pure("aws-tags", _aws_tags, (json.dumps(_FLEET), json.dumps(_TAGS))),
        pure("azure-records", _azure_records, tuple(json.dumps(r) for r in (_VM, _SKU, _METER)), (*_WRONG, AzureError)),
        pure("gcp-prices", lambda data: list(gcp_prices.read([_object(data)], "r").items()), (json.dumps(_GSKU),), _WRONG),
        pure("cloud-errors", _errors, ("SkuNotAvailable\nCurrent Limit: 0, Additional Required: 4", "OperationNotAllowed\nquota", "QUOTA_EXCEEDED\nQuota 'GPUS' exceeded.  Limit: 0.0 in region", "VcpuLimitExceeded\nvCPU limit of 0 allows", "2026-05-02T08:22:00.123Z\n")),
        Target("aws-api", _aws_api, tuple(a.encode() for a in _EC2)),
        Target("azure-api", _azure_api, tuple(a.encode() for a in _ARM)),
        Target("gcp-api", _gcp_api, tuple(a.encode() for a in _GCE)),
        Target("price-pages", _price_pages, (json.dumps({"Items": [_METER], "NextPageLink": None}).encode(), json.dumps({"skus": [_GSKU], "nextPageToken": ""}).encode(), b"HTTP/1.1 503 No\r\n\r\nno"), (CloudUnavailable,)),
        *(Target(f"bucket-{kind}", lambda room, kind=kind: _bucket(room, kind), tuple(a.encode() for a in _LIST)) for kind in ("s3", "gs", "az")),  # type: ignore[misc]
    ]  # fmt: skip


_SOUND = ImageFacts("i", architecture="x86_64")
_WRONG = (json.JSONDecodeError, UnicodeDecodeError)
"""That it is no JSON at all is the client library's to say."""


def _object(data: bytes) -> dict[str, Any]:
    """As the library gives it: an object of objects."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise json.JSONDecodeError("no object", "", 0)
    return found


def _aws_records(data: bytes) -> None:
    """Of the types that botocore gives by EC2's model; what it leaves out may be missing."""
    found = _object(data)
    record: dict[str, Any] = {"InstanceId": "i-0123456789abcdef0"}
    record |= {k: str(found[k]) for k in ("PrivateIpAddress", "InstanceLifecycle") if k in found}
    record |= {k: {n: str(v) for n, v in found[k].items()} for k in ("State", "Placement") if isinstance(found.get(k), dict)}  # fmt: skip
    record["Tags"] = [{"Key": str(t["Key"]), "Value": str(t.get("Value", ""))} for t in found.get("Tags") or () if isinstance(t, dict) and "Key" in t] if isinstance(found.get("Tags"), list) else []  # fmt: skip
    record["LaunchTime"] = datetime.fromtimestamp(5, timezone.utc)
    machine = listing.read(record).machine
    assert machine.instance_id and machine.node, "a machine can't be named, and so not be ended"
    listing.reclaimed(machine, 1777710120.0)
    fleet.read({"Instances": [], "Errors": [{"ErrorCode": str(k), "ErrorMessage": str(v)} for k, v in found.items()]})


def _aws_tags(data: bytes) -> None:
    with contextlib.suppress(*_WRONG):
        found = names.read({str(k): str(v)[:256] for k, v in _object(data).items()})
        assert found is None or (found[0] and found[1])


def _azure_records(data: bytes) -> None:
    found = _object(data)
    azure_shape.read(found, "demo")
    azure_catalog.read(found)
    for price in azure_prices.read([found]).values():
        assert math.isfinite(price) and price >= 0, f"a price of {price}"


def _errors(data: bytes) -> None:
    code, _, words = text(data).partition("\n")
    for error in (AwsError(code, words, 400), AzureError(code, words, 409)):
        refused = error.refuse(_UUID)
        assert len(refused.text) <= 500
    GcpError(code, words, 403).refuse(_UUID, "a2-highgpu-8g")
    unix_seconds(code)


class _Steady:
    """A clock that goes on only while somebody sleeps."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pace(self) -> Backoff:
        return Backoff(clock=lambda: self.now, sleep=self.sleep)


def _api(room: Room, made: Callable[[str], Any], api: str, headers: str) -> Feed:
    server = room.stack.enter_context(Answering(headers))
    cloud = made(server.url)
    offering = Offering(cloud.name, cloud.config.region, "r-a", "g2-standard-8", Market.SPOT)

    def feed(data: bytes) -> None:
        server.answer = data
        client = getattr(cloud, api)
        client._reads, client._writes = _Steady().pace(), _Steady().pace()
        for ask in (cloud.instances, lambda: cloud.machine_sizes([offering]), lambda: cloud.prices([offering])):
            with contextlib.suppress(CloudUnavailable):
                found = ask()
                assert isinstance(found, dict) or all(isinstance(one, Instance) and one.instance_id for one in found)
        _check(cloud, offering)

    return feed


def _check(cloud: Any, offering: Offering) -> None:
    """As ``check`` asks, and judges what it was told."""
    for ask in (
        lambda: images.image(cloud.name, readable(cloud.name, cloud.image), {}),
        lambda: images.image(cloud.name, _SOUND, readable(cloud.name, partial(cloud.architectures, [offering]))),
        lambda: quotas.quotas([quotas.Wanted("s", 4, (offering,))], readable(cloud.name, partial(cloud.quotas, [offering])), {}),
    ):  # fmt: skip
        with contextlib.suppress(CloudUnavailable):
            assert all(isinstance(one, Finding) for one in ask())


def _aws_api(room: Room) -> Feed:
    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x")
    config = {"type": "aws", "region": "eu-west-1", "image": "ami-1", "subnets": {"r-a": "subnet-1"}}
    return _api(room, lambda url: AwsCloud("ec2", AwsProvider(**config, endpoint_url=url), cluster="demo", state_dir=room.folder), "ec2", "Content-Type: text/xml\r\n")  # type: ignore[arg-type]  # fmt: skip


def _azure_api(room: Room) -> Feed:
    config = {"type": "azure", "subscription": "s", "resource_group": "g", "region": "r", "image": "/i", "subnet": "n", "ssh_public_key": "k"}  # fmt: skip
    return _api(room, lambda url: AzureCloud("az", AzureProvider(**config, endpoint_url=url), cluster="demo", state_dir=room.folder, slurm_conf=room.folder), "api", "Content-Type: application/json\r\n")  # type: ignore[arg-type]  # fmt: skip


def _gcp_api(room: Room) -> Feed:
    config = {"type": "gcp", "project": "p", "region": "r", "image": "i", "subnetwork": "s"}
    return _api(room, lambda url: GcpCloud("gce", GcpProvider(**config, endpoint_url=url), cluster="demo", state_dir=room.folder, slurm_conf=room.folder), "api", "Content-Type: application/json\r\n")  # type: ignore[arg-type]  # fmt: skip


def _price_pages(room: Room) -> Feed:
    server = room.stack.enter_context(Answering())
    for module in (azure_prices, gcp_prices):
        room.stack.enter_context(patch.object(module, "MOST_PAGES", 3))
    session = room.stack.enter_context(requests.Session())

    def feed(data: bytes) -> None:
        server.answer = data
        for read in (
            lambda: azure_prices.read(azure_prices.meters(session, server.url, "r", ["Standard_NC4"])),
            lambda: gcp_prices.read(gcp_prices.skus(session, server.url), "r"),
        ):
            with contextlib.suppress(CloudUnavailable):
                for price in read().values():
                    assert math.isfinite(price) and price >= 0, f"a price of {price}"

    return feed


def _bucket(room: Room, kind: str) -> Feed:
    server = room.stack.enter_context(Answering("Content-Type: application/xml\r\nETag: \"x\"\r\nLast-Modified: Sat, 02 May 2026 08:22:00 GMT\r\n"))  # fmt: skip
    room.stack.enter_context(patch.object(bucket_clients, "RETRIES", 0))
    key = "bm9ib2R5IGtub3dzIHRoaXMga2V5"
    environment = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "r", "AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": key}  # fmt: skip
    os.environ.update(environment)
    if kind == "gs":
        account = room.file("account.json")
        account.write_text(json.dumps({"gcs_base_url": server.url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}))  # fmt: skip
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(account)
        store: Any = open_gcs("gs://bucket/p", server.url)
    else:
        store = open_store(f"{kind}://bucket/p", endpoint_url=server.url, prove=False)

    def feed(data: bytes) -> None:
        server.answer = data
        for ask in (
            lambda: [info.size + 1 for info in store.list("c/")],
            lambda: store.get("c/x"),
            lambda: store.get_range("c/x", 0, 4),
            lambda: store.read_into("c/x", 1, memoryview(bytearray(3))),
            lambda: store.put_if_absent("c/x", b"1"),
            lambda: store.put("c/x", b"1"),
            lambda: store.delete(["c/x"]),
        ):
            with contextlib.suppress(StoreError):
                ask()

    return feed
