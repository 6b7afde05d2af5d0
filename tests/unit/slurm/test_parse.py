"""What the commands printed on 22.05.8 and 24.11.5 (tests/unit/slurm/data, recorded from real ones), and what they may yet print."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.slurm import parse
from slurm_plugin.slurm.records import Job, Node, Start

DATA = Path(__file__).parent / "data"
VERSIONS = ["22.05.8", "24.11.5"]


def recorded(version: str, kind: str) -> str:
    return (DATA / f"{version}-{kind}.json").read_text()


def as_22_05(value: Any) -> Any:
    """``{"set", "infinite", "number"}`` objects as 22.05's plain numbers."""
    if isinstance(value, dict):
        if set(value) == {"set", "infinite", "number"}:
            return value["number"] if value["set"] else None
        return {k: as_22_05(v) for k, v in value.items()}
    return [as_22_05(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_of_each_version_give_the_same_records(version: str) -> None:
    jobs = {j.name_id: j for j in parse.parse_jobs(recorded(version, "jobs"), "squeue")}
    assert sorted(jobs) == ["1", "2", "3_[1-3]"]
    boots, failed, array = jobs["1"], jobs["2"], jobs["3_[1-3]"]
    assert boots.states >= {"RUNNING", "CONFIGURING"}
    assert not boots.running
    assert (boots.nodes, boots.gpus_per_node, boots.features, boots.name) == (("spot-2",), 2, "t4", "boots")
    assert boots.excluded_nodes == ("spot-1", "spot-3")
    assert boots.comment == 'a State=DOWN "q" b=1'
    assert (boots.user, boots.user_id, boots.requeue, boots.batch, boots.restart_count) == ("root", 0, True, True, 0)
    assert failed.states == {"FAILED"}
    assert (failed.exit_code, failed.exit_signal, failed.reason) == (7, 0, "NonZeroExitCode")
    assert array.states == {"PENDING"}
    assert (array.job_id, array.priority, array.node_count, array.gpus_per_node) == (3, 0, 2, 2)
    assert array.eligible_time == 0


@pytest.mark.parametrize(
    ("reason", "words", "expected"),
    [
        ("JobHeldUser", "launch failed requeued held", "launch_failed_requeued_held"),
        ("JobHeldUser", "", "JobHeldUser"),
        ("JobHeldUser", None, "JobHeldUser"),
        ("BeginTime", "something else", "BeginTime"),
    ],
)
def test_why_slurm_itself_holds_a_job(reason: str, words: str | None, expected: str) -> None:
    data = json.loads(recorded("22.05.8", "jobs"))
    data["jobs"][0] |= {"state_reason": reason, "state_description": words}
    assert parse.parse_jobs(json.dumps(data), "squeue")[0].reason == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_of_each_version_give_the_same_records(version: str) -> None:
    nodes = {n.name: n for n in parse.parse_nodes(recorded(version, "nodes"), "sinfo")}
    assert sorted(nodes) == ["real-1", "spot-1", "spot-2"]
    assert nodes["spot-1"].states == {"IDLE", "CLOUD", "POWERED_DOWN"}
    assert nodes["spot-2"].has("POWERING_UP")
    assert not nodes["spot-2"].up
    assert nodes["spot-1"].features == ("spot", "t4")
    assert nodes["spot-1"].partitions == ("spot", "urgent")
    assert nodes["real-1"].up
    assert nodes["real-1"].boot_time > 1_000_000_000


def test_a_mixture_of_both_shapes_is_read_alike() -> None:
    new = json.loads(recorded("24.11.5", "jobs"))
    old = as_22_05(new)
    assert parse.parse_jobs(json.dumps(new), "c")[1:] == parse.parse_jobs(json.dumps(old), "c")[1:]
    mixed = {**new, "jobs": [new["jobs"][0], old["jobs"][1]]}
    assert parse.parse_jobs(json.dumps(mixed), "c") == parse.parse_jobs(json.dumps(new), "c")[:2]


@pytest.mark.parametrize(
    ("shown", "states"),
    [
        ("COMPLETING", {"COMPLETING"}),  # 22.05: of a requeued job that is still ending, nothing more
        ("CONFIGURING", {"CONFIGURING", "RUNNING"}),
        ("running", {"RUNNING"}),
        (["PENDING", "COMPLETING"], {"PENDING", "COMPLETING"}),
        (["RUNNING", "CONFIGURING", "POWER_UP_NODE"], {"RUNNING", "CONFIGURING", "POWER_UP_NODE"}),
        (["SOMETHING_NEW"], {"SOMETHING_NEW"}),
    ],
)
def test_job_states(shown: Any, states: set[str]) -> None:
    assert parse.job({"job_id": 1, "job_state": shown}).states == states


@pytest.mark.parametrize(
    ("data", "states"),
    [
        ({"state": "idle", "state_flags": ["CLOUD", "POWERED_DOWN"]}, {"IDLE", "CLOUD", "POWERED_DOWN"}),
        ({"state": ["DOWN", "CLOUD", "POWERED_DOWN"]}, {"DOWN", "CLOUD", "POWERED_DOWN"}),
        ({"state": "IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING"}, {"IDLE", "CLOUD", "POWERED_DOWN", "NOT_RESPONDING"}),
        ({"state": "mixed", "state_flags": []}, {"MIXED"}),
    ],
)
def test_node_states(data: dict[str, Any], states: set[str]) -> None:
    assert parse.node({"name": "n", **data}).states == states


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5),
        ("5", 5),
        (None, 0),
        (True, 1),
        (5.0, 5),
        (4294967294, 0),
        ({"set": True, "infinite": False, "number": 5}, 5),
        ({"set": True, "infinite": False, "number": 0}, 0),
        ({"set": False, "infinite": False, "number": 9}, 0),
        ({"set": True, "infinite": True, "number": 0}, 0),
        ("Infinity", 0),
    ],
)
def test_numbers(value: Any, number: int) -> None:
    assert parse.number(value) == number


@pytest.mark.parametrize("value", [[], "x", [5], {"set": True, "number": "x"}])
def test_what_is_no_number(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse.number(value)


@pytest.mark.parametrize(
    ("tres", "count"),
    [
        ("gres:gpu:1", 1),
        ("gres/gpu:1", 1),
        ("gres:gpu:t4:2", 2),
        ("gres/gpu:a100:4", 4),
        ("gpu:2", 2),
        ("gpu", 1),
        ("gres/gpu:a100:2,gres/gpu:t4:1", 3),
        ("cpu=4,mem=1G,node=1,billing=4,gres/gpu=2,gres/gpu:a100=2", 2),
        ("cpu=4,mem=1G", 0),
        ("gres:license:5", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_gpus(tres: str | None, count: int) -> None:
    assert parse.gpus(tres) == count


@pytest.mark.parametrize(
    ("data", "per_node"),
    [
        ({"tres_per_job": "gres:gpu:5", "node_count": 2}, 3),
        ({"tres_per_task": "gres:gpu:1", "tasks": 4, "node_count": 2}, 2),
        ({"tres_req_str": "cpu=1,gres/gpu=8", "node_count": 2}, 4),
        ({"tres_per_node": "gres:gpu:2", "tres_req_str": "gres/gpu=8", "node_count": 4}, 2),
        ({}, 0),
    ],
)
def test_gpus_per_node(data: dict[str, Any], per_node: int) -> None:
    assert parse.job({"job_id": 1, "job_state": "PENDING", **data}).gpus_per_node == per_node


@pytest.mark.parametrize(
    ("data", "name_id"),
    [
        ({}, "9"),
        ({"array_job_id": 7, "array_task_id": 0}, "7_0"),
        ({"array_job_id": 0, "array_task_id": None}, "9"),
        (
            {
                "array_job_id": {"set": True, "infinite": False, "number": 7},
                "array_task_id": {"set": True, "infinite": False, "number": 3},
            },
            "7_3",
        ),
        ({"array_job_id": 7, "array_task_id": None, "array_task_string": "2-5%1"}, "7_[2-5%1]"),
        ({"het_job_id": 8, "het_job_offset": 1}, "8+1"),
        ({"het_job_id": 0, "het_job_offset": 0}, "9"),
    ],
)
def test_the_id_that_users_type(data: dict[str, Any], name_id: str) -> None:
    assert parse.job({"job_id": 9, "job_state": "PENDING", **data}).name_id == name_id


@pytest.mark.parametrize(
    ("value", "ended"),
    [
        (0, (0, 0)),
        (1792, (7, 0)),
        (9, (0, 9)),
        (32768, (128, 0)),
        (
            {
                "status": ["SIGNALED"],
                "return_code": {"set": False},
                "signal": {"id": {"set": True, "number": 15}, "name": "TERM"},
            },
            (0, 15),
        ),
        ({"status": ["SIGNALED"], "return_code": 0, "signal": {"signal_id": 9, "name": "KILL"}}, (0, 9)),
        ({"status": ["ERROR"], "return_code": {"set": True, "number": 7}, "signal": {"id": {"set": False}}}, (7, 0)),
        (None, (0, 0)),
    ],
)
def test_how_a_job_ended(value: Any, ended: tuple[int, int]) -> None:
    job = parse.job({"job_id": 1, "job_state": "FAILED", "exit_code": value})
    assert (job.exit_code, job.exit_signal) == ended


def test_one_unreadable_record_is_left_out_and_spoils_no_other() -> None:
    answer = json.loads(recorded("22.05.8", "jobs"))
    for broken in (
        None,
        [],
        {},
        {"job_id": 0, "job_state": "RUNNING"},
        {"job_id": 4},
        {"job_id": 4, "job_state": 7},
        {"job_id": 4, "job_state": "RUNNING", "nodes": "a[1-"},
    ):
        jobs = parse.parse_jobs(
            json.dumps({**answer, "jobs": [answer["jobs"][0], broken, answer["jobs"][1]]}), "squeue"
        )
        assert [j.job_id for j in jobs] == [1, 2], broken


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "slurm_load_jobs error: Unable to contact slurm controller",
        "[]",
        "null",
        "{}",
        '{"jobs": null}',
        '{"jobs": {}}',
        '{"jobs": [], "errors": [{"error": "Failed while looking for jobs", "error_number": -1}]}',
        '{"jobs": [], "errors": ["x"]}',
        '{"jobs": [1, 2]}',
    ],
)
def test_a_broken_answer_is_unavailable_never_empty(text: str) -> None:
    with pytest.raises(SlurmUnavailable, match="squeue"):
        parse.parse_jobs(text, "squeue --json")


def test_no_jobs_is_an_answer() -> None:
    assert parse.parse_jobs('{"jobs": [], "errors": []}', "squeue") == ()


def test_control_characters_in_a_comment() -> None:
    (job,) = parse.parse_jobs('{"jobs": [{"job_id": 1, "job_state": "PENDING", "comment": "a\tb\x01c"}]}', "squeue")
    assert job.comment == "a\tb\x01c"


PARTITION = (
    "PartitionName=spot AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE DisableRootJobs=NO "
    "ExclusiveUser=NO GraceTime=10 Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED "
    "Nodes=spot-[1-3] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=REQUEUE "
    "State=UP TotalCPUs=6 TotalNodes=3 SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED"
)


def test_partitions() -> None:
    text = f"{PARTITION}\n\nPartitionName=empty Nodes=(null)\nNonsense\n"
    spot, empty = parse.parse_partitions(text, "scontrol show partition")
    assert (spot.name, spot.nodes, spot.grace_time, spot.default) == ("spot", ("spot-1", "spot-2", "spot-3"), 10, True)
    assert (spot.preempt_mode, spot.priority_tier) == ("REQUEUE", 1)
    assert (empty.nodes, empty.default, empty.preempt_mode) == ((), False, "OFF")
    assert parse.parse_partitions("No partitions in the system\n", "c") == ()
    with pytest.raises(SlurmUnavailable):
        parse.parse_partitions("slurm_load_partitions error\n", "c")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-10, 2**33)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["RUNNING", "a[1-", "n[1-3]"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["set", "infinite", "number", "id", "x"]), inner, max_size=4)
    ),
    max_leaves=6,
)
FIELDS = sorted(json.loads(recorded("24.11.5", "jobs"))["jobs"][0])
NODE_FIELDS = sorted(json.loads(recorded("24.11.5", "nodes"))["nodes"][0])


@given(changes=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
def test_whatever_a_job_holds_the_others_are_read(changes: dict[str, Any]) -> None:
    good = {"job_id": 77, "job_state": "PENDING"}
    odd = {**json.loads(recorded("24.11.5", "jobs"))["jobs"][0], **changes}
    jobs = parse.parse_jobs(json.dumps({"jobs": [odd, good]}), "squeue")
    assert jobs[-1].job_id == 77
    assert all(isinstance(j, Job) and j.states and all(isinstance(n, str) for n in j.nodes) for j in jobs)


@given(changes=st.dictionaries(st.sampled_from(NODE_FIELDS), VALUES, max_size=4))
def test_whatever_a_node_holds_the_others_are_read(changes: dict[str, Any]) -> None:
    good = {"name": "good", "state": "idle"}
    odd = {**json.loads(recorded("24.11.5", "nodes"))["nodes"][0], **changes}
    nodes = parse.parse_nodes(json.dumps({"nodes": [odd, good]}), "sinfo")
    assert nodes[-1].name == "good"
    assert all(isinstance(n, Node) and n.name and n.states for n in nodes)


@pytest.mark.parametrize("value", [1 << 64, -(1 << 64), 10**400, str(1 << 64), "9" * 5000, "²", 1e300])
def test_numbers_larger_than_any_of_slurms(value: Any) -> None:
    with pytest.raises(ValueError):
        parse.number(value)
    with pytest.raises(ValueError):
        parse.number({"set": True, "infinite": False, "number": value})


def test_gpus_that_no_node_has() -> None:
    assert parse.gpus("gres:gpu:" + "9" * 400) == 0


def test_an_answer_that_is_too_deep_is_unavailable() -> None:
    with pytest.raises(SlurmUnavailable, match="not JSON"):
        parse.parse_jobs('{"jobs":' + "[" * 20_000, "squeue")


def test_when_slurmctld_began_is_told_in_this_machines_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        text = "Configuration data as of 2026-07-01T14:00:05\nBOOT_TIME               = {}\nHASH_VAL = Match\n"
        began = text.format("2026-07-01T14:00:00")
        assert parse.slurmctld_start(began) == Start(1_782_907_200.0)
        assert parse.slurmctld_start(f"{began}HealthCheckProgram = (null)\n") == Start(1_782_907_200.0)
        assert parse.slurmctld_start(f"{began}HealthCheckProgram = /usr/sbin/nhc\n").health_check
        for said in ("", "N/A", "Unknown", "2026-13-01T00:00:00", "12:00"):
            with pytest.raises(SlurmUnavailable, match="BOOT_TIME"):
                parse.slurmctld_start(text.format(said))
        with pytest.raises(SlurmUnavailable, match="BOOT_TIME"):
            parse.slurmctld_start("Slurmctld(primary) at here is UP")
    finally:
        monkeypatch.undo()
        time.tzset()
