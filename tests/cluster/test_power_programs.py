"""slurmctld itself calls what slurm.conf names; the manager finds the requests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.requests import Request, read_requests
from slurm_plugin.slurm.cli import CliClient
from tests.fixtures.private_slurm import VERSIONS, PrivateSlurm, private_slurm, wait_for
from tests.fixtures.unmet import unmet

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent
PORTS = {"22.05": 21021, "24.11": 21031}


def make(version: str, folder: Path) -> PrivateSlurm:
    private = private_slurm(version, folder, PORTS[version])
    if isinstance(private, str):
        unmet(private)
    return private


@pytest.fixture
def slurm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrivateSlurm]:
    """This machine's Slurm with the installed programs, and a burst.yaml beside its slurm.conf. Its parameter: ResumeTimeout."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    (folder / "burst.yaml").write_text(f"state_dir: {tmp_path}/state\n")
    private = make("22.05", folder)
    private.programs = (f"{BIN}/spotburst-resume", f"{BIN}/spotburst-suspend", f"{BIN}/spotburst-resume-fail")
    private.resume_timeout = request.param
    private.start()
    try:
        yield private
    finally:
        private.stop()


@pytest.mark.parametrize("slurm", [3], indirect=True)
def test_slurmctld_leaves_requests(slurm: PrivateSlurm, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    job_id = slurm.submit("--partition=spot", "--nodes=2")
    wait_for(lambda: "resume" in {r.kind for r in read_requests(state)}, "the resume request")
    resume = next(r for r in read_requests(state) if r.kind == "resume")
    assert resume.nodes == ("spot-1", "spot-2")
    assert resume.jobs is not None
    assert [(j.job_id, j.nodes, j.resume) for j in resume.jobs] == [(int(job_id), resume.nodes, resume.nodes)]
    assert resume.note == ""
    wait_for(lambda: "resume_fail" in {r.kind for r in read_requests(state)}, "the nodes to miss ResumeTimeout")
    failed = next(r for r in read_requests(state) if r.kind == "resume_fail")
    assert set(failed.nodes) <= {"spot-1", "spot-2"}
    slurm.run("scancel", job_id)  # which would take the node again
    CliClient(slurm.bin_dir, slurm.conf).update_nodes(["spot-1"], state="resume")
    CliClient(slurm.bin_dir, slurm.conf).update_nodes(["spot-1"], state="power_up")
    CliClient(slurm.bin_dir, slurm.conf).update_nodes(["spot-1"], state="power_down_force")
    wait_for(lambda: "suspend" in {r.kind for r in read_requests(state)}, "the suspend request")


@pytest.mark.parametrize("slurm", [600], indirect=True)
def test_without_a_state_directory_the_nodes_go_down_and_say_why(slurm: PrivateSlurm, tmp_path: Path) -> None:
    client = CliClient(slurm.bin_dir, slurm.conf)
    job_id = slurm.submit("--partition=spot")
    wait_for(lambda: any(n.has("DOWN") for n in client.nodes()), "the node to go down")
    down = next(n for n in client.nodes() if n.has("DOWN"))
    assert down.reason.startswith("spotburst: ")
    assert f"{tmp_path}/state is not there" in down.reason
    job = next(j for j in client.jobs() if j.name_id == job_id)
    assert job.restart_count >= 1


@pytest.mark.parametrize("version", VERSIONS)
def test_the_resume_file_of_each_version_is_understood(version: str, tmp_path: Path) -> None:
    folder = tmp_path / "slurm"
    folder.mkdir()
    program = folder / "resume"
    program.write_text(
        f'#!/bin/sh\n/bin/cp "$SLURM_RESUME_FILE" {folder}/part\n/bin/mv {folder}/part {folder}/resume.json\n'
    )
    program.chmod(0o755)
    private = make(version, folder)
    private.programs = (str(program), "/bin/true", "/bin/true")
    private.start()
    try:
        job_id = private.submit("--partition=spot", "--nodes=3")
        wait_for((folder / "resume.json").exists, "slurmctld to run ResumeProgram")
    finally:
        private.stop()
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "burst.yaml").write_text(f"state_dir: {state}\n")
    environment = {"SLURM_CONF": f"{tmp_path}/slurm.conf", "SLURM_RESUME_FILE": f"{folder}/resume.json"}
    subprocess.run([BIN / "spotburst-resume", "spot-[1-3]"], env=environment, check=True)
    (request,) = read_requests(state)
    assert isinstance(request, Request)
    nodes = ("spot-1", "spot-2", "spot-3")
    assert request.jobs is not None
    assert [(j.job_id, j.nodes, j.resume) for j in request.jobs] == [(int(job_id), nodes, nodes)]
    assert [p.name for p in state.iterdir()] == ["requests"]
