"""The embedded cloud as a provider."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from itertools import groupby
from pathlib import Path
from typing import Any

from slurm_plugin.cloud.local import market, network
from slurm_plugin.cloud.local.host import find_command, require
from slurm_plugin.cloud.local.levers import Levers
from slurm_plugin.cloud.local.state import now, write_json
from slurm_plugin.cloud.local.yard import Machine, Yard
from slurm_plugin.cloud.provider import (
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    RefusalKind,
    Refused,
)
from slurm_plugin.config import Config, LocalProvider
from slurm_plugin.errors import CloudUnavailable, LocalCloudError

KEEP_GONE = 3600.0
"""Seconds that an ended machine stays in the listing, as EC2 shows terminated ones for about an hour."""
OVERDUE = 2.0
"""Seconds after which a machine that should have ended by itself is ended."""
_HIDDEN = ("/run", "/proc", "/dev/shm")  # noqa: S108 - a machine has its own of each


def destroy_all(state_dir: Path) -> None:
    """Remove all that embedded clouds made for this state folder: machines, bridges, notes. Any number of times, also after a crash."""
    _destroy(Yard(state_dir.resolve() / "local"), state_dir.resolve())


def _destroy(yard: Yard, state_dir: Path) -> None:
    yard.tear_down(yard.machines())
    yard.kill_strays()
    if find_command("ip"):
        for bridge, owner in network.owned_bridges():
            if owner == network.owner_name(str(state_dir)):
                network.delete_bridge(bridge)
    shutil.rmtree(yard.folder, ignore_errors=True)


def from_config(config: Config, name: str | None = None) -> LocalCloud:
    """The embedded cloud of that name in burst.yaml; ``name`` is needed only where there are several. Raises ``LocalCloudError``."""
    found = {n: p for n, p in config.providers.items() if isinstance(p, LocalProvider)}
    chosen = name if name is not None else next(iter(found), "")
    if chosen not in found:
        raise LocalCloudError(f"providers: no {chosen!r} of type local; there are: {', '.join(found) or 'none'}")
    return LocalCloud(
        chosen,
        found[chosen],
        cluster=config.cluster,
        state_dir=config.state_dir,
        slurm_conf=config.slurm.conf,
        slurm_root=config.slurm.bin_dir.parent if config.slurm.bin_dir else None,
    )


class LocalCloud(Levers):
    """Implements ``slurm_plugin.cloud.provider.Provider``. Machines survive this process; any process may take over."""

    def __init__(
        self,
        name: str,
        config: LocalProvider,
        *,
        cluster: str,
        state_dir: Path,
        slurm_conf: Path,
        slurm_root: Path | None = None,
    ) -> None:
        """``state_dir`` and ``slurm_conf`` must lie where machines see them, so not below /run, /proc or /dev/shm."""
        self.name = name
        self.config = config
        self.cluster = cluster
        self.state_dir = state_dir.resolve()
        self.slurm_conf = slurm_conf.resolve()
        self.slurm_root = slurm_root
        self.subnet = IPv4Network(config.subnet)
        self.yard = Yard(self.state_dir / "local")
        for path in (self.state_dir, self.slurm_conf):
            if any(path.is_relative_to(hidden) for hidden in _HIDDEN):
                raise LocalCloudError(
                    f"{path}: a machine of the local cloud can't see it there; use a folder such as /var/lib or /tmp"
                )
        self._able = False

    @property
    def gateway(self) -> IPv4Address:
        """The host's address on the cloud's network, where slurmctld listens."""
        return self.subnet.network_address + 1

    # The provider protocol.

    def launch(self, requests: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        """See ``Provider.launch``. Raises ``LocalCloudError`` where this host can't make machines at all."""
        self._require()
        self._reachable()
        self._make_network()
        answers: dict[int, Launched | Refused] = {}
        with self.yard.lock():
            indexed = sorted(enumerate(requests), key=lambda pair: (pair[1].gang or f"\0{pair[0]}", pair[0]))
            for _, group in groupby(indexed, key=lambda pair: pair[1].gang or f"\0{pair[0]}"):
                members = list(group)
                for (index, _), answer in zip(members, self._launch_group([r for _, r in members]), strict=True):
                    answers[index] = answer
        for answer in answers.values():
            if isinstance(answer, Launched):
                self._finish(answer.instance_id)
        return [answers[i] for i in range(len(requests))]

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """See ``Provider.terminate``. With a linger time set, machines go on that long as STOPPING."""
        self._reachable()
        linger = float(self._faults().get("linger", 0.0))
        asked = now()
        ending = []
        for instance_id in instance_ids:
            machine = self._own(instance_id)
            if machine is None or machine.gone:
                continue
            plan = {"asked": asked, "at": asked + linger}
            machine = self.yard.steer(machine, lambda c, plan=plan: {"terminate": plan, **c})  # type: ignore[misc]
            if machine.ends_at is not None and machine.ends_at <= now():
                ending.append(machine)
        left = self.yard.end(ending)
        if left:
            raise CloudUnavailable(f"local: {', '.join(m.instance_id for m in left)} did not end within 10 s")

    def instances(self) -> list[Instance]:
        """See ``Provider.instances``. Also finishes machines whose making was broken off, and ends overdue ones."""
        self._reachable()
        moment = now()
        machines = self._machines()
        if any(self._tend(machine, moment) for machine in machines):
            machines = self._machines()
        if any(m.ended and float(m.ended["time"]) < moment - KEEP_GONE for m in machines):
            self.yard.forget(older_than=moment - KEEP_GONE)
        return [self._instance(m) for m in machines]

    def destroy(self) -> None:
        """End every machine and remove all that the cloud made, whoever made it and whatever was broken off. Any number of times."""
        self.yard.tear_down(self._machines())
        if not self.yard.machines():
            _destroy(self.yard, self.state_dir)

    # Inside.

    @property
    def _owner(self) -> str:
        return network.owner_name(str(self.state_dir))

    def _require(self) -> None:
        if not self._able:
            require(("ip", "bridge", "unshare", "slurmd"), self.slurm_root)
            self._able = True

    def _reachable(self) -> None:
        if self._faults().get("unreachable"):
            raise CloudUnavailable(f"{self.name}: the API does not answer (by order)")

    def _machines(self) -> list[Machine]:
        return [m for m in self.yard.machines() if m.spec["provider"] == self.name]

    def _own(self, instance_id: str) -> Machine | None:
        if not re.fullmatch(r"i-[0-9a-f]{17}", instance_id):
            return None
        machine = self.yard.machine(instance_id)
        return machine if machine is not None and machine.spec["provider"] == self.name else None

    def _make_network(self) -> None:
        owner = network.bridge_owner(self.config.bridge)
        if owner is None:
            taken = network.subnet_in_use(self.subnet, network.links())
            if taken:
                raise LocalCloudError(
                    f"providers.{self.name}.subnet: {self.subnet} is in use by {taken} of this host; choose another one"
                )
            network.make_bridge(self.config.bridge, self._owner)
        elif owner != self._owner:
            whose = f"the cluster in {owner}" if owner else "something else"
            raise LocalCloudError(
                f"providers.{self.name}.bridge: {self.config.bridge} belongs to {whose}; choose another name"
            )
        network.address_bridge(self.config.bridge, self.gateway, self.subnet.prefixlen)

    def _instance_id(self, launch_id: str) -> str:
        """From this cloud and the launch id: the same request can't make a second machine, nor take another cloud's cable."""
        return (
            "i-" + hashlib.sha256(f"{self.state_dir}/{self.cluster}/{self.name}/{launch_id}".encode()).hexdigest()[:17]
        )

    def _launch_group(self, group: Sequence[LaunchRequest]) -> list[Launched | Refused]:
        """All of the group or none. With the lock held."""
        ids = [self._instance_id(r.launch_id) for r in group]
        known = [self.yard.machine(i) is not None for i in ids]
        fresh = [r for r, k in zip(group, known, strict=True) if not k]
        refusal = self._refusal(fresh) if fresh else None
        answers: list[Launched | Refused] = []
        for request, instance_id, exists in zip(group, ids, known, strict=True):
            if not exists and refusal is not None:
                answers.append(Refused(request.launch_id, refusal.kind, refusal.code, refusal.text))
                continue
            if not exists:
                self.yard.create(instance_id, self._spec(instance_id, request, self._free_address()))
            answers.append(Launched(request.launch_id, instance_id))
        return answers

    def _refusal(self, group: Sequence[LaunchRequest]) -> market.Verdict | None:
        for request in group:
            if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]{0,62})", request.node):
                return market.Verdict(
                    RefusalKind.MISTAKE, market.CODES[RefusalKind.MISTAKE], f"{request.node!r} can't be a host's name"
                )
        used, _ = self.yard.used_addresses()
        if len(used) + len(group) > self.subnet.num_addresses - 3:
            return market.Verdict(
                RefusalKind.NO_CAPACITY,
                "InsufficientFreeAddressesInSubnet",
                f"{self.subnet} has no {len(group)} addresses left",
            )
        in_use = Counter(m.spec["pool"] for m in self._machines() if not m.gone)
        faults = self._faults()
        verdict, left = market.judge(group, in_use, faults.get("limits", {}), faults.get("refusals", []))
        if left != faults.get("refusals", []):
            write_json(self.yard.folder / f"faults-{self.name}.json", {**faults, "refusals": left})
        return verdict

    def _free_address(self) -> IPv4Address:
        """The next one round the subnet that no living machine has."""
        used, last = self.yard.used_addresses()
        first, end = int(self.gateway) + 1, int(self.subnet.broadcast_address)
        start = int(last) + 1 if last is not None and first <= int(last) < end - 1 else first
        for number in [*range(start, end), *range(first, start)]:
            if IPv4Address(number) not in used:
                return IPv4Address(number)
        raise LocalCloudError(f"{self.subnet} has no address left")  # _refusal has counted them

    def _spec(self, instance_id: str, request: LaunchRequest, address: IPv4Address) -> dict[str, Any]:
        offering = request.offering
        node_config = {
            "cluster": self.cluster,
            "node": request.node,
            "nodeset": request.nodeset,
            "offering": offering.id,
            **request.node_config,
            "provider": self.config.speaks,
        }
        return {
            "instance_id": instance_id,
            "launch_id": request.launch_id,
            "provider": self.name,
            "cluster": self.cluster,
            "node": request.node,
            "nodeset": request.nodeset,
            "offering_id": offering.id,
            "region": offering.region,
            "zone": offering.zone,
            "instance_type": offering.instance_type,
            "market": offering.market.value,
            "pool": market.pool_of(offering),
            "launched": now(),
            "address": str(address),
            "prefix": self.subnet.prefixlen,
            "gateway": str(self.gateway),
            "bridge": self.config.bridge,
            "cable": "sbv" + instance_id[-11:],
            "hosts_file": str(self.yard.hosts),
            "speaks": self.config.speaks,
            "boot_time": self.config.boot_time,
            "node_json": json.dumps(node_config, indent=1, sort_keys=True) + "\n",
            "tags": {
                "spotburst-cluster": self.cluster,
                "spotburst-node": request.node,
                "spotburst-nodeset": request.nodeset,
                "spotburst-launch": request.launch_id,
            },
            "commands": self._commands(instance_id, request.node),
        }

    def _commands(self, instance_id: str, node: str) -> list[dict[str, Any]]:
        """What a machine starts, in order. slurmd last: jobs start as soon as it has registered."""
        folder = self.yard.places / instance_id
        venv = str(Path(sys.executable).parent)
        slurm = [str(self.slurm_root / part) for part in ("bin", "sbin")] if self.slurm_root else []
        env = {
            "PATH": os.pathsep.join(
                [venv, *slurm, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            ),
            "SLURM_CONF": str(self.slurm_conf),
            "HOME": "/root",
            "LANG": "C.UTF-8",
        }
        commands = []
        if importlib.util.find_spec("job_wrapper.agent") is not None:
            program = "import sys; from job_wrapper.agent import main; sys.exit(main([]))"
            commands.append({"name": "agent", "argv": [sys.executable, "-I", "-c", program], "env": env})
        slurmd = find_command("slurmd", self.slurm_root) or "slurmd"
        stepd = self.slurm_root / "sbin" / "slurmstepd" if self.slurm_root else None
        # The place that a slurmd knows by itself may hold this host's own Slurm.
        another = ["-d", str(stepd)] if stepd is not None and stepd.is_file() else []
        log = str(folder / "slurmd.log")
        commands.append(
            {
                "name": "slurmd",
                "argv": [slurmd, "-D", "-b", "-N", node, "-f", str(self.slurm_conf), "-L", log, *another],
                "env": env,
            }
        )
        commands[-1]["output"] = "slurmd.out"
        return commands

    def _tend(self, machine: Machine, moment: float) -> bool:
        """End an overdue machine, finish one whose making was broken off; whether anything was done."""
        if machine.gone:
            return False
        if machine.ends_at is not None and machine.ends_at + OVERDUE < moment:
            self.yard.end([machine])
            return True
        if self.yard.half_made(machine):
            self._finish(machine.instance_id)
            return True
        return False

    def _finish(self, instance_id: str) -> None:
        """Start a machine that is noted and not started."""
        machine = self.yard.machine(instance_id)
        if machine is not None and self.yard.half_made(machine):
            self._make_network()
            with contextlib.suppress(FileNotFoundError):
                self.yard.start(instance_id)

    def _instance(self, machine: Machine) -> Instance:
        reclaim = machine.control.get("reclaim")
        if machine.gone:
            state = InstanceState.GONE
        elif "terminate" in machine.control:
            state = InstanceState.STOPPING
        elif reclaim is not None:
            state = InstanceState.RECLAIMING
        elif machine.process is not None:
            state = InstanceState.RUNNING
        else:
            state = InstanceState.PENDING
        found = Instance(
            instance_id=machine.instance_id,
            launch_id=machine.spec["launch_id"],
            node=machine.spec["node"],
            nodeset=machine.spec["nodeset"],
            state=state,
            launched=float(machine.spec["launched"]),
            offering_id=machine.spec["offering_id"],
            address=machine.spec["address"],
            billed=not machine.gone,
        )
        if reclaim is None:
            return found
        return dataclasses.replace(found, deadline=float(reclaim["deadline"]), notice_id=str(reclaim["notice_id"]))
