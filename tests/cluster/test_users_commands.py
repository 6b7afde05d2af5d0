"""checkpoint, suspend, resume, cancel, shell: by plain users, on their own jobs and on others', on a real Slurm."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.store import RunLog, open_store
from job_wrapper.store.io_types import Entry, Kind
from slurm_plugin.cli.acting import find_job
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.slurm.records import Job
from tests.fixtures.plain_users import ALICE, BOB, PlainUsers, Said, plain_users
from tests.fixtures.terminal import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

COUNT = """\
cd "$SPOTBURST_STATE_DIR"
number=$(cat number 2>/dev/null || echo 0)
echo $number >> starts
while true; do number=$((number + 1)); echo $number > .new; mv .new number; sleep 0.05; done
"""


@dataclass
class Site:
    """A cluster that several users share."""

    cluster: LocalCluster
    users: PlainUsers

    def run(self, user: str, *command: str | Path) -> Said:
        mine = self.cluster.environment
        path = f"{self.users.bin}:{mine['PATH']}"
        return self.users.run(user, *command, env={"PATH": path, "SLURM_CONF": mine["SLURM_CONF"]})

    def spotburst(self, *words: str, user: str = ALICE) -> Said:
        said = self.run(user, "spotburst", *words)
        assert "Traceback" not in said.out
        return said

    def submit(self, script: str, *options: str) -> str:
        """``script`` as Alice's batch script. Its output is appended to, attempt after attempt."""
        made = self.users.folder / f"script-{len(list(self.users.folder.glob('script-*')))}"
        made.write_text(f"#!/bin/sh\n{script}\n")
        made.chmod(0o755)
        out = self.users.folder / "%j.out"
        said = self.run(ALICE, "sbatch", "--parsable", "--open-mode=append", f"--output={out}", *options, made)
        assert said.code == 0, said.out
        return said.out.strip()

    def counting(self, options: str = "", *sbatch: str) -> str:
        """A wrapped program that counts in its state directory. Its job's id."""
        state, program = self.users.folder / "state-$SLURM_JOB_ID", self.users.folder / "count.sh"
        program.write_text(COUNT)
        return self.submit(
            f"mkdir -p {state}\nsrun spotburst run --state-dir {state} {options} -- sh {program}", *sbatch
        )

    def state(self, job: str) -> Path:
        return self.users.folder / f"state-{job}"

    def output(self, job: str) -> str:
        path = self.users.folder / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def job(self, job: str) -> Job:
        return find_job(self.cluster.client().jobs(), job)

    def entries(self, job: str) -> list[Entry]:
        store = open_store(self.cluster.config.checkpoints.uri, prove=False)
        return RunLog(store, f"{self.cluster.config.cluster}/{job}/main").entries()

    def until_counting(self, job: str, starts: int = 1) -> None:
        """Until its program has been started so many times."""
        path = self.state(job) / "starts"
        self.cluster.wait_for(
            lambda: path.exists() and len(path.read_text().split()) >= starts, 240, f"start {starts} of job {job}"
        )

    def until(self, job: str, state: str) -> None:
        self.cluster.wait_for(
            lambda: self.job(job).has(state) and not self.job(job).has("COMPLETING"), 240, f"job {job} {state}"
        )


def on_terminal(site: Site, *command: str) -> Terminal:
    """A command of Alice's."""
    whose, mine = pwd.getpwnam(ALICE), site.cluster.environment
    environ = {"PATH": f"{site.users.bin}:{mine['PATH']}", "SLURM_CONF": mine["SLURM_CONF"], "TERM": "dumb"}
    as_alice = {"user": whose.pw_uid, "group": whose.pw_gid, "extra_groups": []}
    return Terminal(command, environ, cwd=site.users.folder, **as_alice)


@pytest.fixture(scope="module")
def site(able: None) -> Iterator[Site]:
    """Two nodes, which are up already: a job that boots one waits for Slurm's tick of 30 s."""
    before = os.umask(0o022)
    try:
        with (
            plain_users() as users,
            LocalCluster(users.folder / "c", default_settings(2, cpus=12, gpus=0, notice=60)) as cluster,
        ):
            (cluster.root / "checkpoints").chmod(0o1777)
            cluster.client().update_nodes(["spot-1", "spot-2"], state="power_up")
            cluster.wait_for(lambda: all(node.up for node in cluster.client().nodes()), 180, "its nodes")
            yield Site(cluster, users)
    finally:
        os.umask(before)


def test_a_job_is_checkpointed_suspended_resumed_and_cancelled_by_its_owner_alone(site: Site) -> None:
    job = site.counting()
    site.until_counting(job)
    said = site.spotburst("checkpoint", job)
    assert (said.code, f"job {job} committed entry 1, epoch 1" in said.out) == (0, True), said.out
    # Others
    for words in (("checkpoint", job), ("suspend", job), ("cancel", job)):
        said = site.spotburst(*words, user=BOB)
        assert said.code != 0
        assert f"job {job} belongs to {ALICE}, not to you ({BOB})" in said.out
    assert f"job {job} belongs to {ALICE}" in site.spotburst("shell", job, "--", "true", user=BOB).out
    assert site.job(job).running
    assert site.job(job).priority > 0
    assert len(site.entries(job)) == 2
    # Its owner
    shell = site.spotburst("shell", job, "--", "sh", "-c", 'echo "$SPOTBURST_EPOCH $SLURM_STEP_ID"; pwd; cat number')
    assert shell.code == 0, shell.out
    epoch, folder, number = shell.out.splitlines()[-3:]
    assert (epoch, folder, int(number) > 0) == ("1 0", str(site.state(job)), True)
    said = site.spotburst("suspend", job)
    assert (said.code, f"job {job} is suspended at entry 2; its nodes are free" in said.out) == (0, True), said.out
    held = site.job(job)
    assert (held.has("PENDING"), held.priority, held.nodes) == (True, 0, ())
    assert [e.kind for e in site.entries(job)] == [Kind.CLAIM, Kind.COMMIT, Kind.COMMIT, Kind.SUSPENDED]
    counted = int((site.state(job) / "number").read_text())
    assert "is suspended: `spotburst resume" in site.spotburst("describe", job).out
    assert f"job {job} does not run: PENDING" in site.spotburst("checkpoint", job).out
    assert f"belongs to {ALICE}" in site.spotburst("resume", job, user=BOB).out
    said = site.spotburst("resume", job)
    assert (said.code, "goes on from entry 2" in said.out) == (0, True), said.out
    site.until_counting(job, 2)
    went_on = int((site.state(job) / "starts").read_text().split()[1])
    assert 0 < went_on <= counted, "from the checkpoint, not from the start"
    newest = site.entries(job)[-1].summary
    assert (newest.epoch, newest.recoveries, newest.barren) == (2, 0, 0), "its user's own stop is no recovery"
    said = site.spotburst("cancel", job, "--keep-checkpoint")
    assert (said.code, f"`spotburst run --run {job} …` goes on from it" in said.out) == (0, True), said.out
    assert site.job(job).has("CANCELLED")
    assert f"job {job} has ended" in site.spotburst("resume", job).out
    # As it said
    new = site.submit(
        f"srun spotburst run --run {job} --state-dir {site.state(job)} -- sh {site.users.folder}/count.sh"
    )
    site.until_counting(job, 3)
    assert int((site.state(job) / "starts").read_text().split()[2]) > went_on
    assert site.spotburst("cancel", new).code == 0


def test_what_can_not_be_done_is_said_and_leaves_the_job_as_it_was(site: Site) -> None:
    plain = site.submit("srun sleep 300")
    batch = site.submit("spotburst run -- sleep 300")
    nothing = site.submit("srun spotburst run -- sleep 300")
    stays = site.counting("--on-interruption fail", "--no-requeue")
    large = site.counting("--max-size 1")
    array = site.counting("", "--array=1-2")
    waiting = site.submit("srun sleep 300", "--hold")
    for job in (large, stays, str(site.job(f"{array}_1").job_id)):
        site.until_counting(job)
    for job in (batch, nothing):
        site.cluster.wait_for(lambda job=job: "epoch 1" in site.output(job), 180, "its claim")
    site.until(plain, "RUNNING")

    def refused(what: str, job: str, *words: str) -> None:
        said = site.spotburst(what, job)
        assert said.code != 0
        assert all(word in said.out for word in words), said.out

    refused("checkpoint", plain, "is its program started by `spotburst run`?")
    refused("checkpoint", batch, "put `srun` before `spotburst run`")
    refused("checkpoint", "999999", "Slurm shows no such job")
    refused("checkpoint", "my-job", "is not a job id: write 123")
    refused("checkpoint", array, "is an array: say which task", f"{array}_1")
    refused("checkpoint", waiting, "JobHeldUser", "no program to ask")
    refused("suspend", stays, "--no-requeue", "cancel")
    said = site.spotburst("resume", stays)
    assert (said.code, "there is nothing to resume" in said.out) == (0, True), said.out
    for job, why in ((nothing, "no Checkpointer"), (large, "max-size")):
        refused("checkpoint", job, "no checkpoint was made", why)
        refused("suspend", job, "no checkpoint was made", why)
        assert site.job(job).running
        assert site.job(job).priority > 0, "or its next requeue would leave it held"
    refusals = site.output(large).count("in vain")
    said = site.spotburst("suspend", large, "--no-wait")
    assert (said.code, f"job {large} was asked" in said.out) == (0, True), said.out
    site.cluster.wait_for(lambda: site.output(large).count("in vain") > refusals, 120, "the refusal")
    site.cluster.wait_for(lambda: site.job(large).priority > 0, 120, "the mark taken back, though nobody waited")
    said = site.spotburst("checkpoint", f"{array}_1")
    assert (said.code, f"job {array}_1 committed entry 1" in said.out) == (0, True), said.out
    store = Path(site.cluster.root / "checkpoints")
    store.rename(store.with_name("away"))
    try:
        refused("suspend", f"{array}_1", "there is no such folder here")
    finally:
        store.with_name("away").rename(store)
    assert site.job(f"{array}_1").priority > 0
    for job in (plain, batch, nothing, stays, large, array, waiting):
        assert site.run(ALICE, "scancel", job).code == 0
    site.until(nothing, "CANCELLED")
    refused("checkpoint", nothing, "has ended (CANCELLED)")


def test_a_session_is_warned_on_its_terminal_saved_and_gone_on_with_elsewhere(site: Site) -> None:
    state = site.users.folder / "session"
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    with on_terminal(site, "srun", "--pty", "spotburst", "run", "--state-dir", str(state), "--", "sh") as session:
        session.until("Slurm does not bring back a job of srun or salloc")
        session.until("epoch 1")
        session.type(f"echo kept > {state}/file; echo is $((20 + 3)) there\n")
        session.until("is 23 there")
        # The other tests' jobs may still be ending.
        job = site.cluster.run("squeue", "-h", "-t", "running", "-o", "%A").strip()
        said = site.spotburst("suspend", job)
        assert "was started by srun or salloc, so Slurm can't hold it" in said.out
        site.cluster.cloud().reclaim(site.job(job).nodes[0])
        session.until("*** This node goes away in ")
        session.until("*** To go on, on another node: srun")
        session.until("committed state directories")
        session.type("echo still $((20 + 4))\n")
        session.until("still 24")
        session.until("to go on: srun")
        assert session.end() == ExitCode.PREEMPTED
        command = session.text.split("to go on: ")[1].splitlines()[0]
        shutil.rmtree(state)
        state.mkdir(mode=0o777)
        state.chmod(0o777)
    with on_terminal(site, *shlex.split(command)) as again:
        again.until("going on from the checkpoint")
        again.type(f"echo $(cat {state}/file) $((20 + 5)); exit\n")
        again.until("kept 25")
        assert again.end() == 0
