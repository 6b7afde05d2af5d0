"""``check`` compares nodes with instance types as the cloud describes them; ``offerings`` shows what the manager has learned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from slurm_plugin.cloud.sizes import MachineSize
from slurm_plugin.ledger import Ledger
from tests.fixtures.gcp_catalog import REGION, GcpCatalog, gcp_catalog, machine_type
from tests.unit.cli.conftest import Said, Site

Spotburst = Callable[..., Said]
OFFERING = f"gcp/{REGION}/{REGION}-a/g2-standard-8/spot"


@pytest.fixture
def cloud(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpCatalog]:
    monkeypatch.setattr("slurm_plugin.cloud.gcp.client.READ_TIMEOUT", 120.0)  # a busy machine is no cloud that hangs
    with gcp_catalog() as served:
        served.types = {f"{REGION}-a": [machine_type("g2-standard-8", 8, 32768, "nvidia-l4", 1)]}
        provider = f"{{type: gcp, project: p, region: {REGION}, endpoint_url: '{served.url}', image: i, subnetwork: s}}"
        text = (site.folder / "burst.yaml").read_text()
        text = text.replace("{local: {type: local}}", f"{{gcp: {provider}}}").replace(
            "provider: local", "provider: gcp"
        )
        text = text.replace("instance_type: small", f"instance_type: g2-standard-8, zone: {REGION}-a")
        (site.folder / "burst.yaml").write_text(text)
        yield served


def node(site: Site, cpus: int) -> None:
    burst = site.folder / "burst.yaml"
    burst.write_text(burst.read_text().replace("cpus: 1,", f"cpus: {cpus},"))


def checked(spotburst: Spotburst) -> tuple[str, str]:
    """The worst state, and all that was said."""
    found = [f for f in json.loads(spotburst("check", "--json").out) if f["what"] == "instance types"]
    states = {f["state"] for f in found}
    worst = next(state for state in ("fault", "unknown", "ok") if state in states)
    return worst, "; ".join(f["detail"] for f in found)


def test_check_asks_the_cloud_and_names_both_figures(spotburst: Spotburst, site: Site, cloud: GcpCatalog) -> None:
    assert checked(spotburst) == ("ok", "as large as their nodes")
    node(site, 16)
    state, detail = checked(spotburst)
    assert state == "fault"
    assert f"nodesets.spot: {OFFERING}: its machine is smaller than the node: 8 CPUs where cpus is 16" in detail


def test_not_knowing_is_said_and_is_no_fault(spotburst: Spotburst, site: Site, cloud: GcpCatalog) -> None:
    node(site, 16)
    cloud.unreachable = True
    state, detail = checked(spotburst)
    assert state == "unknown"
    assert "gcp: " in detail
    assert f"not known: {OFFERING}" in detail


def test_what_the_manager_learned_is_shown(spotburst: Spotburst, site: Site, cloud: GcpCatalog) -> None:
    node(site, 16)
    cloud.unreachable = True
    (site.folder / "state").mkdir()
    ledger = Ledger.open(site.folder / "state" / "ledger.db")
    ledger.note_sizes({OFFERING: MachineSize(8, 32768, 1)})
    ledger.close()
    assert checked(spotburst)[0] == "fault"
    (row,) = json.loads(spotburst("offerings", "--json").out)
    assert (row["state"], row["place"], row["machine"]) == (
        "too small",
        None,
        {"cpus": 8, "memory_mb": 32768, "gpus": 1},
    )
    assert "8 CPUs where cpus is 16" in row["why"]
    assert "too small" in spotburst("offerings").out


def test_clouds_are_not_asked_where_that_is_not_wanted(spotburst: Spotburst, site: Site, cloud: GcpCatalog) -> None:
    with_clouds, without = (
        {f["what"] for f in json.loads(spotburst("check", "--json", option).out)}
        for option in ("--clouds", "--no-clouds")
    )
    assert with_clouds - without == {"instance types", "images", "quotas"}
    asked = sum(cloud.calls.values())
    spotburst("check", "--no-clouds")
    assert sum(cloud.calls.values()) == asked
