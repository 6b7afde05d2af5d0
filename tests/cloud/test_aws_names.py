"""aws: how the machines of one fleet learn which node each is."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin import render
from slurm_plugin.cloud import launch_ids, tags
from slurm_plugin.cloud.aws import names, template
from slurm_plugin.slurm.hostlist import expand
from tests.cloud.aws_example import CONFIG
from tests.fixtures.http_server import QuietHandler, serving

HOSTS = st.lists(
    st.one_of(
        st.from_regex(r"[a-z]{1,5}-[0-9]{1,4}", fullmatch=True), st.from_regex(r"r[0-9]n0[0-9]{2}", fullmatch=True)
    ),
    min_size=1,
    max_size=14,
    unique=True,
)


def load_name_node() -> Any:
    import importlib.util

    path = render.template_folder() / "name-node.py"
    spec = importlib.util.spec_from_file_location("name_node", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NAME_NODE = load_name_node()


@settings(max_examples=60)
@given(HOSTS, st.data())
def test_the_listing_and_the_node_read_the_same_names(nodes: list[str], data: st.DataObject) -> None:
    """Whatever the nodes, whichever of the batch are in the fleet, and also when some got no machine."""
    ids = launch_ids.batch(len(nodes) + 5)
    picked = sorted(data.draw(st.lists(st.sampled_from(ids), min_size=len(nodes), max_size=len(nodes), unique=True)))
    members = list(zip(picked, nodes, strict=True))
    instances = {m: f"i-{n:017x}" for n, m in enumerate(picked) if n == 0 or data.draw(st.booleans())}
    common = names.fleet_tags({tags.CLUSTER: "c"}, ids[0], "token", members)
    assert all(len(v) <= 256 for v in common.values())
    told = {i: dict(common) for i in instances.values()}
    for some, given_ in names.place_tags(members, instances):
        assert len(some) <= 1000
        for instance_id in some:
            told[instance_id] |= given_
    for launch_id, node in members:
        if launch_id in instances:
            found = told[instances[launch_id]]
            assert names.read(found) == (launch_id, node)
            assert NAME_NODE.node_of(found) == node
            if len(members) > 1:
                half = {k: v for k, v in found.items() if k not in (tags.NODE, tags.LAUNCH, f"{names.DIGIT}0")}
                assert names.read(half) is None
                assert NAME_NODE.node_of(half) is None


@settings(max_examples=40)
@given(st.lists(st.integers(0, 120), min_size=1, max_size=30, unique=True))
def test_hostlists_are_expanded_as_slurm_does(numbers: list[int]) -> None:
    from slurm_plugin.slurm.hostlist import fold

    for nodes in ([f"a-{n}" for n in numbers], [f"r{n % 3}n{n:03d}x" for n in numbers], ["plain", "other-7"]):
        text = fold(nodes)
        assert sorted(NAME_NODE.expand(text)) == sorted(expand(text))
        assert names.in_order(text) == NAME_NODE.expand(text)


def test_five_hundred_machines_are_named_in_thirty_calls() -> None:
    members = [(i, f"gpu-{n}") for n, i in enumerate(launch_ids.batch(500), 1)]
    calls = names.place_tags(members, {m: f"i-{n:017x}" for n, (m, _) in enumerate(members)})
    assert len(calls) <= 30
    assert names.fleet_tags({}, members[0][0], "t", members)[f"{names.NODES}0"] == "gpu-[1-500]"


def tag_service(tags_: dict[str, str], late: int) -> AbstractContextManager[str]:
    """A metadata service that serves tags: the last digit appears after some questions. Gives its URL."""
    left = iter(range(late))

    class Handler(QuietHandler):
        def do_PUT(self) -> None:
            self._say("token")

        def do_GET(self) -> None:
            path = self.path.removeprefix("/latest/meta-data/tags/instance").strip("/")
            if self.headers.get("X-aws-ec2-metadata-token") != "token":
                self.send_error(401)
            elif path:
                self._say(tags_[path])
            else:
                hidden = next(left, None) is not None
                self._say("\n".join(k for k in tags_ if not (hidden and k == "spotburst-digit-0")))

        def _say(self, text: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

    return serving(Handler)


def run_name_node(
    tmp_path: Path, user_data: dict[str, Any], endpoint: str, patience: str
) -> subprocess.CompletedProcess[str]:
    files = {f["path"]: f for f in user_data["write_files"]}
    for name in ("node.json", "name-node"):
        content = base64.b64decode(files[f"/usr/local/lib/spotburst/{name}"]["content"])
        # The service answers in this process, which a busy machine may let wait.
        (tmp_path / name).write_bytes(content.replace(b"timeout=5)", b"timeout=60)"))
    return subprocess.run(
        [sys.executable, str(tmp_path / "name-node"), str(tmp_path / "node.json"), str(tmp_path / "out.json")],
        env={**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint, "SPOTBURST_NAME_PATIENCE": patience},
        capture_output=True,
        text=True,
        check=False,
    )


def user_data_of(data: dict[str, Any]) -> dict[str, Any]:
    text = base64.b64decode(data["UserData"]).decode()
    assert text.startswith("#cloud-config\n")
    return dict(yaml.safe_load(text))


def test_a_node_learns_its_name_at_boot(tmp_path: Path) -> None:
    """The script that user data carries, run against a metadata service whose tags come late."""
    config = {
        "cluster": "c",
        "node": "whoever",
        "offering": "x",
        "nodeset": "spot",
        "uri": "s3://b/p",
        "interval": 60.0,
    }
    user_data = user_data_of(template.contents(CONFIG, config, "[Unit]\n", None))
    boot = next(f for f in user_data["write_files"] if f["path"].endswith("first-boot"))
    assert user_data["runcmd"] == [["/usr/local/lib/spotburst/first-boot"]]
    assert boot["content"].rstrip().endswith("systemctl restart slurmd.service")
    subprocess.run(["sh", "-n"], input=boot["content"], text=True, check=True)
    members = list(zip(launch_ids.batch(12), [f"gpu-{n}" for n in range(1, 13)], strict=True))
    found = names.fleet_tags({tags.OFFERING: "ec2/r/z/t/spot", "Name": "c spot"}, members[0][0], "t", members)
    found |= {"spotburst-digit-1": "1", "spotburst-digit-0": "1"}
    with tag_service(found, late=1) as endpoint:
        done = run_name_node(tmp_path, user_data, endpoint, "120")
    assert (done.returncode, done.stdout) == (0, "gpu-12\n"), done.stderr
    told = json.loads((tmp_path / "out.json").read_text())
    assert told == {**config, "node": "gpu-12", "offering": "ec2/r/z/t/spot"}


def test_a_node_without_a_name_starts_nothing(tmp_path: Path) -> None:
    user_data = user_data_of(template.contents(CONFIG, {"cluster": "c"}, "[Unit]\n", None))
    with tag_service({"spotburst-digits": "1"}, late=0) as endpoint:
        done = run_name_node(tmp_path, user_data, endpoint, "0")
    assert done.returncode == 1
    assert done.stderr.startswith("spotburst: this machine's node is unknown: the tags do not tell yet")
    assert not (tmp_path / "out.json").exists()


def test_an_answer_that_breaks_off_is_no_answer(tmp_path: Path) -> None:
    user_data = user_data_of(template.contents(CONFIG, {"cluster": "c"}, "[Unit]\n", None))

    def break_off() -> None:
        with listener.accept()[0] as stream:
            stream.recv(4096)
            stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 56\r\n\r\nAQAE")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        service = threading.Thread(target=break_off)
        service.start()
        done = run_name_node(tmp_path, user_data, f"http://127.0.0.1:{listener.getsockname()[1]}", "0")
        service.join()
    assert done.returncode == 1
    assert done.stderr.startswith("spotburst: this machine's node is unknown: http://127.0.0.1:")


@pytest.mark.parametrize(
    "change",
    [
        {"spotburst-nodes-0": "n[1-99999999999]"}, {"spotburst-numbers": "0-999999999"}, {"spotburst-numbers": "²"}, {"spotburst-numbers": "9-1"},
        {"spotburst-digits": "9" * 300}, {"spotburst-digits": "x"}, {"spotburst-batch": "x"}, {"spotburst-nodes-x": "n"},
    ],
)  # fmt: skip
def test_tags_that_are_not_ours_name_nothing_and_take_no_memory(change: dict[str, str]) -> None:
    members = list(zip(launch_ids.batch(2), ["n1", "n2"], strict=True))
    found = {**names.fleet_tags({}, members[0][0], "t", members), "spotburst-digit-0": "1"}
    assert names.read(found) == members[1]
    assert names.read({**found, **change}) is None
