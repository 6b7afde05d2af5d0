"""Settings of providers in burst.yaml: what is wrong is told with file, key and what is allowed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin.config import load_config
from slurm_plugin.errors import ConfigError
from slurm_plugin.manager import providers

GOOD: dict[str, Any] = {
    "cluster": "demo",
    "checkpoints": {"uri": "file:///shared"},
    "providers": {
        "ec2": {
            "type": "aws",
            "region": "eu-west-1",
            "image": "ami-1",
            "subnets": {"eu-west-1a": "subnet-1"},
            "reservations": [{"id": "cr-1", "instance_type": "p5.48xlarge", "zone": "eu-west-1a"}],
        }
    },
    "nodesets": [
        {
            "name": "spot",
            "nodes": "spot-[1-4]",
            "cpus": 4,
            "memory_mb": 1000,
            "offerings": [{"provider": "ec2", "instance_type": "g5.xlarge", "zone": "any"}],
        }
    ],
    "partitions": [{"name": "spot", "nodesets": ["spot"]}],
}


def written(tmp_path: Path, provider: dict[str, Any], offering: dict[str, Any]) -> Path:
    data = copy.deepcopy(GOOD)
    data["providers"]["ec2"] |= provider
    data["nodesets"][0]["offerings"][0] |= offering
    path = tmp_path / "burst.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.mark.parametrize(
    ("provider", "offering"),
    [
        ({}, {}),
        ({}, {"zone": "eu-west-1a"}),
        ({}, {"zone": "default"}),
        ({"image": "resolve:ssm:/my/image"}, {"instance_type": "g5.xlarge,g6.xlarge"}),
        ({}, {"instance_type": "p5.48xlarge", "zone": "eu-west-1a", "market": "reservation"}),
    ],
)
def test_good_ones_are_read(tmp_path: Path, provider: dict[str, Any], offering: dict[str, Any]) -> None:
    config = load_config(written(tmp_path, provider, offering))
    assert config.offerings_of(config.nodesets[0])[0].region == "eu-west-1"


@pytest.mark.parametrize(
    ("provider", "offering", "told"),
    [
        ({"image": "debian"}, {}, "providers.ec2.aws.image: "),
        ({"subnets": {}}, {}, "providers.ec2.aws.subnets: must have at least one entry"),
        ({"subnets": {"a": "net"}}, {}, "providers.ec2.aws.subnets.a: "),
        ({"security_groups": ["default"]}, {}, "providers.ec2.aws.security_groups.0: "),
        ({"tags": {"spotburst-node": "x"}}, {}, "keys that begin with aws: or spotburst- are taken"),
        ({"tags": {f"k{n}": "v" for n in range(31)}}, {}, "31 tags: at most 30"),
        (
            {"reservations": [{"id": "x", "instance_type": "t", "zone": "z"}]},
            {},
            "providers.ec2.aws.reservations.0.id: ",
        ),
        ({"colour": "red"}, {}, "allowed here: "),
        (
            {},
            {"zone": "eu-west-1z"},
            "zone 'eu-west-1z' has no subnet under subnets; there are: eu-west-1a; or write any",
        ),
        ({}, {"market": "reservation"}, "market reservation needs an entry under reservations"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, provider: dict[str, Any], offering: dict[str, Any], told: str) -> None:
    path = written(tmp_path, provider, offering)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert told in str(error.value)
    assert str(error.value).startswith(f"{path}: ")


def test_a_provider_whose_library_is_missing_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(written(tmp_path, {}, {}))
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(
        ConfigError, match=r"aws needs a library that is not installed here \(boto3\): pip install 'spotburst\[aws\]'"
    ):
        providers.build(config, "ec2")


def test_a_provider_that_is_not_built_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(written(tmp_path, {}, {}))
    monkeypatch.setitem(providers.MODULES, "aws", "slurm_plugin.cloud.nowhere.cloud")
    with pytest.raises(ConfigError, match=r"providers\.ec2\.type: aws is not built yet"):
        providers.build(config, "ec2")


def test_providers_are_built_without_a_call(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, {"endpoint_url": "http://127.0.0.1:9"}, {}))
    assert list(providers.build_lanes(config)) == ["ec2"]


def test_azure_keeps_a_job_in_one_zone_only_where_it_is_named_or_in_a_proximity_group(tmp_path: Path) -> None:
    provider = {
        "type": "azure",
        "subscription": "s",
        "resource_group": "g",
        "region": "westeurope",
        "image": "a:b:c:d",
        "subnet": "/subscriptions/s/subnets/n",
        "ssh_public_key": "ssh-ed25519 A",
    }
    good = copy.deepcopy(GOOD)
    good["nodesets"][0]["offerings"] = [{"provider": "az", "instance_type": "t", "zone": z} for z in ("any", "1")]

    def scattered(**more: str) -> frozenset[str]:
        good["providers"] = {"az": {**provider, **more}}
        path = tmp_path / "burst.yaml"
        path.write_text(yaml.safe_dump(good))
        return load_config(path).scattered()

    assert scattered() == {"az/westeurope/any/t/spot"}
    assert scattered(proximity_placement_group="/subscriptions/s/groups/p") == set()
