"""The image that burst.yaml names, as Azure shows it: a managed image, one of a gallery, or one of the marketplace.

Source: Azure REST API, Microsoft.Compute, "Images - Get", "Gallery Images - Get", "Gallery Image Versions - List By Gallery Image", "Virtual Machine
Images - Get"; Azure documentation, "Supply Azure Marketplace purchase plan information".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from slurm_plugin.cloud.asking import asking
from slurm_plugin.cloud.azure import catalog
from slurm_plugin.cloud.azure.client import Arm
from slurm_plugin.cloud.images import ImageFacts
from slurm_plugin.cloud.instants import unix_seconds
from slurm_plugin.cloud.provider import Offering
from slurm_plugin.cloud.refusals import or_none

ARCHITECTURES = {"x64": "x86_64", "arm64": "arm64"}
"""As Azure names them, in lower case, to what ``ImageFacts`` has."""
_COMPUTE = r"/subscriptions/([^/]+)/resourceGroups/([^/]+)/providers/Microsoft\.Compute/"
_MANAGED = re.compile(_COMPUTE + r"images/([^/]+)", re.IGNORECASE)
_GALLERY = re.compile(_COMPUTE + r"galleries/([^/]+)/images/([^/]+)(?:/versions/([^/]+))?", re.IGNORECASE)
_MAKE = "name one that there is in burst.yaml, or make it (docs/images.md)"
_READ = "Microsoft.Compute/"
VERSIONS = _READ + "locations/publishers/artifacttypes/offers/skus/versions/read"


def image(provider: str, api: Arm, now: float) -> ImageFacts:
    """See ``DescribesImages``. ``now``: Unix seconds."""
    name, region = api.config.image, api.config.region
    if managed := _MANAGED.fullmatch(name):
        with asking(provider, f"{_READ}images/read"):
            found = or_none(lambda: api.managed_image(*managed.groups()))
        return of_managed(name, found, region)
    if gallery := _GALLERY.fullmatch(name):
        place, version = gallery.groups()[:4], gallery[5]
        with asking(provider, f"{_READ}galleries/images/read"):
            found = or_none(lambda: api.gallery_image(*place))
        if found is None:
            return ImageFacts(
                name, missing="is not there, or not for this account to see: no machine can start", fix=_MAKE
            )
        with asking(provider, f"{_READ}galleries/images/versions/read"):
            versions = api.gallery_versions(*place)
        return of_gallery(name, found, versions, version or "latest", region, now)
    parts = name.split(":")
    if len(parts) in (3, 4) and all(parts):
        return _of_market(provider, api, name, [*parts, "latest"][:4])
    if name.startswith(("/communityGalleries/", "/sharedGalleries/")):
        return ImageFacts(name, untold="images that others share by such a path are not looked at")
    return ImageFacts(
        name,
        missing="is no image's name: Azure refuses it",
        fix="write the resource id of an image (/subscriptions/…), or publisher:offer:sku:version, as image in burst.yaml",
    )


def of_managed(name: str, record: Mapping[str, Any] | None, region: str) -> ImageFacts:
    """A managed image, by its record. Pure."""
    if record is None:
        return ImageFacts(name, missing="is not there: no machine can start", fix=_MAKE)
    where = str(record.get("location") or "")
    if _plain(where) != _plain(region):
        elsewhere = f"lies in {where}, and machines of {region} can't boot from it"
        return ImageFacts(
            name,
            missing=elsewhere,
            fix=f"an image of {region}, or one of a gallery, that has copies in several regions",
        )
    return _unready(name, record) or ImageFacts(name)


def of_gallery(
    name: str,
    definition: Mapping[str, Any],
    versions: Iterable[Mapping[str, Any]],
    wanted: str,
    region: str,
    now: float,
) -> ImageFacts:
    """A gallery's image. ``wanted``: a version, or ``latest``; ``now``: Unix seconds. Pure."""
    about = definition.get("properties") or {}
    if about.get("purchasePlan"):
        return _bound_to_plan(name)
    known = {str(one.get("name")): one for one in versions}
    if wanted.lower() == "latest":
        fitting = {v: one for v, one in known.items() if _in_region(one, region, latest=True)}
        if not fitting:
            none = "has no version" if not known else f"has no version in {region} that counts as the latest"
            copies = f"make a version with {region} among its target regions (docs/images.md)"
            return ImageFacts(name, missing=f"{none}: no machine can start", fix=copies)
        version = max(fitting, key=_number)
        name = f"{name} ({version})"
    else:
        version = wanted
        if version not in known:
            return ImageFacts(
                name, missing=f"is not there (versions: {', '.join(sorted(known, key=_number)) or 'none'})", fix=_MAKE
            )
        if not _in_region(known[version], region, latest=False):
            there = f"has no copy in {region}: no machine can start"
            return ImageFacts(
                name,
                missing=there,
                fix=f"add {region} to the version's target regions, or name another version in burst.yaml",
            )
    chosen = known[version]
    end = str(((chosen.get("properties") or {}).get("publishingProfile") or {}).get("endOfLifeDate") or "")
    over = unix_seconds(end)
    return _unready(name, chosen) or ImageFacts(
        name,
        withdrawn=f"is past its end of life ({end})" if over is not None and over <= now else "",
        architecture=ARCHITECTURES.get(str(about.get("architecture")).lower(), ""),
    )


def of_market(name: str, record: Mapping[str, Any]) -> ImageFacts:
    """A version of the marketplace's. Pure."""
    about = record.get("properties") or {}
    if about.get("plan"):
        return _bound_to_plan(name)
    status = about.get("imageDeprecationStatus") or {}
    state = str(status.get("imageState") or "")
    if state == "Deprecated":
        other = "another image in burst.yaml" + (
            f": {status['alternativeOption']}" if status.get("alternativeOption") else ""
        )
        return ImageFacts(name, missing="is deprecated: Azure makes no more machines from it", fix=other)
    when = f" for {status['scheduledDeprecationTime']}" if status.get("scheduledDeprecationTime") else ""
    return ImageFacts(
        name,
        withdrawn=f"is to be deprecated{when}" if state == "ScheduledForDeprecation" else "",
        architecture=ARCHITECTURES.get(str(about.get("architecture")).lower(), ""),
    )


def architectures(
    skus: Mapping[str, Mapping[str, Any]], offerings: Collection[Offering]
) -> dict[str, dict[str, frozenset[str]]]:
    """See ``DescribesImages``. ``skus``: by offering id. Pure."""
    found = {}
    for offering in offerings:
        if offering.id in skus and catalog.read(skus[offering.id]) is not None:
            told = catalog.capabilities(skus[offering.id]).get("CpuArchitectureType", "").lower()
            if told in ARCHITECTURES:
                found[offering.id] = {offering.instance_type: frozenset({ARCHITECTURES[told]})}
    return found


def _of_market(provider: str, api: Arm, name: str, parts: list[str]) -> ImageFacts:
    publisher, offer, sku, version = parts
    region = api.config.region
    with asking(provider, VERSIONS):
        if version.lower() == "latest":
            versions = or_none(lambda: api.market_versions(publisher, offer, sku)) or []
            if not versions:
                return ImageFacts(
                    name, missing=f"is not in {region}: no machine can start", fix=_list(region, publisher, offer)
                )
            version = max(versions, key=_number)
            name = f"{name} ({version})"
        record = or_none(lambda: api.market_image(publisher, offer, sku, version))
    if record is None:
        return ImageFacts(
            name, missing=f"is not in {region}: no machine can start", fix=_list(region, publisher, offer)
        )
    return of_market(name, record)


def _list(region: str, publisher: str, offer: str) -> str:
    shown = f"`az vm image list --all --location {region} --publisher {publisher} --offer {offer}`"
    return f"name one in burst.yaml that {shown} shows"


def _bound_to_plan(name: str) -> ImageFacts:
    return ImageFacts(
        name,
        missing="is sold under a purchase plan, which spotburst does not sign: Azure refuses every machine",
        fix="name an image without a plan in burst.yaml (docs/images.md)",
    )


def _unready(name: str, record: Mapping[str, Any]) -> ImageFacts | None:
    state = str((record.get("properties") or {}).get("provisioningState") or "Succeeded")
    if state == "Succeeded":
        return None
    wait = "wait until it is there" if state in ("Creating", "Updating", "Migrating") else _MAKE
    return ImageFacts(name, missing=f"is in state {state}, not Succeeded: no machine can start", fix=wait)


def _in_region(version: Mapping[str, Any], region: str, *, latest: bool) -> bool:
    """Whether the version has a copy in the region. ``latest``: and counts as the latest there."""
    profile = (version.get("properties") or {}).get("publishingProfile") or {}
    if latest and profile.get("excludeFromLatest"):
        return False
    return any(
        _plain(str(target.get("name"))) == _plain(region) and not (latest and target.get("excludeFromLatest"))
        for target in profile.get("targetRegions") or ()
    )


def _plain(region: str) -> str:
    """``West Europe`` and ``westeurope`` are the same."""
    return region.replace(" ", "").lower()


def _number(version: str) -> tuple[int, ...]:
    """``1.2.10`` is newer than ``1.2.9``."""
    return tuple(int(part) if part.isdecimal() else -1 for part in version.split("."))
