"""Placement on a real Slurm: another offering in the same resume, memory over a restart, and a job that finds no capacity at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SLEEP = "#!/bin/sh\nsleep 600\n"
POOLS = [("a", "small-1g", "spot"), ("b", "small-1g", "spot")]


def test_offerings_run_out_one_by_one(make_cluster: Callable[..., LocalCluster], tmp_path: Path) -> None:
    settings = default_settings(2, zones=("a", "b"))
    settings["placement"] = {"queue_timeout": "5s"}
    mails = tmp_path / "mails"
    mailer = tmp_path / "mailer"
    mailer.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {mails}\n')
    mailer.chmod(0o755)
    cluster = make_cluster(settings=settings, site={"more": (f"MailProg={mailer}",)})
    cloud = cluster.cloud()
    first, second = POOLS
    cloud.set_capacity(*first, 0)

    job = cluster.submit(SLEEP)
    cluster.wait_for(lambda: any(i.state is InstanceState.RUNNING for i in cloud.instances()), 120, "a machine")
    (machine,) = cloud.instances()
    assert machine.offering_id == "local/local/b/small-1g/spot"
    (shown,) = cluster.client().jobs()
    assert shown.restart_count == 0, "the same resume"

    def offerings() -> dict[str, dict[str, object]]:
        return {row["offering"]: row for row in json.loads(cluster.run("spotburst", "offerings", "--json"))}

    before = offerings()["local/local/a/small-1g/spot"]
    assert before["state"] == "cooling"
    assert "do not have sufficient capacity" in str(before["why"])
    cluster.kill_manager()
    cluster.start_manager()
    assert offerings()["local/local/a/small-1g/spot"]["until"] == before["until"]
    story = cluster.run("spotburst", "describe", job)
    assert "asking local/local/a/small-1g/spot" in story
    assert "asking local/local/b/small-1g/spot" in story

    cloud.set_capacity(*second, 1)
    waiting = cluster.submit(SLEEP, "--comment=mine", "--mail-type=END,FAIL", "--mail-user=ann")

    def cancelled() -> bool:
        return any(j.name_id == waiting and j.has("CANCELLED") for j in cluster.client().jobs())

    cluster.wait_for(cancelled, 240, "the job without capacity to end")
    shown = next(j for j in cluster.client().jobs() if j.name_id == waiting)
    assert shown.comment.startswith("mine | spotburst: CapacityUnavailable: no capacity for")
    assert "do not have sufficient capacity" in shown.comment, "the cloud's words"
    assert shown.admin_comment == shown.comment.removeprefix("mine | "), "what the accounting keeps"
    assert shown.exit_code == 0, "nothing has run that could have ended with another"

    described = ("spotburst", "describe", waiting, "--json")
    # The manager writes it down once it is done.
    cluster.wait_for(
        lambda: '"manager: CapacityUnavailable' in cluster.run(*described), 60, "the manager's word for it"
    )
    told = json.loads(cluster.run(*described))
    assert told["next"].startswith(
        "nothing by itself: the manager cancelled the job while it waited: CapacityUnavailable: no capacity for"
    )
    (last,) = (event["text"] for event in told["timeline"] if "CapacityUnavailable" in event["text"])
    assert last == f"manager: {shown.admin_comment.removeprefix('spotburst: ')}"
    cluster.wait_for(lambda: mails.exists() and f"Job_id={waiting} " in mails.read_text(), 120, "the mail")
    assert "CANCELLED" in mails.read_text()
    assert any(j.name_id == job and j.has("RUNNING", "CONFIGURING") for j in cluster.client().jobs()), "left alone"
