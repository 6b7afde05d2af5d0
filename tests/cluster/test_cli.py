"""`spotburst` beside a real Slurm: what it says of jobs and nodes as they are at that moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from job_wrapper.store import RunLog, open_store, run_path
from job_wrapper.store.io_types import Writer
from slurm_plugin.slurm.cli import CliClient
from tests.fixtures.private_slurm import VERSIONS, PrivateSlurm, private_slurm, wait_for
from tests.fixtures.unmet import unmet

pytestmark = pytest.mark.cluster

PORTS = {"22.05": 21051, "24.11": 21061}
BIN = Path(sys.executable).parent
BURST = """\
cluster: {cluster}
state_dir: {folder}/spotburst
slurm: {{conf: {folder}/slurm.conf, bin_dir: {bin_dir}}}
checkpoints: {{uri: "file://{folder}/store"}}
providers: {{local: {{type: local}}}}
nodesets:
  - {{name: spot, nodes: "spot-[1-3]", cpus: 2, memory_mb: 500, offerings: [{{provider: local, instance_type: small}}]}}
partitions: [{{name: spot, nodesets: [spot]}}]
"""


@pytest.fixture(scope="module", params=VERSIONS)
def slurm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSlurm]:
    private = private_slurm(request.param, tmp_path_factory.mktemp("slurm") / "cli", PORTS[request.param])
    if isinstance(private, str):
        unmet(private)
    private.start()
    try:
        (private.folder / "burst.yaml").write_text(
            BURST.format(cluster="cli", folder=private.folder, bin_dir=private.bin_dir)
        )
        yield private
    finally:
        private.stop()


@pytest.fixture
def spotburst(slurm: PrivateSlurm) -> Callable[..., subprocess.CompletedProcess[str]]:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SLURM_CONF": str(slurm.conf)}
        return subprocess.run(
            [BIN / "spotburst", *arguments], capture_output=True, text=True, env=environment, check=False
        )

    return call


def test_a_job_from_the_queue_to_its_end(
    slurm: PrivateSlurm, spotburst: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    job = slurm.submit("--partition=real", "--hold", "--job-name=train")
    held = spotburst("describe", job)
    assert held.returncode == 0, held.stderr
    assert f"{job} (train) of root, partition real" in held.stdout
    assert "PENDING (JobHeldUser); no attempt yet" in held.stdout
    assert "scontrol release" in held.stdout
    slurm.run("scontrol", "release", job)
    client = CliClient(slurm.bin_dir, slurm.conf)
    wait_for(lambda: any(j.running for j in client.jobs()), "the job to run")
    assert "has not reached `spotburst run` yet" in spotburst("describe", job).stdout

    log = RunLog(open_store(f"file://{slurm.folder}/store"), run_path("cli", job))
    log.claim(Writer("cli", job, 0, 0, "real-1", "n1"), body={"node": "real-1"})
    told = json.loads(spotburst("describe", job, "--json").stdout)
    assert (told["states"], told["nodes"], told["user"]) == (["RUNNING"], ["real-1"], "root")
    assert json.loads(spotburst("attempts", job, "--json").stdout)[0]["state"] == "RUNNING"

    slurm.run("scancel", job)
    wait_for(
        lambda: any(j.name_id == job and j.has("CANCELLED") and not j.has("COMPLETING") for j in client.jobs()),
        "the end",
    )
    assert "Slurm ended the job (CANCELLED). There is no checkpoint to go on from" in spotburst("describe", job).stdout
    assert json.loads(spotburst("attempts", job, "--json").stdout)[0]["state"] == "lost"


def test_nodes(slurm: PrivateSlurm, spotburst: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    job = slurm.submit("--partition=spot", "--nodelist=spot-2")
    client = CliClient(slurm.bin_dir, slurm.conf)
    wait_for(lambda: any(j.name_id == job and j.has("CONFIGURING") for j in client.jobs()), "the job to get its node")
    client.update_nodes(["spot-3"], state="down", reason='x=1 "y"')
    nodes = {n["node"]: n for n in json.loads(spotburst("nodes", "--json").stdout)}
    assert sorted(nodes) == ["spot-1", "spot-2", "spot-3"]
    assert nodes["spot-1"]["states"] == ["CLOUD", "IDLE", "POWERED_DOWN"]
    assert (nodes["spot-2"]["jobs"], nodes["spot-2"]["nodeset"]) == ([job], "spot")
    assert nodes["spot-3"]["reason"] == 'x=1 "y"'
    assert "waits for spot-2 to boot" in spotburst("describe", job).stdout
    slurm.run("scancel", job)


def test_check_on_each_version(slurm: PrivateSlurm, spotburst: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """What is wrong with this slurm.conf is the same to both; what can be wrong is shown in `test_broken_sites`."""
    said = spotburst("check", "--json")
    found = {f["what"]: f for f in json.loads(said.stdout)}
    assert said.returncode == 1
    faults = {what for what, f in found.items() if f["state"] == "fault"}
    # Its Slurm knows GPUs and no partition urgent of burst.yaml's kind; it empties output files, and no manager runs.
    assert faults == {"JobFileAppend", "nodes", "state_dir", "manager"}
    assert {what for what, f in found.items() if f["state"] == "unknown"} == set()
    assert "Gres=gpu:t4:2 in slurm.conf, 0 GPUs in burst.yaml" in found["nodes"]["detail"]
    assert found["clock"]["state"] == found["checkpoint store"]["state"] == "ok"


def test_render_asks_slurmctld_for_its_version(
    slurm: PrivateSlurm, spotburst: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    text = spotburst("render", "slurm").stdout
    assert ("PrivateData=cloud" in text) == (slurm.port == PORTS["22.05"])


def test_without_slurmctld_the_log_is_told_all_the_same(
    slurm: PrivateSlurm, spotburst: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    log = RunLog(open_store(f"file://{slurm.folder}/store"), run_path("cli", "4242"))
    log.claim(Writer("cli", "4242", 0, 0, "real-1", "n1"), body={"node": "real-1"})
    slurm.stop_slurmctld()
    try:
        told = spotburst("describe", "4242")
    finally:
        slurm.start_slurmctld()
    assert told.returncode == 0
    assert "attempt 1 starts on real-1" in told.stdout
    assert "not known, since Slurm can't be asked" in told.stdout
