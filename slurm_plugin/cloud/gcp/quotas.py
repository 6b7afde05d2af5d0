"""What of a project's quotas in a region counts a machine. Pure.

Source: Compute Engine API v1, ``regions.get`` and ``Quota``; Compute Engine documentation, "Allocation quotas" and "Spot VMs". Where the project
has no preemptible quota, spot machines are counted by the one of other machines. GPUs that are counted by family only stand in no region's list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from slurm_plugin.cloud.gcp.prices import Parts
from slurm_plugin.cloud.provider import Market, Offering
from slurm_plugin.cloud.quotas import Quota, Take, Ways

_SPOT = "PREEMPTIBLE_"
_OF_ALL = ("e2", "f1", "g1", "n1")
"""Series that ``CPUS`` counts where they have no metric of their own."""


def ways(
    told: Mapping[str, tuple[float, float]], place: str, parts: Mapping[str, Parts], offerings: Collection[Offering]
) -> dict[str, Ways]:
    """See ``TellsQuotas``. ``told``: limit and usage by metric; ``parts``: by offering id."""
    found: dict[str, Ways] = {}
    for offering in offerings:
        if offering.id in parts:
            taken = takes(told, place, offering.instance_type, parts[offering.id], offering.market)
            if taken is not None:
                found[offering.id] = (taken,) if taken else ()
    return found


def takes(
    told: Mapping[str, tuple[float, float]], place: str, instance_type: str, parts: Parts, market: Market
) -> tuple[Take, ...] | None:
    """What a machine takes. ``told``: limit and usage by metric. None where a GPU of it, or its CPUs where it has none, is not counted there.

    Machine types that come with GPUs are counted by these: which metric counts their CPUs differs, and is never the smaller one.
    """
    if market is Market.RESERVATION:
        return ()  # counted when the reservation was made
    found = []
    for metrics, each, unit in _counted(instance_type, parts):
        metric = _metric(told, metrics, market)
        if metric is None:
            return None
        limit, used = told[metric]
        more = f"ask for more of {metric} in {place} (Google Cloud console, IAM & Admin, Quotas)"
        found.append(Take(Quota(metric, place, limit, used, unit, more), each))
    return tuple(found)


def _counted(instance_type: str, parts: Parts) -> list[tuple[tuple[str, ...], float, str]]:
    """Metrics that may count it, the likeliest first; how many; of what."""
    if parts.gpus:
        return [(_gpu_metrics(kind), float(count), "GPUs") for kind, count in parts.gpus if count > 0]
    series = instance_type.partition("-")[0]
    metrics = (f"{series.upper()}_CPUS", *(("CPUS",) if series in _OF_ALL else ()))
    return [(metrics, float(parts.cpus), "vCPUs")] if parts.cpus > 0 else []


def _gpu_metrics(kind: str) -> tuple[str, ...]:
    """``nvidia-tesla-t4`` is counted by NVIDIA_T4_GPUS, ``nvidia-h100-80gb`` by NVIDIA_H100_GPUS."""
    plain = kind.replace("-tesla-", "-").upper().replace("-", "_")
    return f"{plain}_GPUS", f"{plain.removesuffix('_80GB')}_GPUS"


def _metric(told: Mapping[str, tuple[float, float]], metrics: tuple[str, ...], market: Market) -> str | None:
    own = _first(told, metrics)
    if market is not Market.SPOT:
        return own
    of_spot = [_SPOT + metric for metric in metrics]
    if own is not None and own.endswith("CPUS"):
        of_spot.append(f"{_SPOT}CPUS")  # of all series
    spot = _first(told, of_spot)
    if spot is not None and (told[spot][0] > 0 or own is None or told[own][0] <= 0):
        return spot
    return own


def _first(told: Mapping[str, tuple[float, float]], metrics: Iterable[str]) -> str | None:
    for metric in metrics:
        if metric in told:
            return metric
    return None
