"""The levers with which a person or a test plays the cloud's part: reclaims, failures, shortages.

``target`` is an instance id or a node's name (the newest machine where a node has several). Every method raises ``LocalCloudError`` when it
names no running machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from slurm_plugin.cloud.local import market, network
from slurm_plugin.cloud.local.state import now, read_json, write_json
from slurm_plugin.cloud.local.yard import Machine, Yard
from slurm_plugin.cloud.provider import Instance, Market, RefusalKind
from slurm_plugin.config import LocalProvider
from slurm_plugin.errors import LocalCloudError

PATIENCE = 60.0
"""Seconds: what is killed may have to wait for a processor before it ends."""


class Levers(ABC):
    """Part of ``LocalCloud``."""

    name: str
    config: LocalProvider
    yard: Yard

    def reclaim(self, target: str, notice: float | None = None, *, action: str = "terminate") -> Instance:
        """Take the machine back: notice now, the end ``notice`` seconds later, by itself."""
        seconds = self.config.notice if notice is None else notice
        moment = now()

        def change(control: dict[str, Any]) -> dict[str, Any]:
            number = int(control.get("reclaims", 0)) + 1
            notice_id = str(control["instance_id"]) + f"-{number}"
            plan = {"notice_id": notice_id, "noticed": moment, "deadline": moment + seconds, "action": action}
            return {**control, "reclaims": number, "reclaim": plan}

        machine = self.find(target)
        return self._instance(self.yard.steer(machine, lambda c: change({"instance_id": machine.instance_id, **c})))

    def withdraw(self, target: str) -> Instance:
        """Take a notice back: the machine stays."""
        machine = self.find(target)
        return self._instance(self.yard.steer(machine, lambda c: {k: v for k, v in c.items() if k != "reclaim"}))

    def rebalance(self, target: str) -> Instance:
        """Recommend moving away (AWS): no deadline, no promise."""
        return self._instance(self.yard.steer(self.find(target), lambda c: {**c, "rebalance": {"noticed": now()}}))

    def vanish(self, target: str) -> Instance:
        """Gone at once, without a notice, as when its host fails. Returns when nothing of it runs any more."""
        machine = self.find(target)
        if left := self.yard.end([machine], patience=PATIENCE):
            raise LocalCloudError(f"{left[0].instance_id} did not end within {PATIENCE:g} s")
        return self._instance(self.yard.machine(machine.instance_id) or machine)

    def cut(self, target: str) -> Instance:
        """Off the network, while its processes go on."""
        return self._cable(target, on=False)

    def heal(self, target: str) -> Instance:
        """Back on the network."""
        return self._cable(target, on=True)

    def set_capacity(self, zone: str, instance_type: str, kind: Market | str, limit: int | None) -> None:
        """At most ``limit`` machines of that pool at once; None: any number."""
        name = market.pool(zone, instance_type, kind)

        def change(faults: dict[str, Any]) -> None:
            limits = {k: v for k, v in faults.get("limits", {}).items() if k != name}
            faults["limits"] = limits if limit is None else {**limits, name: limit}

        self._change_faults(change)

    def refuse(
        self,
        kind: RefusalKind,
        *,
        times: int = 1,
        code: str | None = None,
        text: str = "refused by order",
        pool: str = "",
    ) -> None:
        """Refuse the next ``times`` launches (-1: all) of a pool (``zone/type/market``; "": of any)."""
        entry = {"kind": kind.value, "code": code or market.CODES[kind], "text": text, "times": times, "pool": pool}
        self._change_faults(lambda faults: faults.update(refusals=[*faults.get("refusals", []), entry]))

    def set_linger(self, seconds: float) -> None:
        """How long terminated machines go on, as real ones do."""
        self._change_faults(lambda faults: faults.update(linger=seconds))

    def set_reachable(self, reachable: bool) -> None:
        """Whether the API answers; while it does not, every call raises ``CloudUnavailable``."""
        self._change_faults(lambda faults: faults.update(unreachable=not reachable))

    def faults(self) -> Mapping[str, Any]:
        """Limits, refusals to come, linger and reachability as they stand."""
        return self._faults()

    def find(self, target: str) -> Machine:
        """The living machine of that id or node name, the newest where a node has several. Raises ``LocalCloudError``."""
        living = [m for m in self._machines() if not m.gone]
        named = [m for m in living if target in (m.instance_id, m.spec["node"])]
        if not named:
            names = ", ".join(f"{m.spec['node']} ({m.instance_id})" for m in living) or "none"
            raise LocalCloudError(f"{target!r} is no running machine of {self.name!r}; running: {names}")
        return named[-1]

    @abstractmethod
    def _machines(self) -> list[Machine]: ...

    @abstractmethod
    def _instance(self, machine: Machine) -> Instance: ...

    def _faults(self) -> dict[str, Any]:
        return read_json(self.yard.folder / f"faults-{self.name}.json") or {}

    def _change_faults(self, change: Callable[[dict[str, Any]], None]) -> None:
        with self.yard.lock():
            faults = self._faults()
            change(faults)
            write_json(self.yard.folder / f"faults-{self.name}.json", faults)

    def _cable(self, target: str, *, on: bool) -> Instance:
        machine = self.find(target)
        try:
            network.set_forwarding(machine.spec["cable"], on)
        except OSError as error:
            raise LocalCloudError(f"{target}: {error}") from error
        return self._instance(self.yard.steer(machine, lambda c: {**c, "cut": not on}))
