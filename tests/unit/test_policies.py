"""The rights that ansible/policies gives: what the code's calls need, by each cloud's own reference, and no more."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from job_wrapper.store import bucket, s3_uploads
from slurm_plugin.cloud import launch_ids, tags
from slurm_plugin.cloud.aws import names, queue
from slurm_plugin.cloud.azure import client as azure_client
from slurm_plugin.cloud.azure import shape as azure_shape
from slurm_plugin.cloud.gcp import client as gcp_client
from slurm_plugin.cloud.gcp import shape as gcp_shape
from slurm_plugin.cloud.gcp.journal import Call
from slurm_plugin.cloud.provider import LaunchRequest, Market, Offering
from slurm_plugin.config import AzureProvider, GcpProvider
from slurm_plugin.config_providers import GcpReservation

FOLDER = Path(__file__).resolve().parents[2] / "ansible" / "policies"
NONE: tuple[str, ...] = ()
Rights = Mapping[str, tuple[str, ...]]


def policy(name: str) -> Any:
    """A file of the folder."""
    read = json.loads if name.endswith(".json") else yaml.safe_load
    return read((FOLDER / name).read_text())


def actions(statement: Mapping[str, Any]) -> list[str]:
    """Of a statement of AWS's, which may name one without a list."""
    named = statement["Action"]
    return [named] if isinstance(named, str) else named


def needed(calls: Iterable[str], rights: Rights) -> set[str]:
    """All that these calls need; a call of which nobody has said what it needs is an error."""
    return {right for call in calls for right in rights[call]}


def source(module: Any) -> str:
    return Path(module.__file__).read_text()


# The checkpoints: nodes write and read them, the manager frees them.


def store_calls() -> set[str]:
    calls = set(re.findall(r"\bobstore\.(\w+)\(", source(bucket)))
    return calls | set(re.findall(r"\b(\w+_multipart_uploads?)\b", source(s3_uploads)))


def test_the_store_on_aws() -> None:
    rights: Rights = {
        "put": ("s3:PutObject", "s3:AbortMultipartUpload"),
        "get": ("s3:GetObject",),
        "head": ("s3:GetObject",),
        "list": ("s3:ListBucket",),
        "delete": ("s3:DeleteObject",),
        "list_multipart_uploads": ("s3:ListBucketMultipartUploads",),
        "abort_multipart_upload": ("s3:AbortMultipartUpload",),
    }
    wanted = needed(store_calls(), rights)
    node = policy("aws-node.json")
    assert {action for statement in node["Statement"] for action in actions(statement)} == wanted
    manager = policy("aws-manager.json")
    freeing = next(statement for statement in manager["Statement"] if statement["Sid"] == "FreeCheckpoints")
    assert set(actions(freeing)) == wanted
    objects = {node["Statement"][0]["Resource"], *freeing["Resource"]} - {"arn:aws:s3:::BUCKET"}
    assert objects == {"arn:aws:s3:::BUCKET/PREFIX/*"}, "nobody reaches what lies beside the checkpoints"


def test_the_store_on_google_cloud() -> None:
    rights: Rights = {
        # Writing over an object takes the right to delete it.
        "put": (
            "storage.objects.create",
            "storage.objects.delete",
            "storage.multipartUploads.create",
            "storage.multipartUploads.abort",
        ),
        "get": ("storage.objects.get",),
        "head": ("storage.objects.get",),
        "list": ("storage.objects.list",),
        "delete": ("storage.objects.delete",),
        "list_multipart_uploads": NONE,  # of S3 alone
        "abort_multipart_upload": NONE,
    }
    role = policy("gcp-node.yaml")
    assert set(role["includedPermissions"]) == needed(store_calls(), rights)


def test_the_store_on_azure() -> None:
    blobs = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
    rights: Rights = {
        "put": (f"{blobs}/write",),
        "get": (f"{blobs}/read",),
        "head": (f"{blobs}/read",),
        "list": (f"{blobs}/read",),
        "delete": (f"{blobs}/delete",),
        "list_multipart_uploads": NONE,
        "abort_multipart_upload": NONE,
    }
    role = policy("azure-node.json")
    assert set(role["DataActions"]) == needed(store_calls(), rights)
    assert role["Actions"] == []


# Google Cloud's machines.


def gcp_calls() -> set[str]:
    """``Client.method`` of each call in ``gcp/client.py``."""
    found = set()
    for function in ast.walk(ast.parse(source(gcp_client))):
        if not isinstance(function, ast.FunctionDef):
            continue
        inside = list(ast.walk(function))
        chosen = {
            n.value.attr
            for n in inside
            if isinstance(n, ast.Assign | ast.AnnAssign)
            if isinstance(n.value, ast.Attribute) and n.value.attr.endswith("Client")
        }
        for call in inside:
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            if call.func.attr in ("_read", "_write", "_pages") and isinstance(call.args[1], ast.Constant):
                client = call.args[0]
                clients = {client.attr} if isinstance(client, ast.Attribute) else chosen
                found |= {f"{name}.{call.args[1].value}" for name in clients}
    return found


def test_the_manager_on_google_cloud() -> None:
    calls: Rights = {
        "InstancesClient.bulk_insert_unary": ("compute.instances.create",),
        "RegionInstancesClient.bulk_insert_unary": ("compute.instances.create",),
        "InstancesClient.aggregated_list": ("compute.instances.list",),
        "InstancesClient.get": ("compute.instances.get",),
        "InstancesClient.delete_unary": ("compute.instances.delete",),
        "ZoneOperationsClient.get": ("compute.zoneOperations.get",),
        "RegionOperationsClient.get": ("compute.regionOperations.get",),
        "RegionsClient.get": ("compute.regions.get",),
        "ImagesClient.get": ("compute.images.get",),
        "ImagesClient.get_from_family": ("compute.images.getFromFamily",),
        "MachineTypesClient.get": ("compute.machineTypes.get",),
    }
    parts: Rights = {
        "machine_type": NONE,
        "scheduling": NONE,
        "reservation_affinity": NONE,
        "labels": ("compute.instances.setLabels",),
        "metadata": ("compute.instances.setMetadata",),
        "disks": ("compute.disks.create", "compute.images.useReadOnly"),
        "network_interfaces": ("compute.subnetworks.use",),
        "service_accounts": ("compute.instances.setServiceAccount",),
        "tags": ("compute.instances.setTags",),
        "resource_policies": ("compute.resourcePolicies.use",),
    }
    config = GcpProvider(
        type="gcp",
        project="p",
        region="r",
        image="projects/p/global/images/i",
        subnetwork="s",
        service_account="nodes@p",
        network_tags=("nodes",),
        placement_policy="compact",
        reservations=(GcpReservation(name="held", instance_type="t", zone="r-a"),),
    )
    base = "0" * 32
    members = {launch_ids.of(base, number): f"n{number}" for number in range(2)}
    call = Call("id", members, "nodeset", "offering", "r-a", "t", Market.RESERVATION.value, True, False, 0.0)
    asked = gcp_shape.resource(config, "cluster", call, "#!/bin/sh").instance_properties
    used = {part for part in type(asked).meta.fields if part in asked}
    role = policy("gcp-manager.yaml")
    assert set(role["includedPermissions"]) == needed(gcp_calls(), calls) | needed(used, parts)


# Azure's machines.


def test_the_manager_on_azure() -> None:
    market = "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions"
    calls: Rights = {
        "begin_create_or_update": ("Microsoft.Compute/virtualMachines/write",),
        "begin_delete": ("Microsoft.Compute/virtualMachines/delete",),
        "get": ("Microsoft.Compute/virtualMachines/read",),
        "list": ("Microsoft.Compute/virtualMachines/read",),
        "list_all": ("Microsoft.Compute/virtualMachines/read",),
        "skus": ("Microsoft.Compute/skus/read",),
        "usage.list": ("Microsoft.Compute/locations/usages/read",),
        "images.get": ("Microsoft.Compute/images/read",),
        "gallery_images.get": ("Microsoft.Compute/galleries/images/read",),
        "gallery_image_versions.list_by_gallery_image": ("Microsoft.Compute/galleries/images/versions/read",),
        "virtual_machine_images.list": (f"{market}/read",),
        "virtual_machine_images.get": (f"{market}/read",),
    }
    card = "Microsoft.Network/networkInterfaces"
    parts: Rights = {
        "location": NONE,
        "tags": NONE,
        "zones": NONE,
        "identity": ("Microsoft.ManagedIdentity/userAssignedIdentities/assign/action",),
        "hardwareProfile": NONE,
        "osProfile": NONE,
        "priority": NONE,
        "evictionPolicy": NONE,
        "billingProfile": NONE,
        "storageProfile": (
            *(f"Microsoft.Compute/disks/{word}" for word in ("read", "write", "delete")),
            *("Microsoft.Compute/images/read", "Microsoft.Compute/galleries/images/read"),
            "Microsoft.Compute/galleries/images/versions/read",
        ),
        "networkProfile": (
            *(f"{card}/{word}" for word in ("read", "write", "delete", "join/action")),
            "Microsoft.Network/virtualNetworks/subnets/join/action",
        ),
        "proximityPlacementGroup": ("Microsoft.Compute/proximityPlacementGroups/read",),
    }
    config = AzureProvider(
        type="azure",
        subscription="s",
        resource_group="g",
        region="r",
        image="/subscriptions/s/image",
        subnet="/subscriptions/s/subnet",
        ssh_public_key="ssh-ed25519 A",
        identity="/subscriptions/s/identity",
        proximity_placement_group="/subscriptions/s/near",
    )
    offering = Offering("az", "r", "1", "t", Market.SPOT)
    body = azure_shape.body(config, "c", LaunchRequest("launch-0", "n1", "nodeset", offering, gang="g"), "#!")
    text = source(azure_client)
    made = set(re.findall(r"\bvms\.(\w+)\(", text)) | ({"skus"} if "resource_skus.list(" in text else set())
    made |= {f"{group}.{call}" for group, call in re.findall(r"\bc\.(\w+)\.(\w+)\(", text)}
    used = {*body, *body["properties"]} - {"properties"}
    role = policy("azure-manager.json")
    assert set(role["Actions"]) == needed(made, calls) | needed(used, parts)


# AWS's machines.


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("aws-*.json")))
def test_policies_give_no_more_than_is_named(name: str) -> None:
    for statement in policy(name)["Statement"]:
        given = actions(statement)
        assert not any("*" in action for action in given)
        looks_only = all(action.partition(":")[2].startswith(("Describe", "List", "Get")) for action in given)
        assert looks_only or statement["Resource"] != "*" or "Condition" in statement, statement["Sid"]


def manager_may(action: str, **context: Any) -> bool:
    """By the policy of EC2's manager. ``context``: condition keys, ``_`` for what a name of Python's can't have."""
    document = policy("aws-manager.json")
    known = {re.sub(r"\W", "_", key): value for key, value in context.items()}

    def holds(operator: str, wanted: dict[str, Any]) -> bool:
        for key, values in wanted.items():
            allowed = [values] if isinstance(values, str) else values
            given = known.get(re.sub(r"\W", "_", key))
            told = [given] if isinstance(given, str) else given
            if told is None or not all(any(fnmatchcase(one, value) for value in allowed) for one in told):
                return False
        return operator in ("StringEquals", "ForAllValues:StringLike")

    return any(
        action in actions(statement)
        and all(holds(operator, wanted) for operator, wanted in statement.get("Condition", {}).items())
        for statement in document["Statement"]
    )


def test_the_manager_on_aws() -> None:
    text = "".join(path.read_text() for path in Path(names.__file__).parent.glob("*.py"))
    calls = set(re.findall(r"\.(?:read|write|pages)\(\s*\"(\w+)\"", text))
    wanted = {"ec2:" + "".join(word.capitalize() for word in call.split("_")) for call in calls}
    # EC2 asks for this one as well where a fleet is made.
    wanted.add("ec2:RunInstances")
    here = {"aws_RequestedRegion": "REGION", "aws_ResourceTag_spotburst_cluster": "CLUSTER", "aws_TagKeys": []}
    assert [action for action in sorted(wanted) if not manager_may(action, **here)] == []
    given = {action for statement in policy("aws-manager.json")["Statement"] for action in actions(statement)}
    others = {action for action in given if not action.startswith(("ec2:", "s3:"))}
    assert {action for action in given if action.startswith("ec2:")} == wanted
    elsewhere = set(re.findall(r"\bservice\.call\(\s*\"(\w+)\"", text))
    asked = {"get_service_quota": "servicequotas:GetServiceQuota", "get_parameters": "ssm:GetParameters"}
    assert others == {"iam:PassRole", *(asked[call] for call in elsewhere)}, (
        "the nodes' role, and what is asked elsewhere"
    )


def test_the_queue_on_aws() -> None:
    rights: Rights = {"receive_message": ("ReceiveMessage",), "delete_message_batch": ("DeleteMessage",)}
    calls = re.findall(r"_call\(\s*\"(\w+)\"", source(queue))
    template = (FOLDER.parents[1] / "templates" / "aws-events.yaml.j2").read_text().partition("ManagerPolicy:")[2]
    assert set(re.findall(r"sqs:(\w+)", template)) == needed(calls, rights)


def test_the_manager_names_machines_of_its_cluster_and_no_others() -> None:
    members = [(f"launch-{n}", f"n{n}") for n in range(12)]
    calls = names.place_tags(members, {launch_id: f"i-{launch_id}" for launch_id, _ in members})
    calls += names.place_tags(members[:2], {launch_id: f"i-{launch_id}" for launch_id, _ in members[:2]})
    keys = sorted({key for _, given in calls for key in given})
    assert len(keys) == 4
    for cluster, allowed in (("CLUSTER", True), ("another", False)):
        assert manager_may("ec2:CreateTags", aws_ResourceTag_spotburst_cluster=cluster, aws_TagKeys=keys) is allowed
    owner = {"aws_ResourceTag_spotburst_cluster": "CLUSTER", "aws_TagKeys": [tags.CLUSTER]}
    assert not manager_may("ec2:CreateTags", **owner), "nor takes another's"
