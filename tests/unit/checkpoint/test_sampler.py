"""The order of samples and the place in it."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from job_wrapper.checkpoint import ResumableSampler
from job_wrapper.errors import ConfigChanged, UsageError


def flat(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def one_epoch(sampler: ResumableSampler) -> list[list[int]]:
    batches = []
    for batch in sampler:
        batches.append(batch)
        sampler.advance()
    return batches


@given(length=st.integers(1, 60), batch=st.integers(1, 9), seed=st.integers(), shuffle=st.booleans())
def test_each_sample_once_an_epoch(length: int, batch: int, seed: int, shuffle: bool) -> None:
    sampler = ResumableSampler(length, seed=seed, batch_size=batch, shuffle=shuffle)
    for epoch in range(3):
        batches = one_epoch(sampler)
        assert sampler.epoch == epoch
        assert len(batches) == len(sampler)
        order = flat(batches)
        assert sorted(order) == list(range(length))
        assert shuffle or order == list(range(length))


def test_epochs_differ_and_seeds_differ() -> None:
    orders = set()
    for seed in (0, 1):
        sampler = ResumableSampler(50, seed=seed, batch_size=50)
        orders |= {tuple(one_epoch(sampler)[0]) for _ in range(3)}
    assert len(orders) == 6


@given(length=st.integers(1, 60), batch=st.integers(1, 7), world=st.integers(1, 5), drop=st.booleans())
def test_ranks_share_each_epoch(length: int, batch: int, world: int, drop: bool) -> None:
    if drop and length < batch * world:
        with pytest.raises(UsageError, match="don't fill one batch"):
            ResumableSampler(length, seed=1, batch_size=batch, drop_last=True, world_size=world)
        return
    shares = [
        one_epoch(ResumableSampler(length, seed=1, batch_size=batch, drop_last=drop, rank=r, world_size=world))
        for r in range(world)
    ]
    assert len({len(share) for share in shares}) == 1
    assert all(batch for share in shares for batch in share)
    count = Counter(i for share in shares for batch in share for i in batch)
    if drop:
        assert set(count.values()) == {1}
        assert sum(count.values()) == length // (batch * world) * batch * world
    else:
        assert set(count) == set(range(length))
        last = length % (batch * world)
        assert sum(count.values()) - length == (world - last if 0 < last < world else 0)


@given(length=st.integers(1, 40), batch=st.integers(1, 7), stop=st.integers(0, 60), ahead=st.integers(0, 8))
def test_resume_goes_on_where_steps_had_come(length: int, batch: int, stop: int, ahead: int) -> None:
    def stream(sampler: ResumableSampler, epochs: int) -> list[list[int]]:
        return [batch for _ in range(sampler.epoch, epochs) for batch in one_epoch(sampler)]

    epochs = stop // -(-length // batch) + 2
    whole = stream(ResumableSampler(length, seed=3, batch_size=batch), epochs)
    first = ResumableSampler(length, seed=3, batch_size=batch)
    done: list[list[int]] = []
    while len(done) < stop:
        fetched: list[list[int]] = []
        for number, one in enumerate(first):
            fetched.append(one)
            if number < ahead:
                continue  # the loader fetches ahead
            done.append(fetched.pop(0))
            first.advance()
            if len(done) == stop:
                break
        while fetched and len(done) < stop:
            done.append(fetched.pop(0))
            first.advance()
    second = ResumableSampler(length, seed=3, batch_size=batch)
    second.load_state_dict(first.state_dict())
    assert done + stream(second, epochs) == whole


def test_the_end_of_an_epoch_comes_once_also_after_a_resume() -> None:
    first = ResumableSampler(6, seed=1, batch_size=2)
    one_epoch(first)
    second = ResumableSampler(6, seed=1, batch_size=2)
    second.load_state_dict(first.state_dict())
    assert second.epoch == 0
    assert list(second) == []  # what the program does after an epoch's last batch is still to come
    assert second.epoch == 0
    assert one_epoch(second) == one_epoch(first)
    assert second.epoch == 1


def test_a_loop_that_is_left_goes_on() -> None:
    sampler = ResumableSampler(8, seed=1, batch_size=2)
    order = sampler.order(0).view(4, 2).tolist()
    taken = []
    for batch in sampler:
        taken.append(batch)
        sampler.advance()
        break
    assert taken == order[:1]
    assert one_epoch(sampler) == order[1:]


def test_set_epoch_as_other_samplers_have_it() -> None:
    sampler = ResumableSampler(8, seed=1, batch_size=2)
    sampler.set_epoch(2)
    assert flat(one_epoch(sampler)) == sampler.order(2).tolist()
    halfway = ResumableSampler(8, seed=1, batch_size=2)
    halfway.load_state_dict(sampler.state_dict() | {"consumed": 10})
    halfway.set_epoch(halfway.epoch)  # at the head of a loop over epochs: must not go back to its start
    assert flat(one_epoch(halfway)) == sampler.order(2).tolist()[4:]


def test_several_batches_a_step() -> None:
    sampler = ResumableSampler(10, seed=1, batch_size=1)
    batches = iter(sampler)
    for _ in range(2):
        for _ in range(4):
            next(batches)
        sampler.advance(4)
    other = ResumableSampler(10, seed=1, batch_size=1)
    other.load_state_dict(sampler.state_dict())
    assert flat(one_epoch(other)) == sampler.order(0).tolist()[8:]


def test_batches_that_no_step_told_of_are_noticed() -> None:
    sampler = ResumableSampler(6, seed=1, batch_size=1)
    for number, _ in enumerate(sampler):
        if number % 2:
            sampler.advance()  # should be advance(2)
    with pytest.raises(UsageError, match=r"3 of its batches.*step\(batches=N\)"):
        next(iter(sampler))


def test_more_steps_than_batches_are_noticed() -> None:
    sampler = ResumableSampler(6, seed=1, batch_size=1)
    with pytest.raises(UsageError, match="the loader gave out 0"):
        sampler.advance()


@pytest.mark.parametrize(
    "changed",
    [{"length": 9}, {"seed": 2}, {"batch_size": 3}, {"shuffle": False}, {"drop_last": True}, {"world_size": 2}],
)
def test_a_place_in_another_order_is_refused(changed: dict[str, Any]) -> None:
    def make(length: int = 8, seed: int = 1, batch_size: int = 2, **more: Any) -> ResumableSampler:
        return ResumableSampler(length, seed=seed, batch_size=batch_size, **more)

    first = make()
    next(iter(first))
    first.advance()
    name = next(iter(changed))
    with pytest.raises(ConfigChanged, match=f"{name}: .* in the checkpoint, .* now"):
        make(**changed).load_state_dict(first.state_dict())


def test_another_shuffling_algorithm_is_refused() -> None:
    sampler = ResumableSampler(8, seed=1, batch_size=2)
    with pytest.raises(ConfigChanged, match="in another order"):
        ResumableSampler(8, seed=1, batch_size=2).load_state_dict(sampler.state_dict() | {"order": "0" * 32})


def test_an_iterator_made_before_the_restore_is_refused() -> None:
    sampler = ResumableSampler(8, seed=1, batch_size=2)
    state = sampler.state_dict()
    next(iter(sampler))
    with pytest.raises(UsageError, match="make the Checkpointer first"):
        sampler.load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": 0}, "length is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2.0}, "batch_size is 2.0"),
        ({"rank": 2, "world_size": 2}, "rank 2"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ResumableSampler(**({"data": 4, "seed": 1, "batch_size": 1} | arguments))


def test_a_program_that_came_to_its_end_is_resumed_after_it() -> None:
    first = ResumableSampler(6, seed=1, batch_size=2)
    one_epoch(first)
    first.leave()
    second = ResumableSampler(6, seed=1, batch_size=2)
    second.load_state_dict(first.state_dict())
    assert second.epoch == 1, "nothing is left to do of two epochs' first"
    assert one_epoch(second) == one_epoch(first)


def test_a_program_that_leaves_in_the_middle_of_an_epoch_is_resumed_there() -> None:
    first = ResumableSampler(6, seed=1, batch_size=2)
    batches = iter(first)
    done = [next(batches)]
    first.advance()
    first.leave()
    second = ResumableSampler(6, seed=1, batch_size=2)
    second.load_state_dict(first.state_dict())
    assert second.epoch == 0
    assert done + one_epoch(second) == one_epoch(ResumableSampler(6, seed=1, batch_size=2))
