"""The newest checkpoint that verifies, and whether it is one of this program's."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping
from functools import partial

import torch

from job_wrapper.checkpoint import config as configuration
from job_wrapper.checkpoint import outage
from job_wrapper.checkpoint.committer import Committer
from job_wrapper.checkpoint.loading import Loaded, read_state
from job_wrapper.client import Restore
from job_wrapper.errors import BEGIN_ANEW, ConfigChanged, Damaged, NewerFormat, ObjectMissing, RestoreFailed

log = logging.getLogger("spotburst")


def newest(
    committer: Committer, part: str, version: int, own: Mapping[str, torch.Tensor], point: Restore | None
) -> tuple[Loaded, Restore] | None:
    """The state at ``point`` or the newest before it that verifies; damaged ones are reported. None if ``point`` is.

    ``version`` is the format of the tree, ``own`` the tensors that ``Loaded.fill`` may write into. Raises ``NewerFormat``,
    ``RestoreFailed``, ``StoreAway`` and the store's errors.
    """
    while point is not None:
        try:
            read = partial(read_state, committer.store, point.manifest, part, own)
            loaded = outage.read_patiently(committer, read)
            if loaded.tree["format"] != version:
                raise Damaged(f"state of format {loaded.tree['format']!r}, which this version does not know")
            return loaded, point
        except NewerFormat:
            raise  # an older one would only hide that this attempt runs an older version
        except (Damaged, KeyError, TypeError) as error:
            log.warning("the checkpoint of step %s can't be restored: %s", point.step, error)
            point = committer.restore_failed(point.entry, str(error))
    return None


def fill(committer: Committer, loaded: Loaded, where: str) -> None:
    """Read what has been verified into the program's tensors. Raises ``RestoreFailed`` if it isn't there any more."""
    try:
        outage.read_patiently(committer, loaded.fill)
    except (Damaged, ObjectMissing) as error:
        raise RestoreFailed(
            f"{where} was whole a moment ago and can't be read any more, half of it is restored: start the program again. {error}"
        ) from error


def tracker_id(address: str | None) -> str:
    """A new id for an experiment tracker's run, but the same in a second attempt that finds no commit of the first.

    ``address`` of the run, ``URI/RUN``; None where there are no checkpoints.
    """
    return (uuid.uuid4() if address is None else uuid.uuid5(uuid.NAMESPACE_URL, address)).hex


def check_parts(saved: Collection[str], given: Collection[str], allowed: Collection[str], where: str) -> None:
    """Raises ``ConfigChanged`` if the state that was saved has other parts than the program's, but for those that are allowed. Pure."""
    differing = [
        f"  {name}: {'not ' if name not in saved else ''}in the checkpoint, {'not ' if name not in given else ''}given now"
        for name in sorted({*saved} ^ {*given})
        if name not in allowed and "*" not in allowed
    ]
    if differing:
        raise ConfigChanged(
            f"this program's state is not made of the same parts as {where}:\n" + "\n".join(differing) + "\n"
            f"Name them in {configuration.ALLOW_VARIABLE} to go on without, or {BEGIN_ANEW}"
        )
