"""What is found out about nodes that boot by Slurm's records and were never seen up: see ``reconcile.unheard``.

Only where slurmctld is younger than a node's machine is that machine's slurmd tried at all: slurmd writes two lines of errors for every
connection that says nothing. Tried apart from the nodes that are up, since one that still boots swallows what comes to it, and is no
silent node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.ledger_records import Intent
from slurm_plugin.manager.reach import Reach
from slurm_plugin.manager.say import Once
from slurm_plugin.reconcile.unheard import never_seen
from slurm_plugin.reconcile.view import BootFacts, Listing
from slurm_plugin.slurm.client import SlurmClient
from slurm_plugin.slurm.records import Node, Start

ASK_EVERY = 10.0
"""Seconds between two questions when slurmctld began. The first is put once such a launch is as old:
slurmctld has enough to do while it resumes a thousand."""
ASK_SELDOM = 60.0
"""The same while nobody waits for the answer."""
LOOK_EVERY = 5.0
"""Seconds between two tries of a slurmd."""


class Booting:
    """``reach`` is this part's own: it is started and stopped with it."""

    def __init__(self, client: SlurmClient, reach: Reach, once: Once) -> None:
        self._client, self._reach, self._once = client, reach, once
        self._answers_since: float | None = None
        self._start: Start | None = None
        self._asked = float("-inf")

    def start(self) -> None:
        """Begin trying."""
        self._reach.start()

    def stop(self) -> None:
        """End."""
        self._reach.stop()

    def look(
        self,
        now: float,
        nodes: Mapping[str, Node] | None,
        intents: Iterable[Intent],
        clouds: Mapping[str, Listing | None],
    ) -> BootFacts:
        """What is known now (Unix seconds). ``nodes`` None: slurmctld did not answer, so all that needs its answers begins anew.

        Tells the reach whom to try from now on, by launch id: an address that has gone over to another machine begins anew. Never raises.
        """
        if nodes is None:
            self._answers_since, self._start, self._asked = None, None, float("-inf")
            return BootFacts()
        if self._answers_since is None:
            self._answers_since = now
        unseen = never_seen(nodes, intents)
        pause = ASK_EVERY if any(now - i.created >= ASK_EVERY for i in unseen) else ASK_SELDOM
        if not 0 <= now - self._asked < pause:
            self._start, self._asked = self._ask(), now
        start = self._start
        older = [i for i in unseen if start is not None and i.created < start.began]
        addresses = _addresses(clouds) if older else {}
        targets = {i.launch_id: (addresses[i.launch_id], nodes[i.node].port) for i in older if i.launch_id in addresses}
        self._reach.watch(targets, doubted=targets)  # what counts is slurmd, not its machine
        return BootFacts(
            None if start is None else start.began,
            self._answers_since,
            self._reach.answering_since(),
            start is not None and start.health_check,
        )

    def _ask(self) -> Start | None:
        try:
            start = self._client.slurmctld_start()
        except (SlurmUnavailable, SlurmRefused) as error:
            self._once.fault(
                "slurmctld's start",
                f"is not known, so a node that it takes for booting is left to ResumeTimeout: {error}",
            )
            return None
        self._once.well("slurmctld's start")
        return start


def _addresses(clouds: Mapping[str, Listing | None]) -> dict[str, str]:
    """Of machines that run, by launch id."""
    return {
        machine.launch_id: machine.address
        for listing in clouds.values()
        if listing is not None
        for machine in listing.instances
        if machine.address and machine.state is InstanceState.RUNNING
    }
