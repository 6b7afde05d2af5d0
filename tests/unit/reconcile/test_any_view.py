"""What must hold for any view whatever, however its parts contradict one another."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.actions import Action, Adopt, Close, Launch, PowerDown, Resume, Retire, SetDown, Terminate, Undrain
from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.ledger_records import Intent, IntentState
from slurm_plugin.reconcile import View, decide
from slurm_plugin.reconcile.view import BootFacts
from slurm_plugin.requests import Request
from slurm_plugin.slurm.records import Node
from tests.unit.reconcile.views import NOW, A, B, cooled, intent, job, machine, view

LIVE, ASKED, RETIRED = IntentState.LIVE, IntentState.ASKED, IntentState.RETIRED
GONE = InstanceState.GONE

FLAGS = ["IDLE", "ALLOCATED", "MIXED", "DOWN", "ERROR", "UNKNOWN", "FUTURE", "CLOUD", "DRAIN", "FAIL", "COMPLETING", "POWERED_DOWN",
         "POWERING_DOWN", "POWERING_UP", "POWER_UP", "POWER_DOWN", "NOT_RESPONDING", "MAINT", "RESERVED", "PLANNED", "INVALID_REG",
         "REBOOT_ISSUED", "BLOCKED", "SOMETHING_NEW"]  # fmt: skip
REASONS = ["", "spotburst: x", "spotburst: no capacity: x", "spotburst: aws reclaim by 2026-05-02T08:22:00Z", "Not responding",
           "ResumeTimeout reached", "Ann", "spotburst: aws reclaim by not a time"]  # fmt: skip


@st.composite
def views(draw: st.DrawFn) -> View:
    nodes: list[Node] = []
    intents: list[Intent] = []
    machines = []
    for name in ("n1", "n2", "b1"):
        nodes.append(
            Node(
                name,
                draw(st.frozensets(st.sampled_from(FLAGS), min_size=1)),
                draw(st.sampled_from(REASONS)),
                partitions=("spot",),
            )
        )
        for k in range(draw(st.integers(0, 2))):
            i = intent(
                name,
                draw(st.sampled_from([ASKED, LIVE, RETIRED])),
                draw(st.sampled_from([1.0, 20.0, 500.0])),
                f"{name}-{k}",
                registered=draw(st.sampled_from([0.0, NOW - 1.0])),
            )
            if draw(st.booleans()):
                intents.append(i)
            if draw(st.booleans()):
                state = draw(st.sampled_from(list(InstanceState)))
                machines.append(
                    machine(
                        i,
                        state,
                        billed=draw(st.booleans()) if state is GONE else True,
                        deadline=draw(st.none() | st.just(NOW)),
                    )
                )
    jobs = [
        job(
            n,
            draw(st.sampled_from(["RUNNING", "PENDING", "PENDING COMPLETING", "RUNNING CONFIGURING", "COMPLETED", "FAILED", "SUSPENDED"])),
            draw(st.sampled_from([(), ("n1",), ("n1", "b1"), ("elsewhere",)])),
            reason=draw(st.sampled_from(["None", "BeginTime", "BadConstraints", "launch_failed_requeued_held"])),
            restart_count=draw(st.integers(0, 2)),
            priority=draw(st.sampled_from([0, 10])),
            preempt_time=draw(st.sampled_from([0, int(NOW) - 500])),
            eligible_time=int(NOW) + draw(st.sampled_from([-5, 100, 9999])),
            submit_time=int(NOW) - 10,
            features=draw(st.sampled_from(["", "spot", "fast&big", "[a*2]"])),
        )
        for n in range(1, draw(st.integers(1, 4)))
    ]  # fmt: skip
    names = st.sampled_from(["n1", "n2", "b1"])
    return view(
        nodes, jobs, intents, machines,
        cloud=draw(st.booleans()),
        offerings=draw(st.sampled_from([{}, cooled(A.id), cooled(A.id, B.id)])),
        silent_since=draw(st.dictionaries(names, st.sampled_from([NOW - 5, NOW - 30, NOW - 100]))),
        own_network_suspect=draw(st.booleans()),
        boots=BootFacts(
            draw(st.sampled_from([None, NOW - 300, NOW - 10])),
            draw(st.sampled_from([None, NOW - 200])),
            draw(st.dictionaries(st.sampled_from(["n1-0", "n2-0", "n2-1"]), st.sampled_from([NOW - 5, NOW - 190]))),
        ),
        missing_since={i.launch_id: NOW - 100 for i in intents},
        requests=tuple(
            Request(draw(st.sampled_from(["resume", "suspend", "resume_fail"])), (draw(names),), NOW - draw(st.sampled_from([1.0, 100.0])), Path(str(k)))
            for k in range(draw(st.integers(0, 2)))
        ),
        known_nodes=draw(st.sampled_from([None, {}, {n.name: n for n in nodes}])),
        known_jobs=draw(st.sampled_from([None, tuple(jobs)])),
    )  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(views())
def test_whatever_the_view_deciding_never_raises_nor_contradicts_itself(v: View) -> None:
    actions = decide(v)
    assert actions == decide(v)
    assert len(set(actions)) == len(actions)
    launched = [a.node for a in actions if isinstance(a, Launch)]
    assert len(launched) == len(set(launched))
    listed = [] if v.clouds["sim"] is None else v.clouds["sim"].instances
    living = {m.node for m in listed if m.state is not GONE or m.billed}
    for a in actions:
        if isinstance(a, Launch):
            assert a.node not in living
            assert v.clouds["sim"] is not None
            assert v.nodes is not None
            assert "POWERING_UP" in v.nodes[a.node].states
        if isinstance(a, Resume):
            assert a.node not in living
    ended = {a.launch_id for a in actions if isinstance(a, Terminate | Retire)}
    assert not ended & {a.launch_id for a in actions if isinstance(a, Launch)}
    assert not ended & {a.launch_id for a in actions if isinstance(a, Close)}
    for kind in (SetDown, PowerDown, Resume, Undrain):
        names = [a.node for a in actions if isinstance(a, kind)]
        assert len(names) == len(set(names)), kind
    downs = {a.node for a in actions if isinstance(a, SetDown)}
    assert not downs & {a.node for a in actions if isinstance(a, Resume | Launch)}
    if v.nodes is None:
        assert not [
            a
            for a in actions
            if isinstance(a, Launch | SetDown | PowerDown | Resume | Terminate) and not _retired(v, a)
        ]
    if v.clouds["sim"] is None:
        assert not [a for a in actions if isinstance(a, Launch | Close | Adopt | Terminate)]


def _retired(v: View, action: Action) -> bool:
    return isinstance(action, Terminate) and any(
        i.launch_id == action.launch_id and (i.state is RETIRED or len([x for x in v.intents if x.node == i.node]) > 1)
        for i in v.intents
    )
