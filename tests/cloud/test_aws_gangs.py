"""aws: gangs that are alike share a fleet while there is room for all, and come one by one, each whole, while there is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugin.cloud import launch_ids
from slurm_plugin.cloud.aws import gangs, names
from slurm_plugin.cloud.aws.errors import ApiError
from slurm_plugin.cloud.provider import Launched, LaunchRequest, Market, Offering
from tests.cloud.stage import patiently
from tests.fixtures.ec2_stage import Ec2Stage

OFFERING = Offering("ec2", "eu-west-1", "eu-west-1a", "g5.xlarge", Market.SPOT)


def jobs(sizes: Sequence[int], offering: Offering) -> list[LaunchRequest]:
    """Requests of one batch: a gang of each size."""
    ids = iter(launch_ids.batch(sum(sizes)))
    return [
        LaunchRequest(next(ids), f"spot-{gang}-{n}", "spot", offering, {}, gang=f"g{gang}")
        for gang, size in enumerate(sizes)
        for n in range(size)
    ]


@settings(max_examples=150)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=30), st.integers(0, 150))
def test_gangs_come_whole_and_as_long_as_there_is_room(sizes: list[int], room: int) -> None:
    """Whatever there is room for: none is cut, each is answered once, none that fits is left out, and few calls are made for nothing."""
    [groups] = gangs.alike(jobs(sizes, OFFERING))
    came: list[LaunchRequest] = []
    refused: list[LaunchRequest] = []
    sent: list[int] = []

    def send(some: list[LaunchRequest], trial: bool) -> ApiError | None:
        sent.append(len(some))
        if len(some) <= room - len(came):
            came.extend(some)
            return None
        if not trial:
            refused.extend(some)
        return ApiError("InsufficientInstanceCapacity", "none")

    refused += [request for request, _ in gangs.ask(groups, send)]
    assert Counter(r.launch_id for r in came + refused) == Counter(r.launch_id for group in groups for r in group)
    assert not {r.gang for r in came} & {r.gang for r in refused}
    left = room - len(came)
    assert all(size > left for size in Counter(r.gang for r in refused).values())
    if sum(sizes) <= room:
        assert sent == [sum(sizes)]
    elif room < min(sizes) == max(sizes):
        assert len(sent) <= len(sizes).bit_length() + 1


def test_many_jobs_are_one_fleet_and_share_their_tags(ec2: Ec2Stage) -> None:
    wanted = jobs([4] * 12, ec2.offering())
    assert [type(a) for a in ec2.provider.launch(wanted)] == [Launched] * 48
    assert ec2.server.calls.count("CreateFleet") == 1
    assert ec2.server.calls.count("CreateTags") == 15, "ten digits of one kind, five of the other"
    assert sorted(ec2.living().values()) == sorted(r.node for r in wanted)


def test_two_batches_share_the_calls_that_name_them(ec2: Ec2Stage) -> None:
    wanted = jobs([12], ec2.offering()) + jobs([13], ec2.offering())
    patiently(ec2, wanted)
    assert ec2.server.calls.count("CreateFleet") == 2
    assert ec2.server.calls.count("CreateTags") == 12
    told = [names.read(ec2.server.tags(m)) for m in ec2.server.instances()]
    assert sorted(t for t in told if t) == sorted((r.launch_id, r.node) for r in wanted)


def test_where_there_is_too_little_each_comes_whole_or_not_at_all(ec2: Ec2Stage) -> None:
    """Room for seven: gangs of 4, 2 and 1 more than fits. The same after a restart, which makes none twice."""
    ec2.limit(ec2.offering(), 7)
    wanted = jobs([4, 2, 4, 3, 2], ec2.offering())
    answers = patiently(ec2, wanted)
    came = [r for r, a in zip(wanted, answers, strict=True) if isinstance(a, Launched)]
    sizes = Counter(r.gang for r in wanted)
    assert all(Counter(r.gang for r in came)[gang] in (0, size) for gang, size in sizes.items())
    assert 6 <= len(came) <= 7
    assert sorted(ec2.living().values()) == sorted(r.node for r in came)
    made = len(ec2.server.instances())
    ec2.restart()
    assert ec2.provider.launch(wanted) == answers
    assert len(ec2.server.instances()) == made
    assert len(came) == made, "nothing is made to be ended at once"
