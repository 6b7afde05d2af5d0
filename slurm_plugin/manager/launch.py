"""Launching: the intent first, then the cloud, then its answer; a refusal leads to the next offering at once, in the same pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_plugin.actions import Launch
from slurm_plugin.cloud import launch_ids
from slurm_plugin.cloud.provider import Launched, LaunchRequest, RefusalKind, Refused
from slurm_plugin.errors import CloudUnavailable, LocalCloudError
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.lane import Lane
from slurm_plugin.manager.say import Once, log
from slurm_plugin.reconcile.view import Policy

NodeConfigOf = Callable[[str, str, str], Mapping[str, Any]]
"""(nodeset, node, offering id) to what the node finds as node.json."""
NOBODY: Mapping[str, int] = {}
_Wanted = tuple[Launch, tuple[str, ...]]
"""What to make, and the offerings that may still be asked for it."""
_Asked = tuple[Launch, tuple[str, ...], LaunchRequest]
"""The same, with the request that is made now."""


class Launcher:
    """Carries out ``Launch`` actions, many at a time: one call a provider and round."""

    def __init__(
        self, policy: Policy, lanes: Mapping[str, Lane], ledger: Ledger, node_config: NodeConfigOf, once: Once
    ) -> None:
        self.policy, self.lanes, self.ledger, self.node_config, self.once = policy, lanes, ledger, node_config, once
        self._jobs = NOBODY
        self.enough: Callable[[], bool] = lambda: False
        """Whether a pass has taken so long that no further offering is asked in it."""
        self.store_mark: Callable[[], str] = str
        """Of the checkpoint store (``Stores.mark``)."""
        self._configs: dict[tuple[str, str], Mapping[str, Any]] = {}

    def launch(
        self, actions: Sequence[Launch], now: Callable[[], float], jobs: Mapping[str, int] = NOBODY
    ) -> list[tuple[Launch, Refused]]:
        """All of them, each through its offerings in turn. Returns what nobody may wait for: quota and mistakes, per node.

        ``jobs``: by node, whom it is for: what was asked and why not something else is told in that job's story.
        """
        self._jobs = jobs
        with self.ledger.batch():
            for action in actions:
                for text in action.passed if action.node in jobs else ():
                    self.ledger.event("passed", text, node=action.node, job=jobs[action.node])
        said: list[tuple[Launch, Refused]] = []
        left: list[_Wanted] = [(action, action.offerings) for action in actions]
        while left and not self.enough():
            rounds = self._round(left, now())
            left = []
            for provider, asked in rounds.items():
                for (action, rest, _), answer in zip(asked, self._ask(provider, [r for _, _, r in asked]), strict=True):
                    if not isinstance(answer, Refused) or answer.kind is RefusalKind.TRY_LATER:
                        continue
                    if answer.kind in (RefusalKind.QUOTA, RefusalKind.MISTAKE):
                        said.append((action, answer))
                    if rest and action.launch_id is None:
                        left.append((action, rest))
        return said

    def _round(self, left: Sequence[_Wanted], now: float) -> dict[str, list[_Asked]]:
        """What to ask each provider next, the intents written down. What has no offering left is dropped."""
        # One refusal cools the offering for all that come after it in this pass too.
        states = self.ledger.offerings()
        rounds: dict[str, list[_Asked]] = {}
        fresh: dict[tuple[str, str], list[_Wanted]] = {}
        with self.ledger.batch():
            for action, offerings in left:
                usable = [o for o in offerings if o in self.policy.offerings]
                if action.launch_id is None:
                    usable = [o for o in usable if o not in states or states[o].ready_at() <= now]
                if not usable:
                    continue
                rest = tuple(usable[1:])
                if action.launch_id is None:
                    fresh.setdefault((action.nodeset, usable[0]), []).append((action, rest))
                else:
                    self.ledger.asked_again(action.launch_id)
                    request = self._request(action, usable[0], action.launch_id)
                    rounds.setdefault(request.offering.provider, []).append((action, rest, request))
            for (nodeset, offering_id), wanted in fresh.items():
                provider = self.policy.offerings[offering_id].provider
                for piece in _batches(wanted):
                    for launch_id, (action, rest) in zip(launch_ids.batch(len(piece)), piece, strict=True):
                        self.ledger.open_intent(
                            action.node, nodeset, provider, offering_id, launch_id, job=self._jobs.get(action.node, 0)
                        )
                        request = self._request(action, offering_id, launch_id)
                        rounds.setdefault(provider, []).append((action, rest, request))
        return rounds

    def _request(self, action: Launch, offering_id: str, launch_id: str) -> LaunchRequest:
        return LaunchRequest(
            launch_id=launch_id,
            node=action.node,
            nodeset=action.nodeset,
            offering=self.policy.offerings[offering_id],
            node_config=self._config(action, offering_id),
            gang=f"{action.gang}/{offering_id}" if action.gang else None,
            zone=dict(action.pins).get(offering_id, ""),
        )

    def _config(self, action: Launch, offering_id: str) -> Mapping[str, Any]:
        """Nodes of one nodeset and offering differ by their name alone: making it anew for each takes as long as asking for them."""
        key = action.nodeset, offering_id
        if key not in self._configs:
            self._configs[key] = self.node_config(action.nodeset, action.node, offering_id)
        return {**self._configs[key], "node": action.node, "store_mark": self.store_mark()}

    def _ask(self, provider: str, requests: list[LaunchRequest]) -> Sequence[Launched | Refused | None]:
        """One answer a request; None where it is unknown, so that the same launch id is asked again later."""
        lane = self.lanes[provider]
        answers: Sequence[Launched | Refused | None]
        try:
            answers = lane.call(lambda: lane.provider.launch(requests))
        except CloudUnavailable as error:
            self.once.fault(f"launching at {provider}", str(error))
            return [None] * len(requests)
        except LocalCloudError as error:
            # This host can't make machines at all: the administrator's matter, not the cloud's; it may pass.
            answers = [
                Refused(r.launch_id, RefusalKind.MISTAKE, error.reason, str(error), known=False) for r in requests
            ]
        except Exception as error:
            log.error("launching failed", provider=provider, error=repr(error), exc_info=True)
            return [None] * len(requests)
        self.once.well(f"launching at {provider}")
        by_id = {answer.launch_id: answer for answer in answers if answer is not None}
        answers = [by_id.get(request.launch_id) for request in requests]
        with self.ledger.batch():
            for request, answer in zip(requests, answers, strict=True):
                job = self._jobs.get(request.node, 0)
                keys = {"node": request.node, "launch_id": request.launch_id, "offering": request.offering.id}
                if isinstance(answer, Launched):
                    self.ledger.launched(answer.launch_id, answer.instance_id, job=job)
                    log.info("launched", instance=answer.instance_id, **keys)
                elif isinstance(answer, Refused):
                    self.ledger.refused(
                        answer.launch_id,
                        answer.kind,
                        answer.code,
                        answer.text,
                        permanent=answer.permanent and answer.known,
                        job=job,
                    )
                    log.warning("refused", kind=answer.kind.value, code=answer.code, text=answer.text, **keys)
        return answers


def _batches(wanted: Sequence[_Wanted]) -> list[list[_Wanted]]:
    """What is asked for together, so that a cloud can make it in one call: gangs beside each other, none of them cut; and the rest."""
    gangs: dict[str, list[_Wanted]] = {}
    for one in wanted:
        if one[0].gang is not None:
            gangs.setdefault(one[0].gang, []).append(one)
    found: list[list[_Wanted]] = []
    for gang in gangs.values():
        if found and len(found[-1]) + len(gang) <= launch_ids.LARGEST_BATCH:
            found[-1] += gang
        else:
            found.append(gang)
    return found + launch_ids.chunks(one for one in wanted if one[0].gang is None)
