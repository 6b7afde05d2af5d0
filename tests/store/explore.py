"""Every interleaving of a few writers, each the real code, over a store that is asked one thing at a time.

A writer is deterministic: what it asks next follows from the answers it has had. So its life is a tree, and a node of it is found by
running the real code from the start with the answers on the way there (`Life`). What all writers together can do is then a graph whose
states are (what is stored, requests on their way, each writer's node, faults left); it is walked whole, each state once. A crash at any
point needs no step of its own: it is a writer that is never heard of again, and every state is checked.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from job_wrapper.errors import Fenced, ObjectMissing, RunHeld, StoreError
from job_wrapper.store.checksum import checksum
from job_wrapper.store.codec import encode_entry
from job_wrapper.store.decided_put import Patience
from job_wrapper.store.io_types import Entry, ObjectInfo, ObjectWriter, Put
from job_wrapper.store.log import RunFinished
from job_wrapper.store.paths import log_key, log_prefix
from tests.store.checkpoints import RUN

LOG = log_prefix(RUN)
Request = tuple[str, str, bytes]
"""Kind, key or prefix, data."""
ERROR, MISSING = "error", "missing"
SPOILT = b"a damaged entry"


class Asks(BaseException):
    """The writer has come to a request that it has no answer to yet."""


class Script:
    """One writer's store: gives out the answers it was made with, and ends the run at the first request beyond them."""

    uri = "memory://test"

    def __init__(self, answers: list[Any], private: bool) -> None:
        self._answers = iter(answers)
        self._private = private
        self.request: Request | None = None
        self.puts: list[tuple[str, bytes]] = []

    def _ask(self, kind: str, key: str, data: bytes = b"") -> Any:
        # The pointer to the run is no part of the protocol; nor are data that nobody lists, since only their writer writes them.
        if not key.startswith(RUN) or (self._private and kind in ("write", "delete")):
            return MISSING if kind == "get" else None
        try:
            answer = next(self._answers)
        except StopIteration:
            self.request = (kind, key, data)
            raise Asks from None
        if kind == "put":
            self.puts.append((key, data))
        if answer is ERROR:
            raise StoreError("no answer")
        return answer

    def put_if_absent(self, key: str, data: bytes) -> Put:
        result: Put = self._ask("put", key, data)
        return result

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._ask("write", key, bytes(data))

    def get(self, key: str) -> bytes:
        answer = self._ask("get", key)
        if answer is MISSING:
            raise ObjectMissing("not there")
        data: bytes = answer
        return data

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter([ObjectInfo(key, 1) for key in self._ask("list", prefix)])

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._ask("delete", key)

    def open_write(self, key: str) -> ObjectWriter:
        raise AssertionError("the writers of this model put whole objects")

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        raise AssertionError

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        raise AssertionError


@dataclass(slots=True)
class Node:
    """A point of one writer's life."""

    number: int
    request: Request | None
    """None: it has come to its end."""
    acknowledged: list[tuple[str, bytes]]
    """Entries that it was told it has written."""
    denied: list[tuple[str, bytes]]
    """Entries that it was told it has not."""
    children: dict[Any, Node] = field(default_factory=dict)


class Teller:
    """What a writer's program is told by the store's code, call by call."""

    def __init__(self, script: Script) -> None:
        self.store = script
        self.acknowledged: list[tuple[str, bytes]] = []
        self.denied: list[tuple[str, bytes]] = []
        ticks = iter(range(1 << 30))
        self.patience = Patience(seconds=2, first=0.0, now=lambda: float(next(ticks)), sleep=lambda _: None)

    def call(self, act: Callable[[], Any], tries: int = 2) -> Any:
        """``act``, tried again when it remains undecided; None then. What it returns is an entry, or has one."""
        for _ in range(tries):
            before = len(self.store.puts)
            try:
                result = act()
            except (Fenced, RunHeld, RunFinished):
                self.denied += self.store.puts[before:]
                raise
            except StoreError:
                continue
            entry: Entry = getattr(result, "entry", result)
            self.acknowledged.append((log_key(RUN, entry.seq), encode_entry(entry, RUN)))
            return result
        return None


Program = Callable[[Teller], None]


class Life:
    """The tree of one writer's lives."""

    def __init__(self, program: Program, *, private: bool) -> None:
        self._program, self._private = program, private
        self.nodes: list[Node] = []
        self._answers: list[list[Any]] = []
        self.root = self._run([])

    def _run(self, answers: list[Any]) -> Node:
        script = Script(answers, self._private)
        teller = Teller(script)
        with contextlib.suppress(Asks, Fenced, RunHeld, RunFinished, StoreError):
            self._program(teller)
        node = Node(len(self.nodes), script.request, teller.acknowledged, teller.denied)
        self.nodes.append(node)
        self._answers.append(answers)
        return node

    def after(self, node: Node, answer: Any) -> Node:
        """Where ``answer`` leads."""
        child = node.children.get(answer)
        if child is None:
            child = node.children[answer] = self._run([*self._answers[node.number], answer])
        return child


Objects = tuple[tuple[str, bytes], ...]
"""What is stored, in key order."""
State = tuple[int, int, tuple[int, ...], int]
"""Number of the objects, number of the requests on their way, each writer's node, faults left."""


class Explorer:
    """Walks the whole graph. ``check(objects)`` is called once for everything that is ever stored at one time."""

    def __init__(
        self,
        programs: list[Program],
        check: Callable[[dict[str, bytes]], None],
        *,
        faults: int,
        private: bool = True,
        overwrites: bool = False,
        prunes: bool = False,
        spoils: bool = False,
    ) -> None:
        self.lives = [Life(program, private=private) for program in programs]
        self._check = check
        self._faults = faults
        self._overwrites, self._prunes, self._spoils = overwrites, prunes, spoils
        self._numbers: dict[Objects, int] = {}
        self._objects: list[dict[str, bytes]] = []
        self.states = 0
        self.steps = 0
        self.histories = 0
        self.trace: list[str] = []

    def _number(self, objects: dict[str, bytes], checked: bool = True) -> int:
        key = tuple(sorted(objects.items()))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._objects)
            self._objects.append(objects)
            if checked:
                self._check(objects)
        return number

    def run(self) -> Explorer:
        """All of it. Raises ``AssertionError`` at the first state that is wrong; ``trace`` then tells how it came about."""
        gc.collect()
        gc.disable()  # nothing here is cyclic, and looking for cycles takes a third of the time
        try:
            return self._walk()
        finally:
            gc.enable()

    def _walk(self) -> Explorer:
        start: State = (
            self._number({}),
            self._number({}, False),
            tuple(life.root.number for life in self.lives),
            self._faults,
        )
        below: dict[State, int] = {start: 0}
        stack = [(start, self._steps(start))]
        self.states = 1
        while stack:
            state, steps = stack[-1]
            for label, after in steps:
                self.steps += 1
                known = below.get(after)
                if known is not None:
                    below[state] += known
                    continue
                self.trace.append(label)
                self.states += 1
                below[after] = 0
                stack.append((after, self._steps(after)))
                break
            else:
                stack.pop()
                below[state] = max(1, below[state])
                if stack:
                    self.trace.pop()
                    below[stack[-1][0]] += below[state]
        self.histories = below[start]
        return self

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        stored, on_way, places, faults = state
        objects, late = self._objects[stored], self._objects[on_way]
        for index, life in enumerate(self.lives):
            node = life.nodes[places[index]]
            if node.request is None:
                continue
            for name, answer, then, waiting in self._outcomes(node.request, objects, late, faults > 0):
                after = life.after(node, answer)
                label = f"writer {index}: {node.request[0]} {node.request[1].rpartition('/')[2]}: {name}"
                self.trace.append(label)
                self._believes(after, then)
                reached = (
                    stored if then is objects else self._number(then),
                    on_way if waiting is late else self._number(waiting, False),
                    (*places[:index], after.number, *places[index + 1 :]),
                    faults - (name != "done"),
                )
                self.trace.pop()
                yield label, reached
        for key in late:
            rest = {k: v for k, v in late.items() if k != key}
            name = key.partition(" ")[0]
            then = objects if name in objects and not self._overwrites else {**objects, name: late[key]}
            yield f"{name.rpartition('/')[2]} lands", (self._number(then), self._number(rest, False), places, faults)
        if self._prunes and faults:
            for key in sorted(k for k in objects if k.startswith(LOG))[:-1]:
                rest = {k: v for k, v in objects.items() if k != key}
                yield f"{key} is pruned", (self._number(rest, False), on_way, places, faults - 1)

        if self._spoils and faults:
            for key in objects:
                if key.startswith(LOG) and objects[key] != SPOILT:
                    yield f"{key} is spoilt", (self._number({**objects, key: SPOILT}), on_way, places, faults - 1)

    def _outcomes(
        self, request: Request, objects: dict[str, bytes], late: dict[str, bytes], faulty: bool
    ) -> Iterator[tuple[str, Any, dict[str, bytes], dict[str, bytes]]]:
        """What may become of a request: its name, the answer, what is stored then, what is on its way then."""
        kind, key, data = request
        if kind == "put":
            there = key in objects and not self._overwrites
            then = objects if there else {**objects, key: data}
            yield "done", Put.EXISTS if there else Put.CREATED, then, late
            if faulty:
                yield "failed", ERROR, objects, late
                if not there:
                    yield "answer lost", ERROR, then, late
                    yield "told that it exists", Put.EXISTS, then, late
                    yield "late", ERROR, objects, {**late, f"{key} {checksum(data)}": data}
        elif kind == "get":
            yield "done", objects.get(key, MISSING), objects, late
            if faulty:
                yield "failed", ERROR, objects, late
                if key in objects and key.startswith(LOG):
                    yield "not shown yet", MISSING, objects, late
        elif kind == "list":
            found = tuple(sorted(k for k in objects if k.startswith(key)))
            yield "done", found, objects, late
            if faulty:
                yield "failed", ERROR, objects, late
                if found:
                    yield "newest not shown yet", found[:-1], objects, late
        else:
            then = {**objects, key: data} if kind == "write" else {k: v for k, v in objects.items() if k != key}
            yield "done", None, then, late
            if faulty:
                yield "failed", ERROR, objects, late
                yield "answer lost", ERROR, then, late

    def _believes(self, node: Node, objects: dict[str, bytes]) -> None:
        """What a writer was told is so."""
        for key, data in node.acknowledged:
            stands = objects.get(key, b"" if not self._prunes else data)
            assert stands == data or (self._spoils and stands == SPOILT), f"acknowledged {key} was lost"
        for key, data in node.denied:
            assert objects.get(key) != data, f"{key} stands in the log, but its writer was told otherwise"
