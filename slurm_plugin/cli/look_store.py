"""What ``check`` looks at in the checkpoint store, from whichever machine."""

from __future__ import annotations

from collections.abc import Iterator

from job_wrapper.errors import SpotburstError
from job_wrapper.store import open_store
from job_wrapper.store.paths import PROOF_KEY
from slurm_plugin.checks import clocks, reading
from slurm_plugin.checks.finding import Finding, fault, ok, unknown

WHAT = "checkpoint store"


def look_store(uri: str, endpoint_url: str, *, joins: bool, mark: str = "", used: bool = False) -> Iterator[Finding]:
    """``joins``: the machine joins a store that the controller has begun, so a folder without its mark is none of it, and none is made.

    ``mark``: of the controller's store, as this machine was told. ``used``: this is the controller, and its manager has seen the store.
    """
    try:
        folder = reading.store_folder(uri) if joins else None
        if folder is not None and not (folder / PROOF_KEY).exists():
            seen = "has not been used for checkpoints yet" if folder.is_dir() else "is not there"
            yield fault(
                WHAT,
                f"{uri}: {folder} {seen} on this machine: its file system may not be mounted, and jobs would begin from nothing",
                f"mount it as on the controller; if it is mounted, `spotburst store check {uri}` on the controller begins it",
            )
            return
        open_store(uri, endpoint_url=endpoint_url, mark=mark, used=used)
    except SpotburstError as error:
        fix = f"`spotburst store check {uri}` says which promise is not kept; docs/stores.md says what can be used"
        if used:
            # That marks what it finds: a bare mount point would be the store from then on.
            fix = f"mount its file system, if that is not there; once it is, {fix}"
        yield fault(WHAT, str(error), fix)
        return
    except OSError as error:
        yield unknown(WHAT, f"{uri}: {error.strerror}", "run this as root or SlurmUser")
        return
    yield ok(WHAT, f"{uri}: safe (spotburst store check measures it)")
    clock = reading.store_clock(uri, endpoint_url)
    if clock is None:
        yield unknown("clock", "could not be compared with the checkpoint store's: its server tells no time")
    else:
        yield from clocks.agree(clock)
