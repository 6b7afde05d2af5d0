"""``spotburst suspend JOB``: a checkpoint, then the job is held and its nodes are free. `resume` lets it go on."""

from __future__ import annotations

import contextlib
import time

from job_wrapper.errors import CheckpointFailed, SpotburstError
from job_wrapper.run import asked
from job_wrapper.store.io_types import CommitRef, Kind
from slurm_plugin.cli.acting import NotPossible, SlurmJobArgument, as_owner, commands, find_job, require_running
from slurm_plugin.cli.outcome import Outcome, outcome
from slurm_plugin.cli.source import ClusterOption, ConfigOption, EndpointOption, JsonOption, UriOption, place, settings
from slurm_plugin.cli.target import KeptNameOption, NoAnswer, NoWaitOption, Target, WaitOption, at, seconds, target
from slurm_plugin.slurm.cli import CliClient

RELEASED_WITHIN = 120.0
"""Seconds that Slurm is given to end the attempt's last processes."""


def command(
    job: SlurmJobArgument,
    name: KeptNameOption = None,
    no_wait: NoWaitOption = False,
    timeout: WaitOption = "10m",
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Have a job commit a checkpoint, and hold it: its nodes are free until `spotburst resume`."""
    patience, known = seconds(timeout), settings(config)
    client = commands(known)
    shown = find_job(client.jobs(), job)
    back = f"`spotburst resume {job}` lets it go on"

    def say(word: str, text: str, commit: CommitRef | None = None, run: str | None = None) -> None:
        outcome(json, Outcome.of(job, word, text, run, commit))

    if shown.has("PENDING") and not shown.has("COMPLETING"):
        if shown.priority == 0:
            say("unchanged", f"job {job} is held already; {back}")
            return
        with as_owner(shown):
            client.hold(shown.name_id)
        say("held", f"job {job} was waiting, and is held now; {back}")
        return
    require_running(shown, "there is nothing to suspend")
    if not shown.batch or not shown.requeue:
        how = "was started by srun or salloc" if not shown.batch else "was submitted with --no-requeue"
        raise NotPossible(
            f"job {job} {how}, so Slurm can't hold it and start it again. `spotburst cancel {job} --keep-checkpoint` ends it after a "
            "checkpoint, from which a new job goes on"
        )
    wanted = target(shown, job, name, place(known, uri, endpoint_url, cluster))
    with as_owner(shown):
        client.hold(shown.name_id)  # the wrapper sees it, and a requeue by anybody else keeps it held too
        try:
            client.signal(shown.name_id, asked.SIGNAL.name.removeprefix("SIG"))
        except SpotburstError:
            _take_back(client, shown.name_id)
            raise
    if no_wait:
        say("asked", f"job {job} was asked: it is held once its checkpoint is committed; {back}", run=wanted.run)
        return
    try:
        entry = wanted.wait(Kind.SUSPENDED, client, patience)
    except CheckpointFailed:
        _take_back(client, shown.name_id)
        raise
    except NoAnswer as error:
        raise NoAnswer(f"{error}. Then it is suspended; `spotburst resume {job}` takes that back") from None
    except NotPossible:
        if not _held(client, wanted):
            raise
        say("interrupted", f"job {job} was interrupted at the same moment, and is held; {back}", run=wanted.run)
        return
    newest = entry.summary.commits[-1] if entry.summary.commits else None
    freed = "; its nodes are free" if _wait_until_held(client, wanted) else ", and its last processes are ending"
    say("suspended", f"job {job} is suspended at {at(newest)}{freed}. {back}", newest, wanted.run)


def _take_back(client: CliClient, job_id: str) -> None:
    with contextlib.suppress(SpotburstError):
        client.release(job_id)


def _held(client: CliClient, wanted: Target) -> bool:
    """Whether it waits, held, with no attempt left."""
    try:
        shown = find_job(client.jobs(), wanted.job.name_id)
    except SpotburstError:
        return False
    return shown.has("PENDING") and not shown.has("COMPLETING") and shown.priority == 0


def _wait_until_held(client: CliClient, wanted: Target) -> bool:
    until = time.monotonic() + RELEASED_WITHIN
    while time.monotonic() < until:
        if _held(client, wanted):
            return True
        time.sleep(0.5)
    return False
