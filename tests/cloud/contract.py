"""What every provider must do, whatever cloud is behind it: ``class TestMine(ProviderContract)`` with a fixture ``stage``.

The stage is the cloud with levers: what its own records say (``living``), and faults to order. A lever that a cloud has no way to pull
stays as it is here, and the tests that need it are skipped by name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from slurm_plugin.cloud import launch_ids
from slurm_plugin.cloud.provider import (
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Market,
    Offering,
    Provider,
    RefusalKind,
    Refused,
)
from slurm_plugin.errors import CloudUnavailable


class Stage:
    """A provider and its cloud. Subclasses set ``provider`` and override what their cloud can do."""

    provider: Provider
    nodeset = "spot"

    def offering(self, market: Market = Market.SPOT) -> Offering:
        """One that can be bought without limit until ``limit`` says otherwise."""
        raise NotImplementedError

    def restart(self) -> None:
        """A new provider object, as after the manager was killed."""
        raise NotImplementedError

    def living(self) -> dict[str, str]:
        """By the cloud's own records: machines of this cluster that are paid for and not on their way out, instance id to node."""
        raise NotImplementedError

    def node_config(self, node: str) -> dict[str, Any]:
        """What the request carries for the node."""
        return {"cluster": "test", "node": node, "nodeset": self.nodeset}

    # Levers. ``_no`` skips the test.

    def limit(self, offering: Offering, count: int) -> None:
        """At most so many machines of it at a time."""
        _no("capacity")

    def refuse(self, kind: RefusalKind) -> None:
        """The next launch is refused so, as this cloud says it."""
        _no("refusals")

    def unreachable(self, on: bool) -> None:
        """Nothing answers."""
        _no("an unreachable API")

    def lose_answers(self, count: int) -> None:
        """The next launch calls take effect, and their answers are lost."""
        _no("lost answers")

    def throttle(self, count: int) -> None:
        """The next calls, of any kind, are refused for their rate."""
        _no("throttling")

    def lag(self, seconds: float) -> None:
        """Machines are missing from listings for so long after they were made."""
        _no("late listings")

    def break_listing(self) -> None:
        """The next listing fails after its first page, or in its middle."""
        _no("a listing that breaks off")

    def reclaim(self, instance_id: str) -> None:
        """The cloud announces that it takes the machine back."""
        _no("reclaims in the listing")

    def stop(self, instance_id: str) -> None:
        """The cloud stops the machine without deleting it (a spot machine taken back so)."""
        _no("stopped machines")

    def vanish(self, instance_id: str) -> None:
        """The machine is gone without notice."""
        _no("machines that vanish")

    def foreign(self) -> str:
        """A machine of another cluster; its instance id."""
        _no("machines of other clusters")
        return ""


def _no(what: str) -> None:
    pytest.skip(f"this stage has no {what}")


def requests(
    stage: Stage, nodes: Sequence[str], *, market: Market = Market.SPOT, gang: str | None = None
) -> list[LaunchRequest]:
    """One batch, as the manager asks for it."""
    return [
        LaunchRequest(launch_id, node, stage.nodeset, stage.offering(market), stage.node_config(node), gang)
        for launch_id, node in zip(launch_ids.batch(len(nodes)), nodes, strict=True)
    ]


def patiently(stage: Stage, asked: Sequence[LaunchRequest], tries: int = 20) -> list[Launched | Refused]:
    """Ask as the manager does: what was put off, or not answered, is asked again with the same ids."""
    answers: dict[str, Launched | Refused] = {}
    for _ in range(tries):
        left = [r for r in asked if r.launch_id not in answers]
        if not left:
            break
        try:
            for answer in stage.provider.launch(left):
                if isinstance(answer, Launched) or answer.kind is not RefusalKind.TRY_LATER:
                    answers[answer.launch_id] = answer
        except CloudUnavailable:
            pass
        time.sleep(0.02)
    return [answers[r.launch_id] for r in asked]


def listed(stage: Stage, seconds: float = 10.0) -> dict[str, Instance]:
    """By launch id; asked again while the cloud does not answer."""
    until = time.monotonic() + seconds
    while True:
        try:
            return {i.launch_id: i for i in stage.provider.instances()}
        except CloudUnavailable:
            assert time.monotonic() < until, "no listing"
            time.sleep(0.05)


def wait_for(predicate: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Its value once it is true."""
    until = time.monotonic() + seconds
    while not (value := predicate()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
    return value


ALIVE = (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.RECLAIMING)


class ProviderContract:
    """Subclass it as ``TestX`` and give a fixture ``stage``."""

    def test_launched_machines_are_listed_with_whose_they_are(self, stage: Stage) -> None:
        asked = requests(stage, ["spot-1", "spot-2", "spot-3"])
        answers = stage.provider.launch(asked)
        assert [type(a) for a in answers] == [Launched] * 3
        assert [a.launch_id for a in answers] == [r.launch_id for r in asked], "in the order asked"
        seen = listed(stage)
        assert set(seen) == {r.launch_id for r in asked}
        for request, answer in zip(asked, answers, strict=True):
            machine = seen[request.launch_id]
            assert isinstance(answer, Launched)
            assert machine.instance_id == answer.instance_id
            assert (machine.node, machine.nodeset) == (request.node, request.nodeset)
            assert machine.offering_id == request.offering.id
            assert machine.state in ALIVE
            assert machine.billed
            assert abs(machine.launched - time.time()) < 60
        assert set(stage.living().values()) == {"spot-1", "spot-2", "spot-3"}

    @pytest.mark.parametrize("market", [Market.SPOT, Market.ON_DEMAND])
    def test_each_market_can_be_bought(self, stage: Stage, market: Market) -> None:
        [request] = requests(stage, ["spot-1"], market=market)
        [answer] = stage.provider.launch([request])
        assert isinstance(answer, Launched), answer
        assert listed(stage)[request.launch_id].offering_id == stage.offering(market).id

    def test_asking_again_makes_no_second_machine(self, stage: Stage) -> None:
        asked = requests(stage, ["spot-1", "spot-2", "spot-3"])
        first = stage.provider.launch(asked)
        assert stage.provider.launch(asked) == first
        assert stage.provider.launch(asked[1:2]) == first[1:2], "some of them are the same too"
        stage.restart()
        assert stage.provider.launch(asked[2:] + asked[:1]) == first[2:] + first[:1]
        assert len(stage.living()) == 3

    def test_a_lost_answer_is_found_again(self, stage: Stage) -> None:
        stage.lose_answers(1)
        asked = requests(stage, ["spot-1", "spot-2"])
        answers = patiently(stage, asked)
        assert [type(a) for a in answers] == [Launched] * 2
        assert sorted(stage.living().values()) == ["spot-1", "spot-2"]

    def test_a_lost_answer_is_found_again_after_a_restart(self, stage: Stage) -> None:
        stage.lose_answers(1)
        asked = requests(stage, ["spot-1", "spot-2"])
        with_faults(stage, asked)
        stage.restart()
        answers = patiently(stage, asked)
        assert [type(a) for a in answers] == [Launched] * 2
        assert sorted(stage.living().values()) == ["spot-1", "spot-2"]

    def test_a_gang_comes_whole_or_not_at_all(self, stage: Stage) -> None:
        stage.limit(stage.offering(), 2)
        refused = patiently(stage, requests(stage, ["spot-1", "spot-2", "spot-3"], gang="g"))
        assert [(a.kind if isinstance(a, Refused) else a) for a in refused] == [RefusalKind.NO_CAPACITY] * 3
        assert stage.living() == {}
        answers = patiently(stage, requests(stage, ["spot-1", "spot-2"], gang="g"))
        assert [type(a) for a in answers] == [Launched] * 2

    def test_without_a_gang_what_there_is_comes(self, stage: Stage) -> None:
        stage.limit(stage.offering(), 2)
        answers = patiently(stage, requests(stage, ["spot-1", "spot-2", "spot-3"]))
        refused = [a for a in answers if isinstance(a, Refused)]
        assert [a.kind for a in refused] == [RefusalKind.NO_CAPACITY]
        assert refused[0].code
        assert refused[0].text
        assert len(stage.living()) == 2
        stage.restart()
        assert len([i for i in listed(stage).values() if i.state in ALIVE]) == 2

    @pytest.mark.parametrize("kind", list(RefusalKind))
    def test_a_refusal_is_sorted_and_keeps_the_clouds_words(self, stage: Stage, kind: RefusalKind) -> None:
        stage.refuse(kind)
        [request] = requests(stage, ["spot-1"])
        try:
            [answer] = stage.provider.launch([request])
        except CloudUnavailable:
            assert kind is RefusalKind.TRY_LATER, "only the cloud's own trouble may leave all unanswered"
            [answer] = [Refused(request.launch_id, kind, "none", "none")]
        assert isinstance(answer, Refused), answer
        assert answer.kind is kind
        assert answer.code
        assert answer.text
        assert answer.permanent or kind is not RefusalKind.MISTAKE
        if kind is RefusalKind.TRY_LATER:
            assert [type(a) for a in patiently(stage, [request])] == [Launched]
        assert len(stage.living()) == (kind is RefusalKind.TRY_LATER)

    def test_an_unreachable_api_tells_nothing(self, stage: Stage) -> None:
        [request] = requests(stage, ["spot-1"])
        [launched] = patiently(stage, [request])
        assert isinstance(launched, Launched)
        stage.unreachable(True)
        with pytest.raises(CloudUnavailable):
            stage.provider.instances()
        with pytest.raises(CloudUnavailable):
            stage.provider.terminate([launched.instance_id])
        other = requests(stage, ["spot-2"])
        answer = with_faults(stage, other)
        assert answer is None or [a.kind for a in answer if isinstance(a, Refused)] == [RefusalKind.TRY_LATER]
        stage.unreachable(False)
        assert request.launch_id in listed(stage)

    def test_throttling_is_no_answer_and_no_loss(self, stage: Stage) -> None:
        asked = requests(stage, ["spot-1", "spot-2", "spot-3", "spot-4"])
        stage.throttle(3)
        answers = patiently(stage, asked, tries=200)
        assert [type(a) for a in answers] == [Launched] * 4
        stage.throttle(3)
        assert set(listed(stage)) == {r.launch_id for r in asked}
        stage.throttle(2)
        wait_for(lambda: terminated(stage, answers))
        assert wait_for(lambda: not stage.living())

    def test_a_listing_that_breaks_off_is_unknown(self, stage: Stage) -> None:
        patiently(stage, requests(stage, ["spot-1", "spot-2", "spot-3"]))
        stage.break_listing()
        with pytest.raises(CloudUnavailable):
            stage.provider.instances()
        assert len(listed(stage)) == 3

    def test_a_machine_that_the_listing_lacks_at_first_is_pending(self, stage: Stage) -> None:
        stage.lag(1.0)
        asked = requests(stage, ["spot-1", "spot-2"])
        answers = patiently(stage, asked)
        assert [type(a) for a in answers] == [Launched] * 2
        assert {r: listed(stage)[r].state for r in listed(stage)} == {r.launch_id: InstanceState.PENDING for r in asked}
        stage.restart()
        assert set(listed(stage)) == {r.launch_id for r in asked}
        wait_for(lambda: terminated(stage, answers))
        wait_for(lambda: terminated(stage, answers) and not stage.living())

    def test_terminate_passes_over_unknown_and_ended_ones(self, stage: Stage) -> None:
        answers = patiently(stage, requests(stage, ["spot-1", "spot-2"]))
        first, second = (a.instance_id for a in answers if isinstance(a, Launched))
        stage.provider.terminate([second])
        stage.provider.terminate(["i-00000000000000000", "../../etc", "", second, first, first])
        assert wait_for(lambda: not stage.living())
        stage.provider.terminate([first, second])
        stage.provider.terminate([])
        left = listed(stage)
        assert all(m.state in (InstanceState.STOPPING, InstanceState.GONE) for m in left.values())

    def test_an_ended_machines_launch_id_is_spent(self, stage: Stage) -> None:
        [request] = requests(stage, ["spot-1"])
        [launched] = patiently(stage, [request])
        assert isinstance(launched, Launched)
        stage.provider.terminate([launched.instance_id])
        wait_for(lambda: not stage.living())
        stage.provider.launch([request])
        assert stage.living() == {}

    def test_a_reclaim_is_told_under_one_id(self, stage: Stage) -> None:
        [request] = requests(stage, ["spot-1"])
        [launched] = patiently(stage, [request])
        assert isinstance(launched, Launched)
        wait_for(lambda: listed(stage)[request.launch_id].state is InstanceState.RUNNING)
        stage.reclaim(launched.instance_id)
        told = wait_for(lambda: [i for i in listed(stage).values() if i.state is InstanceState.RECLAIMING])[0]
        assert told.notice_id
        assert told.deadline is not None
        stage.restart()
        again = listed(stage)[request.launch_id]
        assert (again.notice_id, again.deadline) == (told.notice_id, told.deadline)

    def test_a_stopped_spot_machine_is_lost_and_still_to_be_deleted(self, stage: Stage) -> None:
        [request] = requests(stage, ["spot-1"])
        [launched] = patiently(stage, [request])
        assert isinstance(launched, Launched)
        stage.stop(launched.instance_id)
        machine = wait_for(lambda: (m := listed(stage)[request.launch_id]).state is InstanceState.GONE and m)
        assert machine.billed
        stage.provider.terminate([launched.instance_id])
        wait_for(lambda: not any(i.billed for i in listed(stage).values()))

    def test_a_machine_that_vanishes_is_gone(self, stage: Stage) -> None:
        asked = requests(stage, ["spot-1", "spot-2"])
        answers = patiently(stage, asked)
        assert isinstance(answers[0], Launched)
        stage.vanish(answers[0].instance_id)

        def gone() -> bool:
            seen = listed(stage).get(asked[0].launch_id)
            return seen is None or (seen.state is InstanceState.GONE and not seen.billed)

        wait_for(gone)
        assert listed(stage)[asked[1].launch_id].state in ALIVE

    def test_machines_of_other_clusters_are_not_ours(self, stage: Stage) -> None:
        other = stage.foreign()
        patiently(stage, requests(stage, ["spot-1"]))
        assert other not in {i.instance_id for i in stage.provider.instances()}

    @pytest.mark.parametrize("seed", range(3))
    def test_whatever_happens_no_machine_is_unknown_or_double(self, stage: Stage, seed: int) -> None:
        """Launches, retries, restarts and ends in any order with faults between: each launch id has one machine at most, all are listed."""
        dice = random.Random(seed)
        asked: list[LaunchRequest] = []
        machines: dict[str, str] = {}
        faults = faults_of(stage)
        for step in range(12):
            if faults and dice.random() < 0.5:
                dice.choice(faults)()
            if dice.random() < 0.6:
                names = [f"spot-{step}-{n}" for n in range(dice.randint(1, 3))]
                asked += requests(stage, names, gang=dice.choice([None, f"g{step}"]))
            picked = dice.sample(asked, min(len(asked), dice.randint(0, 4)))
            for answer in with_faults(stage, picked) or ():
                if isinstance(answer, Launched):
                    known = machines.setdefault(answer.launch_id, answer.instance_id)
                    assert known == answer.instance_id, "two machines for one launch id"
            if dice.random() < 0.2:
                stage.restart()
        for answer in patiently(stage, asked, tries=200):
            if isinstance(answer, Launched):
                assert machines.setdefault(answer.launch_id, answer.instance_id) == answer.instance_id
        seen = listed(stage)
        alive = {i.instance_id for i in seen.values() if i.billed}
        assert set(stage.living()) <= alive, "a machine runs that the listing does not show"
        nodes = list(stage.living().values())
        assert len(nodes) == len(set(nodes)), "two machines for one node"
        assert {i.launch_id for i in seen.values()} <= {r.launch_id for r in asked}


def with_faults(stage: Stage, asked: Sequence[LaunchRequest]) -> list[Launched | Refused] | None:
    """Ask once; None where the cloud gives no answer."""
    try:
        return stage.provider.launch(asked)
    except CloudUnavailable:
        return None


def terminated(stage: Stage, answers: Sequence[Launched | Refused]) -> bool:
    """Whether the call to end these went through."""
    try:
        stage.provider.terminate([a.instance_id for a in answers if isinstance(a, Launched)])
    except CloudUnavailable:
        return False
    return True


def faults_of(stage: Stage) -> list[Callable[[], None]]:
    """What can be ordered of this stage, without skipping."""
    orders: list[tuple[str, Callable[[], None]]] = [
        ("lose_answers", lambda: stage.lose_answers(1)),
        ("throttle", lambda: stage.throttle(2)),
        ("refuse", lambda: stage.refuse(RefusalKind.NO_CAPACITY)),
        ("refuse", lambda: stage.refuse(RefusalKind.TRY_LATER)),
    ]
    return [order for name, order in orders if getattr(type(stage), name) is not getattr(Stage, name)]
