"""Why jobs are not brought back, on a real Slurm: the reason is in the log, in the job's comment, in ``describe`` and in the exit code."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.store import RunLog, open_store
from job_wrapper.store.io_types import Entry, Kind
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.slurm.records import Job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

LINES = "echo >> /run/kept/lines; echo begun; while [ ! -e {finish} ]; do echo >> /run/kept/lines; sleep 0.2; done"


class Jobs:
    """Jobs of one cluster, by name."""

    def __init__(self, cluster: LocalCluster, finish: Path) -> None:
        self.cluster, self.finish = cluster, finish
        self.ids: dict[str, str] = {}

    def submit(self, name: str, options: str, program: str = "", *sbatch: str) -> None:
        program = program or LINES.format(finish=self.finish)
        script = f"srun spotburst run --state-dir /run/kept {options} -- sh -c '{program}'"
        self.ids[name] = self.cluster.submit(script, *sbatch)

    def shown(self, name: str) -> Job:
        return next(j for j in self.cluster.client().jobs() if j.name_id == self.ids[name])

    def entries(self, name: str, uri: str = "") -> list[Entry]:
        store = open_store(uri or self.cluster.config.checkpoints.uri, prove=False)
        return RunLog(store, f"{self.cluster.config.cluster}/{self.ids[name]}/main").entries()

    def until(self, what: Callable[[], object], text: str, seconds: float = 240) -> None:
        self.cluster.wait_for(lambda: bool(what()), seconds, text)

    def ended(self, name: str, code: int, reason: str) -> None:
        """Wait for the end, and look in all four places."""
        self.until(lambda: self.shown(name).comment.startswith(f"spotburst: {reason}: "), f"{name}'s comment")
        # The comment comes while the job still runs, and 22.05 shows COMPLETING alone while it is taken down.
        self.until(lambda: self.shown(name).has("FAILED"), f"{name} to have ended")
        assert self.shown(name).exit_code == code
        last = self.entries(name)[-1]
        assert (last.kind, last.body["exit_code"], last.body["reason"]) == (Kind.END, code, reason)
        told = self.cluster.run("spotburst", "describe", self.ids[name])
        assert f"the run ends with exit code {code}: {reason}" in told
        assert f"{reason}: " in told.split("Comment", 1)[1]


def test_each_reason_is_in_the_log_the_comment_describe_and_the_exit_code(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    cluster = make_cluster(4)
    jobs = Jobs(cluster, tmp_path / "finish")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    own_store = f"file://{elsewhere}/store"
    (elsewhere / "store").mkdir()
    fails = "--on-interruption fail --interval 60s"
    jobs.submit("own failure", "", "echo > /run/kept/f; exit 7")
    jobs.submit("noticed", fails)
    jobs.submit("lost", fails)
    jobs.submit("storeless", f"--uri {own_store} --store-patience 2s")
    for name in ("noticed", "lost", "storeless"):
        jobs.until(lambda name=name: "begun" in cluster.output(jobs.ids[name]).split(), f"{name}'s program")  # type: ignore[misc]
    (elsewhere / "store").rename(elsewhere / "away")
    cluster.cloud().reclaim(jobs.shown("noticed").nodes[0])
    cluster.cloud().vanish(jobs.shown("lost").nodes[0])
    cluster.cloud().reclaim(jobs.shown("storeless").nodes[0], notice=10)

    jobs.ended("own failure", 7, "ProgramFailed")
    jobs.ended("noticed", ExitCode.PREEMPTED, "Preempted")
    assert jobs.entries("noticed")[-2].body["urgent"], "the last checkpoint was made at the notice"
    jobs.ended("lost", ExitCode.NODE_LOST, "NodeLost")

    def comment() -> str:
        return jobs.shown("storeless").comment

    jobs.until(lambda: "store away since" in comment(), "an attempt without its store")
    yesterday = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 86400))
    job_id = jobs.ids["storeless"]
    cluster.run(
        "scontrol", "update", f"JobId={job_id}", f"Comment=mine | spotburst: requeued; store away since {yesterday}"
    )
    jobs.until(lambda: "StoreAway: held after 24 h" in comment(), "the hold")
    jobs.until(
        lambda: jobs.shown("storeless").has("PENDING") and not jobs.shown("storeless").has("COMPLETING"),
        "the end of the attempt",
    )
    assert jobs.shown("storeless").priority == 0
    (elsewhere / "away").rename(elsewhere / "store")
    cluster.run("scontrol", "release", job_id)
    # Of a job that has ended Slurm changes no comment.
    jobs.until(lambda: comment() == "mine", "the comment without the outage")
    jobs.finish.touch()
    jobs.until(lambda: jobs.entries("storeless", own_store)[-1].summary.ended == 0, "the run's end")
