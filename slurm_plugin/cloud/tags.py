"""Whose machine it is: the tags that every machine bears, so that a manager that has lost everything else finds it again.

Keys are the same in all clouds. Values are what the cluster calls things; a cloud whose labels take fewer characters (Compute Engine:
lower case, digits, ``-`` and ``_``, 63 at most) keeps them as instance metadata and uses labels only to filter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "spotburst-"
CLUSTER = PREFIX + "cluster"
NODE = PREFIX + "node"
NODESET = PREFIX + "nodeset"
LAUNCH = PREFIX + "launch"
OFFERING = PREFIX + "offering"


@dataclass(frozen=True, slots=True)
class Ownership:
    """What the tags say."""

    cluster: str
    node: str
    nodeset: str
    launch_id: str
    offering_id: str

    def tags(self) -> dict[str, str]:
        """As key and value."""
        return {
            CLUSTER: self.cluster,
            NODE: self.node,
            NODESET: self.nodeset,
            LAUNCH: self.launch_id,
            OFFERING: self.offering_id,
        }


def read(tags: Mapping[str, str], cluster: str) -> Ownership | None:
    """The ownership that a machine's tags tell; None for a machine of another cluster, or of nobody.

    A machine of this cluster always has an answer: what its tags lack is "", since a machine that nobody can name must still be ended.
    """
    if tags.get(CLUSTER) != cluster:
        return None
    return Ownership(cluster, tags.get(NODE, ""), tags.get(NODESET, ""), tags.get(LAUNCH, ""), tags.get(OFFERING, ""))
