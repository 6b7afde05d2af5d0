"""``spotburst render list | show | all | install``: every generated file, written whole, and never over what somebody else wrote."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugin import place_files
from slurm_plugin.errors import ConfigError
from slurm_plugin.place_files import Wanted, write_all
from tests.unit.cli.conftest import Said, Site

Spotburst = Callable[..., Said]
VERSION = ("--slurm-version", "24.11.5")
CLOUDS = """\
cluster: demo
slurm: {{conf: {folder}/slurm.conf}}
checkpoints: {{uri: "s3://bucket/runs"}}
providers:
  ec2: {{type: aws, region: eu-west-1, image: ami-1, subnets: {{eu-west-1a: subnet-1}}}}
  gce: {{type: gcp, project: p, region: europe-west4, image: i, subnetwork: s}}
nodesets:
  - name: spot
    nodes: spot-[1-3]
    cpus: 1
    memory_mb: 500
    offerings: [{{provider: ec2, instance_type: m7i.large, zone: any}}, {{provider: gce, instance_type: n2-standard-2, zone: any}}]
partitions: [{{name: spot, nodesets: [spot]}}]
"""


@pytest.fixture
def clouds(site: Site) -> Site:
    (site.folder / "burst.yaml").write_text(CLOUDS.format(folder=site.folder))
    (site.folder / "slurm.conf").write_text("ClusterName=demo\n")
    return site


def test_what_is_listed_is_shown_and_written(clouds: Site, spotburst: Spotburst) -> None:
    listed = json.loads(spotburst("render", "list", "--json", *VERSION).out)
    names = [one["name"] for one in listed]
    assert {
        "slurm",
        "gres",
        "cgroup",
        "manager-service",
        "agent-service",
        "image/ec2.yaml",
        "boot/ec2-spot.yaml",
    } <= set(names)
    assert {"events/ec2.yaml", "policies/ec2-manager.json", "image/gce.yaml", "boot/gce-spot.sh"} <= set(names)
    places = {one["name"]: one["place"] for one in listed}
    assert places["slurm"] == f"{clouds.folder}/spotburst.conf"
    said = spotburst("render", "show", "policies/ec2-manager.json", *VERSION)
    assert '"aws:RequestedRegion": "eu-west-1"' in said.out
    assert "arn:aws:s3:::bucket" in said.out
    wrong = spotburst("render", "show", "nonsense", *VERSION)
    assert (wrong.code, "there is none of that name; there are: slurm, gres" in wrong.err) == (2, True)

    folder = clouds.folder / "out"
    old = os.umask(0o077)
    try:
        first = spotburst("render", "all", str(folder), *VERSION)
    finally:
        os.umask(old)
    assert (first.code, first.out.count("new: ")) == (0, len(names))
    written = {path for path in folder.rglob("*") if path.is_file() and path.name != place_files.RECORD}
    assert len(written) == len(names)
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o644}
    again = spotburst("render", "all", str(folder), *VERSION)
    assert (again.code, again.out.count("as it was: ")) == (0, len(names))
    assert spotburst("render", "all", str(folder), "--diff", *VERSION).code == 0


def test_differences_to_a_folder_and_to_what_is_installed(clouds: Site, spotburst: Spotburst) -> None:
    installed = spotburst("render", "install", "slurm", *VERSION)
    assert (installed.code, installed.out) == (0, f"new: {clouds.folder}/spotburst.conf\n")
    assert spotburst("render", "all", "--diff", *VERSION).out == ""
    burst = clouds.folder / "burst.yaml"
    burst.write_text(burst.read_text().replace("memory_mb: 500", "memory_mb: 700"))
    said = spotburst("render", "all", "--diff", *VERSION)
    assert said.code == 1
    assert "\n-NodeName=spot-[1-3] CPUs=1 RealMemory=500 " in said.out
    assert "\n+NodeName=spot-[1-3] CPUs=1 RealMemory=700 " in said.out
    assert spotburst("render", "install", "slurm", *VERSION).out == f"changed: {clouds.folder}/spotburst.conf\n"
    assert spotburst("render", "all", "--diff", *VERSION).code == 0
    assert spotburst("render", "all", *VERSION).code == 2, "neither a folder nor --diff"
    assert "for a cloud, not for a place" in spotburst("render", "install", "image/ec2.yaml", *VERSION).err


def test_what_others_wrote_is_left(clouds: Site, spotburst: Spotburst) -> None:
    theirs = clouds.folder / "cgroup.conf"
    theirs.write_text("ConstrainDevices=yes\n")
    said = spotburst("render", "install", "cgroup", "gres", *VERSION)
    assert said.code == 2
    assert f"{theirs}: not written by spotburst, so left as it is; --force writes over it" in said.err
    assert theirs.read_text() == "ConstrainDevices=yes\n"
    assert (clouds.folder / "spotburst-gres.conf").exists(), "the others are written"
    assert spotburst("render", "install", "cgroup", "--force", *VERSION).code == 0
    assert "Made by spotburst" in theirs.read_text()

    folder = clouds.folder / "out"
    assert spotburst("render", "all", str(folder), *VERSION).code == 0
    policy = folder / "policies/ec2-node.json"
    burst = clouds.folder / "burst.yaml"
    burst.write_text(burst.read_text().replace("s3://bucket/", "s3://other/"))
    assert spotburst("render", "all", str(folder), *VERSION).code == 0, (
        "JSON has no comment, and is known by its digest"
    )
    assert "other" in policy.read_text()
    policy.write_text(policy.read_text().replace("other", "edited"))
    burst.write_text(burst.read_text().replace("s3://other/", "s3://third/"))
    said = spotburst("render", "all", str(folder), *VERSION)
    assert (said.code, "policies/ec2-node.json: not written by spotburst" in said.err) == (2, True)
    assert "edited" in policy.read_text()


def test_a_link_is_not_written_over(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("# Made by spotburst\n")
    link = tmp_path / "link"
    link.symlink_to(kept)
    assert write_all([Wanted(link, "new\n")]).foreign == [link]
    assert link.is_symlink()
    assert kept.read_text() == "# Made by spotburst\n"


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("# Made by spotburst\nold\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="can't be written: No space left"):
        write_all([Wanted(path, "# Made by spotburst\nnew\n")])
    assert path.read_text() == "# Made by spotburst\nold\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_recipe_takes_no_secret_and_no_more_than_the_cloud_takes(clouds: Site, spotburst: Spotburst) -> None:
    text = spotburst("render", "image", "ec2", "--munge-key-command", "fetch 'the key'").out
    assert text.startswith("#cloud-config\n# Made by spotburst")
    driver = clouds.folder / "driver"
    driver.write_text("#!/bin/sh\n" + os.urandom(20000).hex())
    said = spotburst("render", "image", "ec2", "--driver", str(driver))
    assert (said.code, "its cloud takes 16384" in said.err) == (2, True)
    (clouds.folder / "slurm.conf").chmod(0o600)
    said = spotburst("render", "image", "ec2")
    assert (said.code, "it may hold a secret" in said.err) == (2, True)
    shown = spotburst("render", "show", "image/ec2.yaml", *VERSION)
    assert (shown.code, "image/… are without it" in shown.err) == (0, True)
    said = spotburst("render", "all", str(clouds.folder / "out"), *VERSION)
    assert (said.code, said.err.count("image/… are without it")) == (0, 1)
    (clouds.folder / "slurm.conf").chmod(0o644)
    # An image that can't be made stands in nothing else's way.
    (clouds.folder / "gres.conf").write_text(os.urandom(20000).hex())
    assert "its cloud takes 16384" in spotburst("render", "show", "image/ec2.yaml", *VERSION).err
    shown = spotburst("render", "show", "slurm", *VERSION)
    assert (shown.code, shown.err) == (0, "")
    assert "there are: ec2, gce" in spotburst("render", "image", "other").err
