"""What every provider must do, whatever cloud is behind it: ``class TestMine(…Contract)`` with a fixture ``stage``.

``ProviderContract`` is for all; the others add what is asked of stages that can do more (``stage.py``). A test class takes up every part
that its stage is for, which the first test checks, so nothing here is ever skipped.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Collection

import pytest

from slurm_plugin.cloud.provider import InstanceState, Launched, LaunchRequest, Market, RefusalKind, Refused
from slurm_plugin.errors import CloudUnavailable
from tests.cloud.stage import (
    NamedStage,
    ReclaimingStage,
    RemoteStage,
    Stage,
    listed,
    patiently,
    requests,
    terminated,
    wait_for,
    with_faults,
)

ALIVE = (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.RECLAIMING)


class ProviderContract:
    """For every stage."""

    never: Collection[RefusalKind] = ()
    """What this cloud refuses no launch for. A kind that is not here is tested."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """pytest's own hook."""
        if "kind" in metafunc.fixturenames:
            metafunc.parametrize("kind", [kind for kind in RefusalKind if kind not in self.never])

    def test_every_part_that_is_for_the_stage_is_taken_up(self, stage: Stage) -> None:
        for kind, part in PARTS.items():
            assert isinstance(self, part) == isinstance(stage, kind), part

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


class ReclaimContract(ProviderContract):
    """For stages whose reclaims show in the listing."""

    def test_a_reclaim_is_told_under_one_id(self, stage: ReclaimingStage) -> None:
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


class RemoteContract(ProviderContract):
    """For stages behind an API that others use too."""

    def test_a_lost_answer_is_found_again(self, stage: RemoteStage) -> None:
        stage.lose_answers(1)
        asked = requests(stage, ["spot-1", "spot-2"])
        answers = patiently(stage, asked)
        assert [type(a) for a in answers] == [Launched] * 2
        assert sorted(stage.living().values()) == ["spot-1", "spot-2"]

    def test_a_lost_answer_is_found_again_after_a_restart(self, stage: RemoteStage) -> None:
        stage.lose_answers(1)
        asked = requests(stage, ["spot-1", "spot-2"])
        with_faults(stage, asked)
        stage.restart()
        answers = patiently(stage, asked)
        assert [type(a) for a in answers] == [Launched] * 2
        assert sorted(stage.living().values()) == ["spot-1", "spot-2"]

    def test_throttling_is_no_answer_and_no_loss(self, stage: RemoteStage) -> None:
        asked = requests(stage, ["spot-1", "spot-2", "spot-3", "spot-4"])
        stage.throttle(3)
        answers = patiently(stage, asked, tries=200)
        assert [type(a) for a in answers] == [Launched] * 4
        stage.throttle(3)
        assert set(listed(stage)) == {r.launch_id for r in asked}
        stage.throttle(2)
        wait_for(lambda: terminated(stage, answers))
        assert wait_for(lambda: not stage.living())

    def test_a_listing_that_breaks_off_is_unknown(self, stage: RemoteStage) -> None:
        patiently(stage, requests(stage, ["spot-1", "spot-2", "spot-3"]))
        stage.break_listing()
        with pytest.raises(CloudUnavailable):
            stage.provider.instances()
        assert len(listed(stage)) == 3

    def test_a_machine_that_the_listing_lacks_at_first_is_pending(self, stage: RemoteStage) -> None:
        stage.lag(3600.0)
        asked = requests(stage, ["spot-1", "spot-2"])
        answers = patiently(stage, asked)
        assert [type(a) for a in answers] == [Launched] * 2
        assert {r: listed(stage)[r].state for r in listed(stage)} == {r.launch_id: InstanceState.PENDING for r in asked}
        stage.restart()
        assert set(listed(stage)) == {r.launch_id for r in asked}
        stage.lag(0.0)
        wait_for(lambda: terminated(stage, answers))
        wait_for(lambda: terminated(stage, answers) and not stage.living())

    def test_a_stopped_spot_machine_is_lost_and_still_to_be_deleted(self, stage: RemoteStage) -> None:
        [request] = requests(stage, ["spot-1"])
        [launched] = patiently(stage, [request])
        assert isinstance(launched, Launched)
        stage.stop(launched.instance_id)
        machine = wait_for(lambda: (m := listed(stage)[request.launch_id]).state is InstanceState.GONE and m)
        assert machine.billed
        stage.provider.terminate([launched.instance_id])
        wait_for(lambda: not any(i.billed for i in listed(stage).values()))

    def test_machines_of_other_clusters_are_not_ours(self, stage: RemoteStage) -> None:
        other = stage.foreign()
        patiently(stage, requests(stage, ["spot-1"]))
        assert other not in {i.instance_id for i in stage.provider.instances()}


class NamesContract(RemoteContract):
    """For stages whose machines are called as their nodes."""

    def test_stopped_namesake_is_deleted_before_its_name_serves_again(self, stage: NamedStage) -> None:
        [first] = patiently(stage, requests(stage, ["spot-1"]))
        assert isinstance(first, Launched)
        stage.stop(first.instance_id)
        again = requests(stage, ["spot-1"])
        [told] = stage.provider.launch(again)
        assert isinstance(told, Refused)
        assert (told.kind, told.code) == (RefusalKind.TRY_LATER, "NameInUse")
        [second] = patiently(stage, again, tries=100)
        assert isinstance(second, Launched)
        assert list(stage.living()) == [second.instance_id]
        stage.provider.terminate([first.instance_id])
        assert list(stage.living()) == [second.instance_id], "the earlier machine's id does not end its successor"

    def test_somebody_elses_machine_of_that_name_is_a_mistake_and_stays(self, stage: NamedStage) -> None:
        other = stage.other()
        [theirs] = other.launch(requests(stage, ["spot-1"]))
        assert isinstance(theirs, Launched)
        fine, taken = patiently(stage, requests(stage, ["spot-2", "spot-1"]))
        assert isinstance(fine, Launched)
        assert isinstance(taken, Refused)
        code, words = stage.taken
        assert (taken.kind, taken.code) == (RefusalKind.MISTAKE, code)
        assert words in taken.text
        assert list(stage.living()) == [fine.instance_id]
        assert [(i.instance_id, i.state) for i in other.instances()] == [(theirs.instance_id, InstanceState.RUNNING)]

    def test_name_that_no_machine_can_have(self, stage: NamedStage) -> None:
        bad, good = stage.provider.launch(requests(stage, ["Spot_1", "spot-1"]))
        assert isinstance(bad, Refused)
        assert bad.kind is RefusalKind.MISTAKE
        assert "'Spot_1'" in bad.text
        assert isinstance(good, Launched)
        refused = stage.provider.launch(requests(stage, ["Spot_2", "spot-2"], gang="g"))
        assert [a.kind for a in refused if isinstance(a, Refused)] == [RefusalKind.MISTAKE] * 2

    @pytest.mark.parametrize("left", [None, "[7", '{"request_id": 7'], ids=["nothing", "list", "object"])
    def test_journal_that_is_lost_makes_no_second_machine(self, stage: NamedStage, left: str | None) -> None:
        wanted = requests(stage, ["spot-1", "spot-2"])
        first = stage.provider.launch(wanted)
        calls = stage.cloud.makings
        files = list(stage.state.rglob("*.json"))
        assert files
        if left is None:
            shutil.rmtree(stage.state)
        else:
            for path in files:
                path.write_text(left)
        stage.restart()
        assert stage.provider.launch(wanted) == first
        assert (len(stage.living()), stage.cloud.makings) == (2, calls)

    def test_a_launch_that_takes_long_is_taken_up_again(self, stage: NamedStage) -> None:
        stage.impatient()
        stage.cloud.latency = 3600.0
        wanted = requests(stage, ["spot-1"])
        [told] = stage.provider.launch(wanted)
        code, state = stage.under_way
        assert isinstance(told, Refused)
        assert (told.kind, told.code) == (RefusalKind.TRY_LATER, code)
        assert listed(stage)[wanted[0].launch_id].state is state
        stage.restart()
        stage.done()
        assert [type(a) for a in patiently(stage, wanted, tries=200)] == [Launched]
        assert stage.cloud.makings == 1

    def test_gang_of_which_one_is_put_off_is_completed(self, stage: NamedStage) -> None:
        stage.refuse(RefusalKind.TRY_LATER)
        wanted = requests(stage, ["spot-1", "spot-2", "spot-3"], gang="g")
        told = stage.provider.launch(wanted)
        assert [a.kind for a in told if isinstance(a, Refused)] == [RefusalKind.TRY_LATER] * 3, "none before all"
        stage.restart()
        assert [type(a) for a in patiently(stage, wanted)] == [Launched] * 3
        assert sorted(stage.living().values()) == ["spot-1", "spot-2", "spot-3"]

    def test_listing_of_many_pages(self, stage: NamedStage) -> None:
        assert stage.cloud.page < 4
        wanted = requests(stage, [f"spot-{n}" for n in range(7)])
        answers = patiently(stage, wanted)
        assert set(listed(stage)) == {r.launch_id for r in wanted}
        stage.provider.terminate([a.instance_id for a in answers if isinstance(a, Launched)])
        wait_for(lambda: not stage.provider.instances())


PARTS: dict[type, type[ProviderContract]] = {
    Stage: ProviderContract,
    ReclaimingStage: ReclaimContract,
    RemoteStage: RemoteContract,
    NamedStage: NamesContract,
}


def faults_of(stage: Stage) -> list[Callable[[], None]]:
    """What can be ordered of this stage."""
    orders: list[Callable[[], None]] = []
    if isinstance(stage, RemoteStage):
        orders += [lambda: stage.lose_answers(1), lambda: stage.throttle(2)]
    return [*orders, lambda: stage.refuse(RefusalKind.NO_CAPACITY), lambda: stage.refuse(RefusalKind.TRY_LATER)]
