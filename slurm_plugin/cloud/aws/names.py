"""How the machines of one fleet learn which node each is.

All instances of a CreateFleet call get the same tags, and CreateTags sets the same tags on up to 1,000 instances: a name for each would
be a call for each, at 10 calls a second. So the fleet's tags carry the list of nodes, and each instance gets its place in that list, one tag a
decimal digit: ten calls a digit, whatever the number of machines and of fleets. A fleet of one bears its node's name from the start. The node puts
its name together from its metadata (templates/name-node.py), the listing from its tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ClusterShell.RangeSet import RangeSet, RangeSetException

from slurm_plugin.cloud import launch_ids, tags
from slurm_plugin.errors import ConfigError
from slurm_plugin.slurm.hostlist import fold, refuse_oversize

PROVIDER = tags.PREFIX + "provider"
BATCH = tags.PREFIX + "batch"
"""Base launch id of the batch."""
FLEET = tags.PREFIX + "fleet"
"""Token of the fleet, a batch may have several."""
NODES = tags.PREFIX + "nodes-"
"""Hostlist of the fleet's nodes in order, in pieces: nodes-0, nodes-1, …"""
NUMBERS = tags.PREFIX + "numbers"
"""Their numbers in the batch, where they are not 0, 1, 2, …"""
DIGITS = tags.PREFIX + "digits"
"""How many digits a place has."""
DIGIT = tags.PREFIX + "digit-"
"""digit-0 is the last one."""
LONGEST_VALUE = 256
LARGEST_CALL = 1000
"""Resources of one CreateTags call."""


def fleet_tags(common: Mapping[str, str], base: str, token: str, members: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Tags of all instances of a fleet. ``members``: launch id and node, in order."""
    found = {**common, BATCH: base, FLEET: token}
    if len(members) == 1:
        [(launch_id, node)] = members
        return {**found, tags.LAUNCH: launch_id, tags.NODE: node}
    nodes = [node for _, node in members]
    text = fold(nodes)
    if in_order(text) != nodes:
        text = ",".join(nodes)
    pieces = [text[i : i + LONGEST_VALUE] for i in range(0, len(text), LONGEST_VALUE)]
    found |= {f"{NODES}{i}": piece for i, piece in enumerate(pieces)}
    numbers = [launch_ids.index_of(launch_id) for launch_id, _ in members]
    if numbers != list(range(len(numbers))):
        found[NUMBERS] = str(RangeSet.fromlist(map(str, numbers)))
    found[DIGITS] = str(len(str(len(members) - 1)))
    return found


Call = tuple[list[str], dict[str, str]]
"""Of CreateTags: instance ids and the tags they get."""


def place_tags(
    members: Sequence[tuple[str, str]], instances: Mapping[str, str], *, readable: bool = True
) -> list[Call]:
    """The calls that tell each instance its place. ``instances``: launch id to instance id.

    ``readable``: for people too where that takes no more calls; without it fleets may share theirs (``together``).
    """
    if len(members) == 1:
        return []
    calls: list[Call] = []
    for digit in range(len(str(len(members) - 1))):
        groups: dict[int, list[int]] = {}
        for place, (launch_id, _) in enumerate(members):
            if launch_id in instances:
                groups.setdefault(place // 10**digit % 10, []).append(place)
        for value, places in sorted(groups.items()):
            given = {f"{DIGIT}{digit}": str(value)}
            if readable and len(members) <= 10:  # one instance a call
                given |= {tags.LAUNCH: members[places[0]][0], tags.NODE: members[places[0]][1]}
            calls += [
                (piece, given) for piece in launch_ids.chunks([instances[members[p][0]] for p in places], LARGEST_CALL)
            ]
    return calls


def together(calls: Iterable[Call]) -> list[Call]:
    """What sets the same tags as one call: the third machines of all fleets at once."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for ids, given in calls:
        alike.setdefault(tuple(sorted(given.items())), []).extend(ids)
    return [(piece, dict(given)) for given, ids in alike.items() for piece in launch_ids.chunks(ids, LARGEST_CALL)]


def read(found: Mapping[str, str]) -> tuple[str, str] | None:
    """(launch id, node) as an instance's tags tell them; None while they do not."""
    if found.get(tags.NODE) and found.get(tags.LAUNCH):
        return found[tags.LAUNCH], found[tags.NODE]
    try:
        place = sum(int(found[f"{DIGIT}{d}"]) * 10**d for d in range(int(found[DIGITS])))
        pieces = sorted((k for k in found if k.startswith(NODES)), key=lambda k: int(k.removeprefix(NODES)))
        node = in_order("".join(found[k] for k in pieces))[place]
        numbers = None
        if NUMBERS in found:
            refuse_oversize(f"[{found[NUMBERS]}]")
            numbers = [int(n) for n in RangeSet(found[NUMBERS])]
        return launch_ids.of(found[BATCH], numbers[place] if numbers else place), node
    except (KeyError, ValueError, IndexError, RangeSetException, AssertionError, ConfigError):
        return None


def in_order(hostlist: str) -> list[str]:
    """Names of a hostlist of ours as they stand there (ClusterShell sorts them), as the node's script has it too.

    Raises ``ValueError``, and ``ConfigError`` where it names more nodes than there can be.
    """
    refuse_oversize(hostlist)
    found: list[str] = []
    for term in re.findall(r"(?:\[[^]]*\]|[^,\[])+", hostlist):
        names = [""]
        for literal, ranges in re.findall(r"([^\[]*)(?:\[([^]]*)\])?", term):
            tails = [""]
            if ranges:
                tails = []
                for part in ranges.split(","):
                    first, _, last = part.partition("-")
                    tails += [str(n).zfill(len(first)) for n in range(int(first), int(last or first) + 1)]
            names = [name + literal + tail for name in names for tail in tails]
        found += names
    return found
