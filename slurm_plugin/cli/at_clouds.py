"""For ``check``: what the clouds themselves say about burst.yaml, asked now. Nothing is changed there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

from job_wrapper.errors import SpotburstError
from slurm_plugin.checks import images, quotas
from slurm_plugin.checks.finding import Finding, State, or_well, unknown
from slurm_plugin.cli.from_ledger import from_ledger
from slurm_plugin.cli.instance_types import REACH, instance_types
from slurm_plugin.cloud.asking import readable
from slurm_plugin.cloud.images import DescribesImages
from slurm_plugin.cloud.provider import Provider
from slurm_plugin.cloud.quotas import TellsQuotas, Ways
from slurm_plugin.config import Config
from slurm_plugin.errors import NotPermitted
from slurm_plugin.manager.providers import build


def at_clouds(config: Config) -> Iterator[Finding]:
    """Whether machines are as large as their nodes, whether their images are there, and whether the accounts may have them."""
    providers: dict[str, Provider] = {}
    for name in config.providers:
        try:
            providers[name] = build(config, name)
        except SpotburstError as error:
            yield unknown("providers", str(error), "install what is missing: the manager needs it, too")
    yield from instance_types(config, providers)
    yield from _images(config, providers)
    yield from _quotas(config, providers)


def _images(config: Config, providers: Mapping[str, Provider]) -> Iterator[Finding]:
    for name, provider in providers.items():
        offerings = config.offerings_at(name)
        if not isinstance(provider, DescribesImages) or not offerings:
            continue
        try:
            facts = readable(name, provider.image)
        except SpotburstError as error:
            yield _untold(images.WHAT, error)
            continue
        found = list(images.image(name, facts, {}))
        if not any(one.state in (State.FAULT, State.UNKNOWN) for one in found):
            try:
                runs = readable(name, partial(provider.architectures, offerings))
                found = list(images.image(name, facts, runs))
            except SpotburstError as error:
                found.append(_untold(images.WHAT, error))
        shown = " ".join(word for word in (facts.name, facts.architecture) if word)
        yield from or_well(found, images.WHAT, f"providers.{name}: {shown} is there")


def _quotas(config: Config, providers: Mapping[str, Provider]) -> Iterator[Finding]:
    ways: dict[str, Ways] = {}
    found: list[Finding] = []
    asked: set[str] = set()
    for name, provider in providers.items():
        offerings = config.offerings_at(name)
        if not isinstance(provider, TellsQuotas) or not offerings:
            continue
        asked.add(name)
        try:
            told = readable(name, partial(provider.quotas, offerings))
        except SpotburstError as error:
            found.append(_untold(quotas.WHAT, error))
            continue
        ways |= told
        if left := sorted(o.id for o in offerings if o.id not in told):
            which = f"which quota counts {', '.join(left)} is not known"
            found.append(unknown(quotas.WHAT, which, "look at the cloud's own page of quotas for these"))
    wanted = [
        quotas.Wanted(nodeset.name, len(nodeset.node_names), tuple(config.offerings_of(nodeset)))
        for nodeset in config.nodesets
    ]
    machines, _ = from_ledger(config, lambda ledger: Counter(intent.offering_id for intent in ledger.intents()))
    found += quotas.quotas(wanted, ways, machines)
    if asked:
        enough = "each offering has room for a machine" if found else "enough for all nodes"
        yield from or_well(found, quotas.WHAT, f"{', '.join(sorted(asked))}: {enough}")


def _untold(what: str, error: SpotburstError) -> Finding:
    if isinstance(error, NotPermitted):
        return unknown(
            what,
            f"could not be told: {error.permission} is not given ({error})",
            f"give this machine's account {error.permission} (`spotburst render list` names the policies), if this is to be looked at",
        )
    return unknown(what, f"could not be told: {error}", REACH)
