"""The stages that the contract of providers is played on: a cloud with levers, that is, what its own records say, and faults to order.

What a stage can do is a matter of its class. Each of the classes here has a part of the contract (``contract.py``) that is for it, and
leaves no lever out: a stage that lacks one can't be made.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
from tests.fixtures.cloud_api import CloudApi


class Stage(ABC):
    """A provider and its cloud."""

    provider: Provider
    nodeset = "spot"

    @abstractmethod
    def offering(self, market: Market = Market.SPOT) -> Offering:
        """One that can be bought without limit until ``limit`` says otherwise."""

    @abstractmethod
    def restart(self) -> None:
        """A new provider object, as after the manager was killed."""

    @abstractmethod
    def living(self) -> dict[str, str]:
        """By the cloud's own records: machines of this cluster that are paid for and not on their way out, instance id to node."""

    def node_config(self, node: str) -> dict[str, Any]:
        """What the request carries for the node."""
        return {"cluster": "test", "node": node, "nodeset": self.nodeset}

    @abstractmethod
    def limit(self, offering: Offering, count: int) -> None:
        """At most so many machines of it at a time."""

    @abstractmethod
    def refuse(self, kind: RefusalKind) -> None:
        """The next launch is refused so, as this cloud says it."""

    @abstractmethod
    def unreachable(self, on: bool) -> None:
        """Nothing answers."""

    @abstractmethod
    def vanish(self, instance_id: str) -> None:
        """The machine is gone without notice."""


class ReclaimingStage(Stage):
    """Reclaims show in the listing."""

    @abstractmethod
    def reclaim(self, instance_id: str) -> None:
        """The cloud announces that it takes the machine back."""


class RemoteStage(Stage):
    """Behind an API that others use too, over a network."""

    @abstractmethod
    def lose_answers(self, count: int) -> None:
        """The next launch calls take effect, and their answers are lost."""

    @abstractmethod
    def throttle(self, count: int) -> None:
        """The next calls, of any kind, are refused for their rate."""

    @abstractmethod
    def lag(self, seconds: float) -> None:
        """Machines are missing from listings for so long after they were made."""

    @abstractmethod
    def break_listing(self) -> None:
        """The next listing fails after its first page, or in its middle."""

    @abstractmethod
    def stop(self, instance_id: str) -> None:
        """The cloud stops the machine without deleting it (a spot machine taken back so)."""

    @abstractmethod
    def foreign(self) -> str:
        """A machine of another cluster; its instance id."""


class NamedStage(RemoteStage):
    """Machines are called as their nodes, so a name may be in use. Subclasses set what is declared."""

    cloud: CloudApi
    folder: Path
    under_way: tuple[str, InstanceState]
    """The code of a launch that has begun and not ended, and what the listing shows of its machine."""
    taken: tuple[str, str]
    """Code, and some of the words, for a node whose name is somebody else's."""

    @abstractmethod
    def other(self) -> Provider:
        """Another cluster's provider, of the same cloud and account."""

    @abstractmethod
    def impatient(self) -> None:
        """The provider waits for 0.1 s for what it began."""

    @abstractmethod
    def done(self) -> None:
        """What is under way has come about, however long it was to take."""

    @property
    def state(self) -> Path:
        """The provider's state folder."""
        return self.folder / "state"

    def unreachable(self, on: bool) -> None:
        self.cloud.unreachable = on

    def lose_answers(self, count: int) -> None:
        self.cloud.lose = count

    def throttle(self, count: int) -> None:
        self.cloud.throttles = count

    def lag(self, seconds: float) -> None:
        self.cloud.lag = seconds

    def break_listing(self) -> None:
        self.cloud.break_page = True

    def foreign(self) -> str:
        [answer] = self.other().launch(requests(self, ["other-1"]))
        assert isinstance(answer, Launched)
        return answer.instance_id


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


def listed(stage: Stage, seconds: float = 60.0) -> dict[str, Instance]:
    """By launch id; asked again while the cloud does not answer."""
    until = time.monotonic() + seconds
    while True:
        try:
            return {i.launch_id: i for i in stage.provider.instances()}
        except CloudUnavailable:
            assert time.monotonic() < until, "no listing"
            time.sleep(0.05)


def wait_for(predicate: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Its value once it is true."""
    until = time.monotonic() + seconds
    while not (value := predicate()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
    return value


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
