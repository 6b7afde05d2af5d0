"""Feeding one target for a while: what became of it, and the inputs that are worth keeping."""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.lines import Lines
from tests.fuzz.mutate import Mutator
from tests.fuzz.target import Fault, Target, attempt, opened

TRACED = 0.3
"""Share of the inputs whose lines are looked at: it makes them some times slower."""


@dataclass
class Round:
    """``inputs`` fed in so many ``seconds``; ``faults`` by kind and place, each once; ``kept``: inputs that reached new lines."""

    inputs: int = 0
    seconds: float = 0.0
    lines: int = 0
    faults: dict[tuple[str, str], Fault] = field(default_factory=dict)
    kept: list[bytes] = field(default_factory=list)


def fuzz(
    target: Target,
    *,
    seed: int,
    seconds: float = float("inf"),
    inputs: int = 1 << 62,
    known: Iterable[bytes] = (),
    current: Path | None = None,
) -> Round:
    """Feed the target, its examples and ``known`` first, until the time or the inputs are used up.

    ``current``: a file that always holds the input that is being fed, for the case that it ends this very process.
    """
    chance = random.Random(f"{seed} {target.name}")
    done, lines = Round(), Lines()
    with opened(target) as feed:
        mutator = Mutator(target.examples, chance)
        started = time.monotonic()
        waiting = [*known, *target.examples]

        def one(data: bytes) -> None:
            fault = attempt(target, feed, data)
            if fault is not None and fault.kind == "hang" and sys.gettrace() is not None:
                sys.settrace(None)  # it may be this that took so long
                fault = attempt(target, feed, data)
            if fault is not None:
                done.faults.setdefault((fault.kind, fault.place), fault)

        while done.inputs < inputs and time.monotonic() - started < seconds:
            fresh = not waiting
            data = waiting.pop() if waiting else mutator.next()
            if current is not None:
                current.write_bytes(data)
            done.inputs += 1
            if not fresh or chance.random() < TRACED:
                if lines.new(lambda data=data: one(data)) and fresh:  # type: ignore[misc]
                    mutator.pool.append(data)
                    done.kept.append(data)
                elif not fresh and data not in mutator.pool:
                    mutator.pool.append(data)
            else:
                one(data)
        done.seconds, done.lines = time.monotonic() - started, len(lines)
    return done


def name_of(data: bytes) -> str:
    """Of a file that holds the input."""
    return hashlib.sha256(data).hexdigest()[:16]
