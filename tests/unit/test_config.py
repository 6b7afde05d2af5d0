"""burst.yaml: what is wrong is told with file, key, what stands there and what is allowed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.cloud.provider import Market
from slurm_plugin.config import Config, find_config, load_config, parse_duration
from slurm_plugin.errors import ConfigError

GOOD: dict[str, Any] = {
    "cluster": "demo",
    "state_dir": "/var/lib/spotburst",
    "slurm": {"client": "cli", "conf": "/etc/slurm/slurm.conf"},
    "checkpoints": {"uri": "s3://bucket/prefix/", "interval": "10m", "keep": 5},
    "manager": {"interval": "2s", "orphan_grace": 120},
    "recovery": {"max_attempts": 8},
    "power": {"suspend_time": "5m"},
    "providers": {
        "here": {"type": "local", "boot_time": "2s"},
        "ec2": {"type": "aws", "region": "eu-west-1", "image": "ami-1", "subnets": {"eu-west-1a": "subnet-1"}},
        "gce": {"type": "gcp", "project": "p", "region": "r", "image": "i", "subnetwork": "s"},
        "az": {
            "type": "azure",
            "subscription": "s",
            "resource_group": "g",
            "region": "r",
            "image": "i",
            "subnet": "n",
            "ssh_public_key": "k",
        },
    },
    "nodesets": [
        {
            "name": "spot",
            "nodes": "spot-[1-4]",
            "cpus": 4,
            "memory_mb": 1000,
            "gpus": {"type": "t4", "count": 2, "files": ["/dev/nvidia0", "/dev/nvidia1"]},
            "offerings": [
                {"provider": "ec2", "instance_type": "g4dn.xlarge", "zone": "eu-west-1a"},
                {"provider": "here", "instance_type": "small", "market": "on-demand"},
            ],
        }
    ],
    "partitions": [{"name": "spot", "nodesets": ["spot"], "grace_time": "30s", "default": True}],
}


def written(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "burst.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return path


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    change(data)
    return data


def faults(tmp_path: Path, data: Any) -> str:
    path = written(tmp_path, data)
    with pytest.raises(ConfigError) as wrong:
        load_config(path)
    text = str(wrong.value)
    assert all(line.startswith(f"{path}: ") for line in text.splitlines()), text
    return text


def test_a_good_one(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, GOOD))
    assert config.checkpoints.uri == "s3://bucket/prefix"
    assert (config.checkpoints.interval, config.power.suspend_time, config.manager.orphan_grace) == (
        600.0,
        300.0,
        120.0,
    )
    nodeset = config.nodeset_of("spot-3")
    assert nodeset is not None
    assert [o.id for o in config.offerings_of(nodeset)] == [
        "ec2/eu-west-1/eu-west-1a/g4dn.xlarge/spot",
        "here/local/default/small/on-demand",
    ]
    assert config.offerings_of(nodeset)[0].market is Market.SPOT
    assert config.nodeset_of("other-1") is None


def test_it_never_changes(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, GOOD))
    with pytest.raises(ValueError, match="frozen"):
        config.cluster = "other"  # type: ignore[misc]


LEVELS: list[tuple[str, Callable[[dict[str, Any]], dict[str, Any]], str]] = [
    ("colour", lambda d: d, "checkpoints, cluster, manager"),
    ("slurm.colour", lambda d: d["slurm"], "bin_dir, client, conf"),
    ("checkpoints.colour", lambda d: d["checkpoints"], "endpoint_url, interval, keep, keep_ended, uri"),
    ("manager.colour", lambda d: d["manager"], "interval"),
    ("recovery.colour", lambda d: d["recovery"], "barren_attempts, max_attempts"),
    ("power.colour", lambda d: d["power"], "resume_timeout, suspend_time"),
    ("providers.here.local.colour", lambda d: d["providers"]["here"], "boot_time, bridge"),
    ("providers.ec2.aws.colour", lambda d: d["providers"]["ec2"], "endpoint_url, events_queue, image"),
    ("providers.gce.gcp.colour", lambda d: d["providers"]["gce"], "endpoint_url, image, labels"),
    ("providers.az.azure.colour", lambda d: d["providers"]["az"], "resource_group"),
    ("nodesets.0.colour", lambda d: d["nodesets"][0], "cpus, features, gpus"),
    ("nodesets.0.gpus.colour", lambda d: d["nodesets"][0]["gpus"], "count, files, type"),
    (
        "nodesets.0.offerings.1.colour",
        lambda d: d["nodesets"][0]["offerings"][1],
        "instance_type, market, provider, zone",
    ),
    ("partitions.0.colour", lambda d: d["partitions"][0], "default, grace_time"),
]


@pytest.mark.parametrize(("key", "level", "allowed"), LEVELS, ids=[k for k, _, _ in LEVELS])
def test_an_unknown_key_at_every_level(
    tmp_path: Path, key: str, level: Callable[[dict[str, Any]], dict[str, Any]], allowed: str
) -> None:
    text = faults(tmp_path, changed(lambda d: level(d).update(colour="red")))
    assert f": {key}: unknown key; allowed here: " in text
    assert allowed in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    "unit", ["30x", "ten", "10 minutes", "-5s", "1h30m", "", "5ms", -1, [5], "nan", "inf", float("nan"), float("inf")]
)
@pytest.mark.parametrize("place", [("checkpoints", "interval"), ("manager", "interval"), ("power", "suspend_time")])
def test_a_wrong_duration(tmp_path: Path, place: tuple[str, str], unit: Any) -> None:
    text = faults(tmp_path, changed(lambda d: d[place[0]].update({place[1]: unit})))
    assert f": {'.'.join(place)}: " in text


@pytest.mark.parametrize("none", [0, "0s"])
@pytest.mark.parametrize("place", [("checkpoints", "interval"), ("manager", "interval"), ("manager", "busy_interval")])
def test_what_is_done_again_and_again_needs_a_pause(tmp_path: Path, place: tuple[str, str], none: Any) -> None:
    text = faults(tmp_path, changed(lambda d: d[place[0]].update({place[1]: none})))
    assert f": {'.'.join(place)}: " in text
    assert "greater than 0" in text


@pytest.mark.parametrize(("given", "seconds"), [("auto", 0.0), ("15m", 900.0), ("6h", 21600.0)])
def test_an_interval_is_auto_or_fixed(tmp_path: Path, given: str, seconds: float) -> None:
    path = written(tmp_path, changed(lambda d: d["checkpoints"].update(interval=given)))
    assert load_config(path).checkpoints.interval == seconds


def test_an_interval_is_no_longer_than_six_hours(tmp_path: Path) -> None:
    text = faults(tmp_path, changed(lambda d: d["checkpoints"].update(interval="7h")))
    assert ": checkpoints.interval: " in text
    assert "21600" in text


@pytest.mark.parametrize("uri", ["hf://datasets/p", "sftp://host/p", "memory://p", "/shared/dir", "s3:/bucket", ""])
def test_a_store_that_no_job_could_open(tmp_path: Path, uri: str) -> None:
    text = faults(tmp_path, changed(lambda d: d["checkpoints"].update(uri=uri)))
    assert ": checkpoints.uri: " in text
    assert "file:///shared/" in text and "s3://bucket/prefix" in text


@pytest.mark.parametrize("uri", ["gs://bucket/p", "az://container/p", "abfss://c@account.dfs.core.windows.net/p"])
def test_stores_of_every_cloud(tmp_path: Path, uri: str) -> None:
    path = written(tmp_path, changed(lambda d: d["checkpoints"].update(uri=uri)))
    assert load_config(path).checkpoints.uri == uri


def test_a_wrong_unit_says_which_there_are(tmp_path: Path) -> None:
    text = faults(tmp_path, changed(lambda d: d["partitions"][0].update(grace_time="30x")))
    assert "partitions.0.grace_time: '30x' is not a duration: write a number with s, m, h or d" in text


@given(st.floats(0, 10_000, allow_nan=False), st.sampled_from("smhd"))
def test_durations(number: float, unit: str) -> None:
    seconds = parse_duration(f"{number:.3f}{unit}")
    assert seconds == pytest.approx(round(number, 3) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit], abs=1e-6)


def test_a_duration_has_a_bound() -> None:
    with pytest.raises(ValueError, match="at most 10000d"):
        parse_duration("10001d")


WRONG: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    (
        "unknown provider",
        lambda d: d["nodesets"][0]["offerings"][0].update(provider="moon"),
        "provider 'moon' is not defined under providers; defined: az, ec2, gce, here",
    ),
    (
        "unknown nodeset",
        lambda d: d["partitions"][0].update(nodesets=["moon"]),
        "partitions.spot.nodesets: 'moon' is not a nodeset; defined: spot",
    ),
    ("unknown provider type", lambda d: d["providers"]["here"].update(type="moon"), "'local', 'aws', 'gcp', 'azure'"),
    ("provider without type", lambda d: d["providers"]["here"].pop("type"), "providers.here"),
    (
        "nodeset twice",
        lambda d: d["nodesets"].append({**d["nodesets"][0], "nodes": "other-1"}),
        "nodesets: two have the same name",
    ),
    (
        "node twice",
        lambda d: d["nodesets"].append({**d["nodesets"][0], "name": "b", "nodes": "spot-[4-5]"}),
        "node spot-4 is in both 'spot' and 'b'",
    ),
    ("no cluster", lambda d: d.pop("cluster"), "cluster: missing, and has no default"),
    ("no uri", lambda d: d["checkpoints"].pop("uri"), "checkpoints.uri: missing"),
    (
        "uri without scheme",
        lambda d: d["checkpoints"].update(uri="/shared"),
        "has no known scheme: use file:///shared/dir",
    ),
    ("gpus without files", lambda d: d["nodesets"][0]["gpus"].update(files=[]), "count is 2 but files names 0"),
    ("bad hostlist", lambda d: d["nodesets"][0].update(nodes="spot-[1-"), "not a Slurm hostlist"),
    ("no offerings", lambda d: d["nodesets"][0].update(offerings=[]), "nodesets.0.offerings"),
    (
        "unknown market",
        lambda d: d["nodesets"][0]["offerings"][0].update(market="flea"),
        "'spot', 'on-demand' or 'reservation'",
    ),
    ("no partitions", lambda d: d.update(partitions=[]), "partitions"),
    ("keep nothing", lambda d: d["checkpoints"].update(keep=0), "checkpoints.keep"),
    ("cluster with a slash", lambda d: d.update(cluster="a/b"), "cluster"),
    ("cluster empty", lambda d: d.update(cluster=""), "cluster"),
    ("cpus as words", lambda d: d["nodesets"][0].update(cpus="four"), "nodesets.0.cpus"),
    ("no nodes", lambda d: d["nodesets"][0].update(nodes=""), "nodesets.0.nodes"),
    (
        "partition twice",
        lambda d: d["partitions"].append(dict(d["partitions"][0], default=False)),
        "partitions: two have the same name",
    ),
    (
        "two default partitions",
        lambda d: d["partitions"].append(dict(d["partitions"][0], name="b")),
        "partitions: more than one is the default",
    ),
    ("relative state_dir", lambda d: d.update(state_dir="state"), "state_dir"),
]


@pytest.mark.parametrize(("change", "words"), [(c, w) for _, c, w in WRONG], ids=[n for n, _, _ in WRONG])
def test_what_is_wrong_is_told(tmp_path: Path, change: Callable[[dict[str, Any]], object], words: str) -> None:
    assert words in faults(tmp_path, changed(change))


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    def break_three(data: dict[str, Any]) -> None:
        data["colour"] = "red"
        data["checkpoints"]["keep"] = 0
        data["nodesets"][0]["gpus"]["colour"] = "red"

    assert len(faults(tmp_path, changed(break_three)).splitlines()) == 3


@pytest.mark.parametrize(
    "text",
    ["", "[]", "- a", "cluster: [", "\tx", "just words", "a: &a [*a]", "!!python/object/apply:os.system ['true']"],
)
def test_what_is_no_mapping_or_no_yaml(tmp_path: Path, text: str) -> None:
    faults(tmp_path, text)


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "burst.yaml").write_bytes(b"cluster: \xff\n")
    with pytest.raises(ConfigError, match=r"burst\.yaml: is not YAML"):
        load_config(tmp_path / "burst.yaml")


def test_a_folder_or_nothing(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="can't be read"):
            load_config(path)


def test_a_key_written_twice_is_told(tmp_path: Path) -> None:
    text = yaml.safe_dump(GOOD) + "cluster: other\n"
    assert "cluster: written twice" in faults(tmp_path, text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(key=st.sampled_from(sorted(GOOD)), value=VALUES)
def test_anything_anywhere_is_a_config_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    path = tmp_path_factory.mktemp("c") / "burst.yaml"
    path.write_text(yaml.safe_dump({**GOOD, key: value}))
    try:
        assert isinstance(load_config(path), Config)
    except ConfigError as error:
        assert str(path) in str(error)


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    assert find_config({"SLURM_CONF": str(tmp_path / "slurm.conf")}) == path
    assert find_config({"SPOTBURST_CONFIG": "/some/where", "SLURM_CONF": str(tmp_path / "slurm.conf")}) == Path(
        "/some/where"
    )
    with pytest.raises(
        ConfigError, match=r"no burst\.yaml found: looked at /nowhere/burst\.yaml, /etc/slurm/burst\.yaml"
    ):
        find_config({"SLURM_CONF": "/nowhere/slurm.conf"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("date: 2026-02-31\n", "day is out of range for month, line 1, column 7"),
        ("cluster: 0x_\n", "0x_: invalid literal"),
        ("? [a]\n: 1\n", "found unhashable key"),
        ("a: !!bool maybe\n", "maybe: 'maybe', line 1"),
    ],
)
def test_what_yaml_itself_can_not_read_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert said in faults(tmp_path, text)
