"""The image that burst.yaml names, as Compute Engine shows it.

Source: Compute Engine API v1, ``images.get``, ``images.getFromFamily``, ``Image`` and ``DeprecationStatus``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from slurm_plugin.cloud.gcp.client import Gce
from slurm_plugin.cloud.gcp.prices import Parts
from slurm_plugin.cloud.images import ImageFacts
from slurm_plugin.cloud.provider import Offering

ARCHITECTURES = {"X86_64": "x86_64", "ARM64": "arm64"}
"""As Compute Engine names them, to what ``ImageFacts`` has."""
_PATH = re.compile(r"(?:(?:https://[^/]+/compute/v1/)?projects/([^/]+)/)?global/images/(family/)?([^/]+)")
PUBLISH = "name one that there is in burst.yaml, or make it (docs/images.md)"


def permission(path: str) -> str:
    """What ``image`` needs."""
    return "compute.images.getFromFamily" if "/images/family/" in path else "compute.images.get"


def image(api: Gce) -> ImageFacts:
    """See ``DescribesImages``. Raises ``ApiError``."""
    path = api.config.image
    found = _PATH.fullmatch(path)
    if found is None:
        return ImageFacts(
            path,
            missing="is no image's path: Compute Engine refuses it",
            fix="write projects/PROJECT/global/images/NAME, or projects/PROJECT/global/images/family/NAME, as image in burst.yaml",
        )
    project = found[1] or api.config.project
    record = api.image(project, found[3], family=bool(found[2]))
    if record is None:
        kind = "family with an image that is still in use" if found[2] else "image"
        return ImageFacts(path, missing=f"names no {kind} in project {project}: no machine can start", fix=PUBLISH)
    return read(path, record)


def read(path: str, record: Any) -> ImageFacts:
    """What an image's record says. Pure."""
    shown = path if path.endswith(f"/images/{record.name}") else f"{path} ({record.name})"
    status, state = str(record.status or "READY"), str(record.deprecated.state or "")
    if status != "READY":
        wait = "wait until it is ready" if status == "PENDING" else PUBLISH
        return ImageFacts(shown, missing=f"is in status {status}, not READY: no machine can start", fix=wait)
    if state in ("OBSOLETE", "DELETED"):
        newer = record.deprecated.replacement.rsplit("/projects/", 1)[-1]
        fix = f"name its replacement in burst.yaml: projects/{newer.removeprefix('projects/')}" if newer else PUBLISH
        return ImageFacts(shown, missing=f"is {state}: Compute Engine makes no more machines from it", fix=fix)
    return ImageFacts(
        shown,
        withdrawn="is DEPRECATED" if state == "DEPRECATED" else "",
        architecture=ARCHITECTURES.get(str(record.architecture), ""),
    )


def architectures(parts: Mapping[str, Parts], offerings: Collection[Offering]) -> dict[str, dict[str, frozenset[str]]]:
    """See ``DescribesImages``. ``parts``: by offering id. Pure."""
    return {
        o.id: {o.instance_type: frozenset({ARCHITECTURES[parts[o.id].architecture]})}
        for o in offerings
        if o.id in parts and parts[o.id].architecture in ARCHITECTURES
    }
