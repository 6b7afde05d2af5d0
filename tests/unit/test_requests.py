"""From a call of ResumeProgram to the manager's list of requests, through real processes in slurmctld's environment."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.errors import ConfigError
from slurm_plugin.requests import read_requests, remove

BIN = Path(sys.executable).parent


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with slurm.conf, burst.yaml and a state directory."""
    (tmp_path / "state").mkdir()
    (tmp_path / "burst.yaml").write_text(f"cluster: c\nstate_dir: {tmp_path}/state\n")
    return tmp_path


def call(site: Path, program: str, *arguments: str, closed: bool = True, **environment: str) -> None:
    """As slurmctld does: SLURM_CONF, hardly anything else, and on 22.05 no open files. Returns when all of it has ended."""
    command = [str(BIN / f"spotburst-{program}"), *arguments]
    script = 'exec "$0" "$@" <&- >&- 2>&-' if closed else 'exec "$0" "$@"'
    env = {"SLURM_CONF": f"{site}/slurm.conf", **environment}
    ended, held = os.pipe()
    try:
        subprocess.run(["/bin/sh", "-c", script, *command], env=env, check=False, timeout=120, pass_fds=[held])
    finally:
        os.close(held)
    # What goes on in the background holds the other end.
    assert select.select([ended], [], [], 120)[0]
    os.close(ended)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("program", ["resume", "suspend", "resume-fail"])
def test_each_program_leaves_its_request(site: Path, program: str, closed: bool) -> None:
    call(site, program, "spot-[1-2,7]", closed=closed)
    (request,) = read_requests(site / "state")
    assert request.kind == program.replace("-", "_")
    assert request.nodes == ("spot-1", "spot-2", "spot-7")
    assert request.jobs is None


RESUME_FILES = {
    "22.05": {"all_nodes": "c[1-2]", "jobs": [{"job_id": 12, "nodes": "c[1-2]"}]},
    "24.11": {
        "jobs": [
            {
                "extra": None,
                "job_id": 12,
                "features": None,
                "nodes_alloc": "c[1-2]",
                "nodes_resume": "c2",
                "oversubscribe": "OK",
                "partition": "cloud",
                "reservation": None,
            }
        ],
        "all_nodes_resume": "c2",
    },
}


@pytest.mark.parametrize("version", RESUME_FILES)
def test_jobs_from_the_resume_file(site: Path, version: str) -> None:
    (site / "resume.json").write_text(json.dumps(RESUME_FILES[version]))
    call(site, "resume", "c[1-2]", SLURM_RESUME_FILE=f"{site}/resume.json")
    (request,) = read_requests(site / "state")
    assert request.jobs is not None
    (job,) = request.jobs
    assert (job.job_id, job.nodes) == (12, ("c1", "c2"))
    assert job.resume == (("c1", "c2") if version == "22.05" else ("c2",))
    assert request.note == ""


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"jobs": 5}', '{"jobs": [{}]}', '{"jobs": [{"job_id": 1}]}'])
def test_without_a_readable_resume_file_the_hostlist_decides_and_it_is_noted(site: Path, content: str | None) -> None:
    if content is not None:
        (site / "resume.json").write_text(content)
    call(site, "resume", "c1", SLURM_RESUME_FILE=f"{site}/resume.json")
    (request,) = read_requests(site / "state")
    assert request.nodes == ("c1",)
    assert request.jobs is None
    assert "hostlist" in request.note


def test_order_and_removal(site: Path) -> None:
    for name in ("c3", "c1", "c2"):
        call(site, "resume", name)
    requests = read_requests(site / "state")
    assert [r.nodes for r in requests] == [("c3",), ("c1",), ("c2",)]
    remove(requests[1])
    remove(requests[1])
    assert [r.nodes for r in read_requests(site / "state")] == [("c3",), ("c2",)]


def test_a_running_manager_is_woken(site: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{site}/state/manager.sock")
        manager.settimeout(10)
        call(site, "suspend", "c1")
        assert manager.recv(100) == b"suspend"


def test_a_manager_that_does_not_listen_stops_nothing(site: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{site}/state/manager.sock")
    call(site, "suspend", "c1")
    assert len(read_requests(site / "state")) == 1


def test_a_disk_that_hangs_does_not_keep_slurmctld_waiting(site: Path) -> None:
    """The program ends and lets go of its output, for which slurmctld waits too; what it has to record is not lost."""
    text = (site / "burst.yaml").read_bytes()
    (site / "burst.yaml").unlink()
    os.mkfifo(site / "burst.yaml")  # opening it takes until somebody writes
    command = [BIN / "spotburst-resume", "c[1-2]"]
    done = subprocess.run(
        command, env={"SLURM_CONF": f"{site}/slurm.conf"}, capture_output=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert read_requests(site / "state") == []
    (site / "burst.yaml").write_bytes(text)
    while not read_requests(site / "state"):
        time.sleep(0.01)
    assert [r.nodes for r in read_requests(site / "state")] == [("c1", "c2")]


def test_no_state_directory_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "burst.yaml").write_text(f"state_dir: {tmp_path}/state\n")
    call(tmp_path, "suspend", "c1")
    assert [p.name for p in tmp_path.iterdir()] == ["burst.yaml"]


def test_wanted_nodes_are_set_down_when_the_request_cannot_be_recorded(tmp_path: Path) -> None:
    # A real scontrol needs a slurmctld (tests/cluster); here it is what burst.yaml's bin_dir names, and tells how it was called.
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word" >>{tmp_path}/said; done\n')
    scontrol.chmod(0o755)
    burst = f"slurm: {{bin_dir: {tmp_path}/bin}}\nstate_dir: {tmp_path}/missing\n"
    (tmp_path / "burst.yaml").write_text(burst)
    call(tmp_path, "resume", "c[1-2]")
    said = (tmp_path / "said").read_text().splitlines()
    assert said[:3] == ["update", "NodeName=c[1-2]", "State=down"]
    assert said[3].startswith('Reason="spotburst: resume not recorded: ')
    assert f"{tmp_path}/missing is not there" in said[3]
    assert len(said) == 4
    (tmp_path / "said").unlink()
    call(tmp_path, "suspend", "c1")
    call(tmp_path, "resume-fail", "c1")
    assert not (tmp_path / "said").exists()


@pytest.mark.parametrize("arguments", [[], ["--help"], [""], ["c1", "c2"]])
def test_typed_by_hand_without_a_hostlist_it_says_how(site: Path, arguments: list[str]) -> None:
    done = subprocess.run([BIN / "spotburst-resume", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "HOSTLIST" in done.stderr
    assert read_requests(site / "state") == []


def test_no_requests_yet(tmp_path: Path) -> None:
    assert read_requests(tmp_path) == []
    assert read_requests(tmp_path / "nowhere") == []


def test_a_folder_that_is_none_is_an_error_not_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "requests").write_text("")
    with pytest.raises(ConfigError, match="can't be read"):
        read_requests(tmp_path)


def test_unfinished_files_are_no_requests(site: Path) -> None:
    call(site, "resume", "c1")
    folder = site / "state" / "requests"
    fresh, old = folder / ".00-1.json", folder / ".00-2.json"
    fresh.write_text('{"kind": "resume"')
    old.write_text('{"kind": "resume"')
    os.utime(old, (1, 1))
    assert len(read_requests(site / "state")) == 1
    assert fresh.exists()
    assert not old.exists()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=10)
    | st.sampled_from(["resume", "c[1-2]", "c[", "@all"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "hostlist", "time", "jobs", "job_id", "nodes", "resume"]), inner, max_size=7
        )
    ),
    max_leaves=10,
)


@settings(max_examples=50)
@given(content=st.binary(max_size=50) | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_stands_in_a_file_the_others_are_read(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    state = tmp_path_factory.mktemp("state")
    folder = state / "requests"
    folder.mkdir()
    (folder / "1.json").write_bytes(content)
    (folder / "2.json").write_text('{"kind": "suspend", "hostlist": "c1", "time": 5.0}')
    found = read_requests(state)
    assert ("suspend", ("c1",), 5.0) in [(r.kind, r.nodes, r.time) for r in found]
    # Read or set aside: nothing is lost.
    assert len(found) + len(list((folder / "bad").glob("*"))) == 2
    assert len(read_requests(state)) == len(found)


def test_jobs_that_can_not_be_read_lose_no_request(site: Path) -> None:
    """Deeper than a reader goes, or of more nodes than there can be: the nodes are launched all the same."""
    for content in (
        "[" * 20_000,
        '{"jobs": [{"job_id": 1e999, "nodes": "c1"}]}',
        '{"jobs": [{"job_id": 1, "nodes": "c[1-9999999999]"}]}',
    ):
        (site / "resume.json").write_text(content)
        call(site, "resume", "c1", SLURM_RESUME_FILE=f"{site}/resume.json")
        (request,) = read_requests(site / "state")
        assert (request.nodes, request.jobs) == (("c1",), None) and "by the hostlist alone" in request.note
        remove(request)
