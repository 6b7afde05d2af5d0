"""What Slurm tells: its commands' JSON and text, slurm.conf, hostlists, comments, and what slurmctld asks of the power programs."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from job_wrapper import comments
from job_wrapper.notice.slurm import preemption
from job_wrapper.slurm_job import SlurmJob, parse_view
from resume_scripts import record
from slurm_plugin.checks import cluster, jobs, slurm_conf
from slurm_plugin.checks.reading import running_slurm
from slurm_plugin.errors import ConfigError, SlurmRefused, SlurmUnavailable
from slurm_plugin.placement.limit import cost_limit
from slurm_plugin.reconcile.flags import agents_notice, phase
from slurm_plugin.render import parse_version
from slurm_plugin.requests import read_requests
from slurm_plugin.slurm import parse
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.controllers import acting, parse_ping
from slurm_plugin.slurm.hostlist import expand, fold
from slurm_plugin.slurm.orders import one_line
from slurm_plugin.slurm.records import Node
from tests.fuzz.target import Feed, Room, Target, pure, text

_RECORDED = Path(__file__).parents[1] / "unit/slurm/data"
_PARTITIONS = (
    "PartitionName=spot Default=YES GraceTime=10 MaxTime=UNLIMITED Nodes=spot-[1-3] PriorityTier=1 PreemptMode=REQUEUE State=UP\n"
    "PartitionName=empty Nodes=(null)\n"
)
_CONFIG = (
    "Configuration data as of 2026-05-02T08:22:00\nClusterName             = demo\nKillWait                = 30 sec\nResumeRate = 300 nodes/min\n"
    "PreemptType             = preempt/partition_prio\nRequeueExit             = 1-3,7\nSLURM_VERSION           = 22.05.8\nSlurmUser = slurm(64030)\n"
    "SlurmctldHost[0]        = ctl(10.0.0.1)\nTreeWidth = 50\n\nCgroup Support Configuration:\nConstrainDevices        = (null)\n"
)
_SLURM_CONF = (
    "# a comment\nClusterName=demo\nSlurmctldHost=ctl(10.0.0.1)\nInclude spotburst.conf\nNodeName=spot-[1-4] CPUs=4 Gres=gpu:t4:2 State=CLOUD \\\n"
    '  Feature=spot Weight=10\nPartitionName=spot Nodes=spot-[1-4] Default=YES GraceTime=30 PriorityTier=2 PreemptMode=REQUEUE\nSuspendProgram="/usr/bin/x y"\n'
)
_HOSTLISTS = (
    "spot-1",
    "spot-[1-4]",
    "a[1-3,7],b[01-10]",
    "rack[1-2]-node[001-003]",
    "gpu[1-10/2]",
    "",
    " a , b",
    "n[1-3]x[4,5]",
)
_COMMENTS = (
    "spotburst: recovered from a reclaim; left spot-1,spot-2 at 2026-05-02T08:22:00Z; store away since 2026-05-02T08:22:00Z",
    "mine cost_limit=25.5 | spotburst: Completed: 3 commits",
    "cost_limit=1e3, a | b | spotburst: left n at 2026-05-02T08:22:00Z",
)


def targets() -> list[Target]:
    """All of them."""
    json_jobs = tuple(path.read_text() for path in sorted(_RECORDED.glob("*-jobs.json")))
    json_nodes = tuple(path.read_text() for path in sorted(_RECORDED.glob("*-nodes.json")))
    refused = (SlurmUnavailable, SlurmRefused, ConfigError)
    return [
        pure("slurm-jobs", _jobs, (*json_jobs, *map(_small, json_jobs)), refused),
        pure("slurm-nodes", _nodes, (*json_nodes, *map(_small, json_nodes)), refused),
        pure("slurm-partitions", _partitions, (_PARTITIONS,), refused),
        pure("slurm-config", _config, (_CONFIG,), refused),
        pure("slurm-conf", _conf, (_SLURM_CONF,), refused),
        pure("slurm-ping", _ping, ("Slurmctld(primary) at ctl is UP\nSlurmctld(backup) at b is DOWN\n",)),
        pure(
            "squeue-view",
            _view,
            (
                "RUNNING;0;N/A;1;1;1777710120;1777713720;4294901756;",
                "PENDING;2;1777710120;0;1;N/A;NONE;0;\n",
                "spot-1 idle~\nspot-2 down*\n",
            ),
        ),
        pure("hostlist", _hostlist, _HOSTLISTS, (ConfigError,)),
        pure("comment", _comment, _COMMENTS),
        Target("resume-file", _resume_file, (b'{"jobs":[{"job_id":7,"nodes":"spot-[1-2]"}]}', json.dumps({"all_nodes_resume": "spot-[1-3]", "jobs": [{"extra": None, "job_id": 9, "features": "x", "nodes_alloc": "spot-[1-3]", "nodes_resume": "spot-[1-3]", "oversubscribe": "OK", "partition": "spot", "reservation": ""}]}).encode())),
        Target("request", _request, tuple(json.dumps(r).encode() for r in (
            {"kind": "resume", "hostlist": "spot-[1-2]", "time": 1777710120.5, "jobs": [{"job_id": 7, "nodes": "spot-[1-2]", "resume": "spot-1"}]},
            {"kind": "suspend", "hostlist": "spot-1", "time": 1777710120.5}, {"kind": "resume_fail", "hostlist": "spot-1", "time": 1, "jobs": None, "note": "x"}))),
    ]  # fmt: skip


def _small(recorded: str) -> str:
    """Fewer fields, so that a change more often meets one that is read."""
    data = json.loads(recorded)
    key = "jobs" if "jobs" in data else "nodes"
    known = {"job_id", "job_state", "state_reason", "nodes", "node_count", "exit_code", "tres_per_node", "tres_req_str", "array_job_id", "array_task_id", "array_task_string",
             "comment", "start_time", "end_time", "time_limit", "priority", "restart_cnt", "name", "state", "state_flags", "partitions", "gres", "cpus", "reason", "boot_time", "het_job_id"}  # fmt: skip
    return json.dumps({key: [{k: v for k, v in one.items() if k in known} for one in data[key]], "errors": []})


def _plain(one: Any) -> None:
    """What Slurm counts, everyone may reckon with."""
    for each in fields(one):
        value = getattr(one, each.name)
        if isinstance(value, int):
            float(value)


def _jobs(data: bytes) -> None:
    for job in parse.parse_jobs(text(data), "squeue"):
        _plain(job)
        comments.away_since(job.comment)
        cost_limit(job.comment, None)


def _nodes(data: bytes) -> None:
    for node in parse.parse_nodes(text(data), "sinfo"):
        _plain(node)
        phase(node)
        agents_notice(node)
        cluster._gpus(node.gres)


def _partitions(data: bytes) -> None:
    for partition in parse.parse_partitions(text(data), "scontrol"):
        _plain(partition)


class _Client:
    """As far as it is asked."""

    def __init__(self, said: str) -> None:
        self._said = said

    def shown_config(self) -> str:
        return self._said

    def partitions(self) -> tuple[()]:
        return ()


def _config(data: bytes) -> None:
    conf, _ = running_slurm(cast("CliClient", _Client(text(data))))
    _asked(conf)


def _conf(data: bytes) -> None:
    said = text(data)
    _asked(slurm_conf.written(Path("/etc/slurm/slurm.conf"), (22, 5, 8), lambda path: said if path.name == "slurm.conf" else ""))  # fmt: skip


def _asked(conf: slurm_conf.SlurmConf) -> None:
    for name in [*conf.values, "KillWait", "TreeWidth"]:
        conf.number(name)
        conf.words(name)
        jobs._codes(conf.text(name))
        parse_version(conf.text(name))


def _ping(data: bytes) -> None:
    acting(parse_ping(text(data)), True)


class _Job(SlurmJob):
    """Whose commands print what they are fed."""

    said = ""

    def _run(self, command: str, *arguments: str) -> tuple[int, str, str]:
        return 0, self.said, ""


def _view(data: bytes) -> None:
    job = _Job("7")
    job.said = text(data)
    view = job.view()
    if view is not None:
        preemption(view, 0, time.time())
        assert view.time_limit is None or view.time_limit > 0
    job.alive("8")
    job.lost_nodes("spot-[1-2]")
    job.out_of_use("spot-[1-2]")
    with contextlib.suppress(ValueError):
        parse_view(job.said)


def _hostlist(data: bytes) -> None:
    names = expand(text(data))
    assert all(isinstance(name, str) and name for name in names)
    if 0 < len(names) < 1000:
        fold(names)


def _comment(data: bytes) -> None:
    standing = text(data)
    own = "" if standing.startswith(comments.OURS) else standing.split(f" | {comments.OURS}")[0]
    for made in (
        comments.comment(standing, "Completed"),
        comments.with_left(standing, ("a", "b"), 1777710120.0),
        comments.with_away(standing, 1777710120.0, "waits"),
        comments.without_marks(standing),
    ):
        assert made.startswith(own), "the user's own comment is lost"
    assert comments.left_nodes(comments.with_left(standing, ("a", "b"), 1777710120.0)) == (frozenset("ab"), 1777710120.0)  # fmt: skip
    assert comments.away_since(comments.with_away(standing, 1777710120.0, "waits")) == 1777710120.0
    cost_limit(standing, None)
    one_line(standing)
    agents_notice(Node("n", frozenset({"DRAIN"}), reason=standing))


def _resume_file(room: Room) -> Feed:
    path = room.file("resume.json")

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        request = {"kind": "resume", "hostlist": "spot-[1-2]", "time": 5.0, **record._resume_file(str(path))}
        record._write(str(room.folder), request)
        (found,) = read_requests(room.folder)
        assert found.nodes == ("spot-1", "spot-2"), "what slurmctld asked for is lost"
        found.path.unlink()

    return feed


def _request(room: Room) -> Feed:
    folder = room.file("requests/x").parent

    def feed(data: bytes) -> None:
        hostile, good = folder / "00000000000000000001-1.json", folder / "00000000000000000002-1.json"
        hostile.write_bytes(data)
        good.write_text('{"kind": "suspend", "hostlist": "spot-9", "time": 5.0}')
        found = read_requests(room.folder)
        assert found[-1].nodes == ("spot-9",), "another request is lost"
        aside = folder / "bad" / hostile.name
        assert (hostile if len(found) == 2 else aside).read_bytes() == data, "the request is lost"
        for one in found:
            float(one.time)
            one.path.unlink()
        aside.unlink(missing_ok=True)

    return feed
