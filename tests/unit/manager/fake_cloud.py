"""A cloud in memory that implements ``Provider``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_plugin.cloud.provider import Instance, InstanceState, Launched, LaunchRequest, RefusalKind, Refused
from slurm_plugin.errors import CloudUnavailable

if TYPE_CHECKING:
    from tests.unit.manager.world import World


KEEP_GONE = 120.0


@dataclass
class Machine:
    request: LaunchRequest
    instance_id: str
    born: float
    visible: float
    boots_in: float
    ending: float | None = None
    gone: float | None = None
    reclaim: float | None = None
    stopped: bool = False
    cut_off: bool = False
    """It runs, and nobody hears from it."""

    def alive(self) -> bool:
        return self.gone is None

    @property
    def address(self) -> str:
        return f"at-{self.instance_id}"

    def state(self, now: float) -> InstanceState:
        if self.gone is not None:
            return InstanceState.GONE
        if self.ending is not None:
            return InstanceState.STOPPING
        if self.reclaim is not None:
            return InstanceState.RECLAIMING
        return InstanceState.RUNNING if now >= self.born + self.boots_in else InstanceState.PENDING


class FakeCloud:
    """One provider named ``sim``."""

    name = "sim"

    def __init__(self, world: World) -> None:
        self.world = world
        self.machine: dict[str, Machine] = {}
        """By launch id."""
        self.unreachable = False
        self.lose_answers = 0
        self.refusals: list[RefusalKind] = []
        self.boots_in: Callable[[], float] = lambda: 5.0
        self.linger: Callable[[], float] = lambda: 3.0
        self.listing_lag: Callable[[], float] = lambda: 0.0
        self.calls = 0

    def serving(self, node: str) -> Machine | None:
        now = self.world.clock()
        return next(
            (
                m
                for m in self.machine.values()
                if m.request.node == node
                and m.alive()
                and m.ending is None
                and not m.cut_off
                and now >= m.born + m.boots_in
            ),
            None,
        )

    def living(self, node: str | None = None) -> list[Machine]:
        return [m for m in self.machine.values() if m.alive() and node in (None, m.request.node)]

    def tick(self) -> None:
        now = self.world.clock()
        for machine in self.machine.values():
            if machine.alive() and (
                (machine.ending is not None and now >= machine.ending)
                or (machine.reclaim is not None and now >= machine.reclaim)
            ):
                machine.gone = now

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        self.calls += 1
        self.world.killer.act()
        if self.unreachable:
            raise CloudUnavailable("sim does not answer")
        answers: list[Launched | Refused] = []
        for r in requests:
            known = self.machine.get(r.launch_id)
            if known is None and self.refusals:
                answers.append(Refused(r.launch_id, self.refusals.pop(0), "Code", "words"))
                continue
            if known is None:
                now = self.world.clock()
                known = Machine(r, f"i-{len(self.machine):04d}", now, now + self.listing_lag(), self.boots_in())
                self.machine[r.launch_id] = known
            answers.append(Launched(r.launch_id, known.instance_id))
        self.world.killer.act()
        if self.lose_answers:
            self.lose_answers -= 1
            raise CloudUnavailable("sim: the connection broke")
        return answers

    def terminate(self, instance_ids: Sequence[str]) -> None:
        self.world.killer.act()
        if self.unreachable:
            raise CloudUnavailable("sim does not answer")
        for machine in self.machine.values():
            if machine.instance_id in instance_ids and machine.alive() and machine.ending is None:
                machine.ending = self.world.clock() + self.linger()
            if machine.instance_id in instance_ids and machine.stopped:
                machine.stopped = False
        self.world.killer.act()

    def instances(self) -> list[Instance]:
        if self.unreachable:
            raise CloudUnavailable("sim does not answer")
        now = self.world.clock()
        return [
            Instance(
                m.instance_id, m.request.launch_id, m.request.node, m.request.nodeset, m.state(now), m.born, m.request.offering.id, m.address,
                deadline=m.reclaim, notice_id=f"{m.instance_id}-reclaim" if m.reclaim else None,
                billed=m.alive() or m.stopped,
            )
            for m in self.machine.values()
            if m.visible <= now and (m.gone is None or m.stopped or now - m.gone < KEEP_GONE)
        ]  # fmt: skip

    # --- what the cloud does by itself --------------------------------------------------------------------------------

    def vanish(self, machine: Machine, *, stopped: bool = False, forget: bool = False) -> None:
        machine.gone = self.world.clock() - (KEEP_GONE if forget else 0)
        machine.stopped = stopped
