"""What the commands say where Slurm does not answer, and of which job they ask it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from slurm_plugin.cli.asking import why_silent
from slurm_plugin.cloud.local.state import Process, write_json
from tests.unit.cli.conftest import Said, Site

Spotburst = Callable[..., Said]
SILENT = {"errors": [{"error": "Unspecified error", "errno": -1}], "nodes": [], "jobs": []}
"""Of ``sinfo --json`` and ``squeue --json`` of 22.05.8 when no slurmctld listens; the exit code is 0."""


class Slurm:
    """Commands that answer with ``answer`` and count how often they are asked."""

    def __init__(self, site: Site) -> None:
        self.folder = site.folder / "bin"
        self.folder.mkdir()
        self.conf = site.folder / "etc" / "slurm.conf"
        self.conf.parent.mkdir()
        self.conf.touch()
        for name in ("sinfo", "squeue"):
            (self.folder / name).write_text(
                f"#!/bin/sh\necho {name} >> {self.folder}/asked\ncat {self.folder}/answer\n"
            )
        (self.folder / "scontrol").write_text(
            "#!/bin/sh\necho \"scontrol: unrecognized option '--json'\" >&2; exit 1\n"
        )
        for name in ("sinfo", "squeue", "scontrol"):
            (self.folder / name).chmod(0o755)
        burst = site.folder / "burst.yaml"
        old = f"slurm: {{conf: {site.folder}/slurm.conf}}"
        assert old in burst.read_text()
        burst.write_text(burst.read_text().replace(old, f"slurm: {{conf: {self.conf}, bin_dir: {self.folder}}}"))
        self.answer(SILENT)

    def answer(self, answer: object) -> None:
        (self.folder / "answer").write_text(json.dumps(answer))

    def asked(self) -> bool:
        return (self.folder / "asked").exists()


@pytest.fixture
def slurm(site: Site) -> Slurm:
    return Slurm(site)


@pytest.mark.parametrize("command", [["nodes"], ["suspend", "7"], ["cancel", "7"], ["shell", "7"]])
def test_a_slurmctld_that_does_not_answer_is_said_in_one_line(
    site: Site, slurm: Slurm, spotburst: Spotburst, command: list[str]
) -> None:
    said = spotburst(*command)
    assert (said.code, said.out) == (2, "")
    assert said.err == "spotburst: slurmctld does not answer: see `systemctl status slurmctld` on its host\n"


def test_a_local_cluster_that_is_down_says_how_it_is_started(site: Site, slurm: Slurm, spotburst: Spotburst) -> None:
    (site.folder / "run").mkdir()
    said = spotburst("nodes")
    up = f"`spotburst local up {site.folder}`"
    assert (said.code, said.err) == (2, f"spotburst: the local cluster in {site.folder} is down: {up} starts it\n")
    site.commit(site.claim("7"), 1, b"x")
    assert f"is down: {up} starts it)" in spotburst("describe", "7").out
    myself = Process.of(os.getpid())
    assert myself is not None
    write_json(site.folder / "run" / "slurmctld.json", myself.to_dict())
    assert "slurmctld does not answer" in spotburst("nodes").err, "it runs, and hangs"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("squeue: Unable to contact slurm controller (connect failure)", "slurmctld does not answer"),
        ("squeue: no answer within 10 s", "slurmctld does not answer"),
        ("squeue: fetch_config: DNS SRV lookup failed; Could not establish a configuration source", "no Slurm is conf"),
        (
            "squeue: Munge encode failed: Failed to access socket; Protocol authentication error",
            "Slurm can't tell who asks",
        ),
        ("squeue: slurm_load_jobs error: Invalid authentication credential", "Slurm can't tell who asks"),
        ("squeue: can't be run: No such file or directory", "squeue: can't be run: No such file or directory"),
    ],
)
def test_slurms_own_words_are_made_short_where_they_are_known(said: str, shown: str) -> None:
    found = why_silent(said, None)
    assert found.startswith(shown)
    assert len(found) < 100


@pytest.mark.parametrize("name", ["mine", "4711"])
def test_of_a_run_outside_slurm_nothing_is_said_of_slurm(
    site: Site, slurm: Slurm, spotburst: Spotburst, name: str
) -> None:
    claim = site.claim("local-77-1-here", run=f"demo/{name}/main")
    site.commit(claim, 1, b"x")
    for command in ("report", "describe", "attempts"):
        said = spotburst(command, name)
        assert (said.code, said.err) == (0, "")
        words = said.out.replace(str(site.folder), "").replace("started outside Slurm", "").lower()
        assert "slurm" not in words and "squeue" not in words, command
    assert slurm.asked() == name.isdigit(), "a name is no job's"


def test_of_a_run_that_silent_slurm_knows_a_report_says_so_in_one_sentence(
    site: Site, slurm: Slurm, spotburst: Spotburst
) -> None:
    site.commit(site.claim("7"), 1, b"x")
    told = json.loads(spotburst("report", "7", "--json").out)
    assert told["notes"][0] == (
        "The job's own state is not told: slurmctld does not answer: see `systemctl status slurmctld` on its host."
    )


def test_a_runs_name_means_the_job_that_wrote_to_it_last(site: Site, slurm: Slurm, spotburst: Spotburst) -> None:
    site.claim("70", run="demo/big/main")
    site.commit(site.claim("71", run="demo/big/main"), 1, b"x")
    jobs = [{"job_id": n, "job_state": state, "user_name": "ann"} for n, state in ((70, "FAILED"), (71, "RUNNING"))]
    slurm.answer({"jobs": jobs, "errors": []})
    found = json.loads(spotburst("describe", "big", "--json").out)
    assert (found["states"], found["next"][:7]) == (["RUNNING"], "runs on")
    assert [one["state"] for one in json.loads(spotburst("attempts", "big", "--json").out)] == ["lost", "RUNNING"]
