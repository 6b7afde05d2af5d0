"""Nodes that go away are named in the job's comment, unless Slurm shows them drained."""

from __future__ import annotations

from pathlib import Path

import pytest

from job_wrapper.comments import left_nodes
from job_wrapper.run import departing, outages
from job_wrapper.slurm_job import SlurmJob

COMMANDS = {
    "sinfo": "printf 'n1 draining\\nn2 mixed\\nn3 idle\\nn4 down*\\nn5 powering_down%%\\nn6 mixed*\\n'",
    "squeue": 'cat "$(dirname "$0")/comment"',
    "scontrol": 'for word; do case "$word" in Comment=*) printf "%s\\n" "${word#Comment=}" > "$(dirname "$0")/comment";; esac; done',
}


@pytest.fixture
def job(tmp_path: Path) -> SlurmJob:
    """Its comment is kept in a file."""
    for name, script in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "comment").write_text("mine\n")
    return SlurmJob("12", bin_dir=str(tmp_path))


def test_those_that_slurm_could_still_use_are_named_until_the_next_attempt(job: SlurmJob) -> None:
    departing.tell(job, ["n1", "n3", "n2", "n4", "n5", "n6"], 1_800_000_000.0)
    assert left_nodes(job.comment() or "") == (frozenset({"n2", "n3", "n6"}), 1_800_000_000.0)
    outages.clear(job)
    assert job.comment() == "mine"


def test_drained_nodes_and_nodes_without_a_name_leave_the_comment_alone(job: SlurmJob) -> None:
    departing.tell(job, ["n1", "n4", "n5"], 0.0)
    departing.tell(job, [""], 0.0)
    assert job.comment() == "mine"


def test_a_slurm_that_does_not_tell_of_nodes_names_them_all(job: SlurmJob, tmp_path: Path) -> None:
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    departing.tell(job, ["n1"], 60.0)
    assert left_nodes(job.comment() or "") == (frozenset({"n1"}), 60.0)
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    departing.tell(job, ["n2"], 120.0)
    assert "left n1 at" in (tmp_path / "comment").read_text(), "a comment that can't be read is not replaced"
