"""Whether machines can boot from the image that burst.yaml names. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm_plugin.checks.finding import Finding, fault, note, unknown
from slurm_plugin.cloud.images import ImageFacts

WHAT = "images"


def image(
    provider: str, facts: ImageFacts, architectures: Mapping[str, Mapping[str, frozenset[str]]]
) -> Iterator[Finding]:
    """``architectures``: by offering id and instance type."""
    named = f"providers.{provider}.image: {facts.name}"
    if facts.untold:
        yield unknown(WHAT, f"{named}: {facts.untold}", facts.fix)
        return
    if facts.missing:
        yield fault(WHAT, f"{named} {facts.missing}", facts.fix)
        return
    if facts.withdrawn:
        yield note(
            WHAT,
            f"{named} {facts.withdrawn}: it may go away at any time",
            "name a newer one in burst.yaml (docs/images.md)",
        )
    other: dict[str, str] = {}
    for types in architectures.values():
        for name, fitting in types.items():
            if facts.architecture and fitting and facts.architecture not in fitting:
                other[name] = " or ".join(sorted(fitting))
    for name, runs in sorted(other.items()):
        yield fault(
            WHAT,
            f"{named} is of architecture {facts.architecture}, instance_type {name} runs {runs}: no machine of it can start",
            f"an image of architecture {runs}, under a provider of its own in burst.yaml, or an instance_type that runs {facts.architecture}",
        )
