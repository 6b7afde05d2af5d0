"""Images and quotas of a project of Google's, by Google's own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import compute_v1

from slurm_plugin.checks.finding import State
from tests.cloud.checking import assert_not_permitted, assert_well, found, of, states
from tests.fixtures.gcp_catalog import REGION, GcpCatalog, gcp_catalog, machine_type

FAMILY = "projects/p/global/images/family/node"
L4 = {"instance_type": "g2-standard-8"}
N2 = {"instance_type": "n2-standard-8"}
ON_DEMAND = {"market": "on-demand"}


@pytest.fixture
def cloud() -> Iterator[GcpCatalog]:
    with gcp_catalog() as served:
        types = [machine_type("g2-standard-8", 8, 32768, "nvidia-l4", 1), machine_type("n2-standard-8", 8, 32768)]
        types.append(machine_type("a9-new-8", 8, 32768, "nvidia-new-200gb", 8))
        for one in types:
            one.architecture = "X86_64"
        served.types = {f"{REGION}-a": types}
        served.images = {"p/family/node": image(), "p/node-7": image()}
        served.quotas = {
            "CPUS": (24.0, 0.0),
            "N2_CPUS": (64.0, 8.0),
            "PREEMPTIBLE_CPUS": (0.0, 0.0),
            "NVIDIA_L4_GPUS": (8.0, 1.0),
            "PREEMPTIBLE_NVIDIA_L4_GPUS": (16.0, 2.0),
        }
        yield served


def image(status: str = "READY", architecture: str = "X86_64", **deprecated: str) -> compute_v1.Image:
    withdrawn = compute_v1.DeprecationStatus(**deprecated)
    return compute_v1.Image(name="node-7", status=status, architecture=architecture, deprecated=withdrawn)


def provider(cloud: GcpCatalog, image: str = FAMILY) -> dict[str, Any]:
    base = {"type": "gcp", "project": "p", "region": REGION, "endpoint_url": cloud.url, "subnetwork": "s"}
    return {**base, "image": image}


def test_an_image_that_is_there_and_quotas_that_are_enough(cloud: GcpCatalog, tmp_path: Path) -> None:
    findings = found(tmp_path, provider(cloud), L4, {**L4, **ON_DEMAND}, N2)
    assert_well(findings)
    assert f"{FAMILY} (node-7) x86_64 is there" in of(findings, "images")[1]
    assert states(found(tmp_path, provider(cloud, "projects/p/global/images/node-7"), L4), "images") == [State.OK]


@pytest.mark.parametrize(
    ("named", "shown", "detail", "fix"),
    [
        ("projects/p/global/images/gone", None, "names no image in project p", "docs/images.md"),
        ("global/images/family/gone", None, "names no family with an image that is still in use", "docs/images.md"),
        ("node", None, "is no image's path", "projects/PROJECT/global/images/NAME"),
        (FAMILY, image("PENDING"), "is in status PENDING", "wait until it is ready"),
        (FAMILY, image("FAILED"), "is in status FAILED", "docs/images.md"),
        (
            FAMILY,
            image(
                state="OBSOLETE", replacement="https://www.googleapis.com/compute/v1/projects/p/global/images/node-8"
            ),
            "is OBSOLETE",
            "projects/p/global/images/node-8",
        ),
        (FAMILY, image(architecture="ARM64"), "instance_type g2-standard-8 runs x86_64", "architecture x86_64"),
    ],
)
def test_images_that_no_machine_can_boot_from(
    cloud: GcpCatalog, tmp_path: Path, named: str, shown: compute_v1.Image | None, detail: str, fix: str
) -> None:
    if shown is not None:
        cloud.images["p/family/node"] = shown
    state, told, todo = of(found(tmp_path, provider(cloud, named), L4), "images")
    assert state is State.FAULT
    assert detail in told
    assert fix in todo


def test_an_image_that_is_deprecated_is_a_note(cloud: GcpCatalog, tmp_path: Path) -> None:
    cloud.images["p/node-7"] = image(state="DEPRECATED")
    named = provider(cloud, "projects/p/global/images/node-7")
    assert states(found(tmp_path, named, L4), "images") == [State.OK, State.NOTE]


def test_gpus_that_spot_machines_may_have(cloud: GcpCatalog, tmp_path: Path) -> None:
    cloud.quotas["PREEMPTIBLE_NVIDIA_L4_GPUS"] = (3.0, 2.0)
    (ok, note) = [one for one in found(tmp_path, provider(cloud), L4) if one.what == "quotas"]
    assert (ok.state, note.state) == (State.OK, State.NOTE)
    assert (
        f"PREEMPTIBLE_NVIDIA_L4_GPUS in {REGION} is 3 GPUs (2 in use now), and a machine takes 1: 3 of 4 nodes fit"
        in note.detail
    )
    assert note.fix.startswith(f"ask for more of PREEMPTIBLE_NVIDIA_L4_GPUS in {REGION}")
    cloud.quotas["PREEMPTIBLE_NVIDIA_L4_GPUS"] = (0.0, 0.0)
    assert states(found(tmp_path, provider(cloud), L4), "quotas") == [State.OK], (
        "the quota of other machines counts them"
    )
    cloud.quotas["NVIDIA_L4_GPUS"] = (0.0, 0.0)
    state, detail, fix = of(found(tmp_path, provider(cloud), L4), "quotas")
    assert (state, "none can ever start" in detail, "PREEMPTIBLE_NVIDIA_L4_GPUS" in fix) == (State.FAULT, True, True)


def test_cpus(cloud: GcpCatalog, tmp_path: Path) -> None:
    cloud.quotas["N2_CPUS"] = (4.0, 0.0)
    for offering in (N2, {**N2, **ON_DEMAND}):
        state, detail, _ = of(found(tmp_path, provider(cloud), offering), "quotas")
        assert (state, "N2_CPUS" in detail) == (State.FAULT, True)
    cloud.quotas["PREEMPTIBLE_CPUS"] = (64.0, 0.0)
    assert states(found(tmp_path, provider(cloud), N2), "quotas") == [State.OK]


@pytest.mark.parametrize(
    ("denied", "what", "permission", "named"),
    [
        ("images", "images", "compute.images.getFromFamily", FAMILY),
        ("images", "images", "compute.images.get", "projects/p/global/images/node-7"),
        ("regions", "quotas", "compute.regions.get", FAMILY),
    ],
)
def test_what_may_not_be_asked_is_named(
    cloud: GcpCatalog, tmp_path: Path, denied: str, what: str, permission: str, named: str
) -> None:
    cloud.denied = {denied}
    assert_not_permitted(of(found(tmp_path, provider(cloud, named), {**L4, "zone": f"{REGION}-a"}), what), permission)


def test_gpus_that_no_quota_of_the_region_counts_and_a_cloud_that_does_not_answer(
    cloud: GcpCatalog, tmp_path: Path
) -> None:
    state, detail, _ = of(found(tmp_path, provider(cloud), {"instance_type": "a9-new-8"}), "quotas")
    assert (state, "a9-new-8/spot is not known" in detail) == (State.UNKNOWN, True)
    cloud.unreachable = True
    findings = found(tmp_path, provider(cloud), L4)
    assert {one.state for one in findings} == {State.UNKNOWN}
    assert all(states(findings, what) == [State.UNKNOWN] for what in ("images", "quotas"))
