"""A short round of tests/fuzz, the same each time: every reader of what comes from outside bears some of its examples
and of what is made of them."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.campaign import fuzz
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Target
from tests.fuzz.targets import all_targets

TARGETS = [target for target in all_targets() if target.name != "aws-api"]
"""To load EC2's model alone takes longer than all of the others."""
INPUTS = {
    "settings": 6,
    "hostlist": 10,
    "prices": 6,
    "run-folder": 6,
    "ledger": 10,
    "azure-api": 4,
    "gcp-api": 6,
}
"""Where they are slow; else 15."""


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_nothing_is_raised_and_nothing_is_lost(target: Target) -> None:
    done = fuzz(target, seed=1, inputs=INPUTS.get(target.name, 15))
    assert not done.faults, "\n".join(f"{f.kind}: {f.place}: {f.data!r}\n{f.told}" for f in done.faults.values())


def test_a_fault_is_found_and_told() -> None:
    """Else this would pass whatever the readers do."""

    def feed(data: bytes) -> None:
        assert data[:1] != b"}", "lost"
        if b"9" * 30 in data:
            raise OverflowError("too large")
        int(data.split(b":")[1][:1])

    target = Target("made", lambda _: feed, (b'{"a":1}', b'}"a":1}'), (ValueError, IndexError))
    found = {kind for kind, _ in fuzz(target, seed=1, inputs=300).faults}
    assert found == {"loss", "traceback"}


def test_the_same_seed_makes_the_same_inputs() -> None:
    one, other = (Mutator([b'{"a": [1, "x"]}', b"1:2"], random.Random("s")) for _ in range(2))
    assert [one.next() for _ in range(200)] == [other.next() for _ in range(200)]
