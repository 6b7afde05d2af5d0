"""Where the answers come from: the run's log in the store, Slurm, the manager's ledger; and which run a JOB means."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from job_wrapper.errors import UsageError
from job_wrapper.node_config import load_node_config
from job_wrapper.run.identity import LOCAL
from job_wrapper.store import RunLog, find_runs, open_store, run_path
from job_wrapper.store.freeing import is_freed
from job_wrapper.store.io_types import Entry, ObjectStore
from job_wrapper.store.shown import without_end
from slurm_plugin.cli import completion
from slurm_plugin.cli.asking import PlainClient
from slurm_plugin.cli.from_ledger import from_ledger, number_of
from slurm_plugin.cli.job_ids import holds, instead_of, is_job_id
from slurm_plugin.cli.story import ran_outside_slurm
from slurm_plugin.config import Config, find_config, load_config
from slurm_plugin.errors import ConfigError, SlurmRefused, SlurmUnavailable
from slurm_plugin.ledger_records import Event
from slurm_plugin.slurm.connect import require_conf
from slurm_plugin.slurm.records import Job

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Job id as Slurm shows it (123, 123_4, 123+1), or the name given with --run.",
        autocompletion=completion.jobs,
    ),
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Which of the job's wrapped programs; needed only where there are several.")
]
UriOption = Annotated[
    str | None, typer.Option("--uri", help="Where checkpoints are; else what burst.yaml or node.json says.")
]
EndpointOption = Annotated[
    str | None, typer.Option("--endpoint-url", help="The store's server, if it is not the cloud's own.")
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="Slurm's ClusterName; else what burst.yaml or node.json says.")
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="burst.yaml; else looked for beside slurm.conf.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings(path: Path | None) -> Config | None:
    """burst.yaml, or None where there is none that this user may read. One that is wrong is an error, as is a missing one that was named."""
    if path is not None:
        return load_config(path)
    try:
        found = find_config()
    except ConfigError:
        return None
    return load_config(found) if os.access(found, os.R_OK) else None


def needed_settings(path: Path | None) -> Config:
    """burst.yaml, for a command that can do nothing without it. Raises ``ConfigError``."""
    return load_config(path or find_config())


@dataclass(frozen=True, slots=True)
class Place:
    """A store and the cluster whose runs are meant. ``given``: by the arguments, so no other is."""

    store: ObjectStore
    cluster: str
    given: bool = False


def place(config: Config | None, uri: str | None, endpoint_url: str | None, cluster: str | None) -> Place:
    """The store and cluster that the arguments, burst.yaml or node.json name, in this order. Raises ``UsageError``, ``StoreError``."""
    node = load_node_config()
    if config is not None:
        known, known_endpoint, name = config.checkpoints.uri, config.checkpoints.endpoint_url or "", config.cluster
    else:
        known, known_endpoint, name = node.uri, node.endpoint_url, node.cluster
    chosen = without_end(uri or known)
    if not chosen:
        raise UsageError(
            "no place of checkpoints is known here (no readable burst.yaml, no node.json): "
            "export SLURM_CONF (burst.yaml is looked for beside it), or give --uri"
        )
    # Where nothing tells of a cluster, a run was started outside Slurm, and `run.identity` has named it so.
    whose = cluster or name or os.environ.get("SLURM_CLUSTER_NAME") or LOCAL
    endpoint = endpoint_url if endpoint_url is not None else ("" if uri else known_endpoint)
    _must_exist(chosen)
    return Place(open_store(chosen, endpoint_url=endpoint, prove=False), whose, given=cluster is not None)


def _must_exist(uri: str) -> None:
    """Opening the store would take a folder that was mistyped for a file system that went away."""
    path = uri if uri.startswith("/") else unquote(urlsplit(uri).path) if uri.startswith("file:") else None
    if path is not None and not Path(path).is_dir():
        raise UsageError(f"{uri}: there is no such folder here, so there are no checkpoints in it")


def slurm_client(config: Config | None) -> PlainClient:
    """As burst.yaml says, or by the commands on PATH and SLURM_CONF. Raises ``ConfigError`` when burst.yaml's slurm.conf isn't there."""
    if config is not None:
        require_conf(config.slurm)
    return PlainClient(config)


def slurm_job(config: Config | None, job: str) -> tuple[Job | None, str | None]:
    """(the job as Slurm shows it or None, why Slurm could not be asked or None, in one short sentence)."""
    try:
        jobs = slurm_client(config).jobs()
    except (SlurmUnavailable, SlurmRefused, ConfigError) as error:
        return None, str(error)
    shown = next((j for j in jobs if job in (j.name_id, str(j.job_id))), None)
    if shown is None:
        shown = next((replace(j, name_id=job) for j in jobs if holds(j.name_id, job)), None)
    return shown, None


def writers_job(config: Config | None, last: Entry | None) -> tuple[Job | None, str | None]:
    """As ``slurm_job``, of the job that wrote this newest entry of a run; (None, None) for a run outside Slurm, about which nothing is asked."""
    if last is None or is_freed(last) or ran_outside_slurm(last):
        return None, None
    return slurm_job(config, last.writer.job_id)


def find_run(where: Place, job: str, name: str | None, shown: Job | None = None) -> str:
    """The path of the run that JOB and ``--name`` mean. Raises ``UsageError`` that says what there is instead."""
    if not is_job_id(job):
        told = instead_of(job)
        try:
            return _existing(where, job, name)
        except UsageError as error:
            raise (error if told is None else UsageError(told)) from None
    ids = [job, shown.name_id] if shown is not None and shown.name_id != job and is_job_id(shown.name_id) else [job]
    for job_id in ids:
        runs = find_runs(where.store, where.cluster, job_id.partition("+")[0])
        named = [r for r in runs if r.rpartition("/")[2] == name] if name else runs
        if len(named) == 1:
            return named[0]
        main = run_path(where.cluster, job_id.partition("+")[0])
        if not name and main in named:
            return main
        if named or runs:
            raise UsageError(f"job {job}: say which with --name: {', '.join(r.rpartition('/')[2] for r in runs)}")
    tasks = sorted({info.key.split("/")[2] for info in where.store.list(f"{where.cluster}/jobs/{job}_")})
    if tasks:
        raise UsageError(f"job {job} is an array: say which task; with checkpoints: {', '.join(tasks)}")
    return _existing(where, job, name)


@dataclass(frozen=True, slots=True)
class Found:
    """A job's run. ``shown``: the job as Slurm shows it, if Slurm was asked and knows it; ``slurm_error``: why it could not be asked."""

    config: Config | None
    where: Place
    path: str
    shown: Job | None
    slurm_error: str | None = None

    @property
    def log(self) -> RunLog:
        """The run's."""
        return RunLog(self.where.store, self.path)


def open_run(
    job: str,
    name: str | None,
    uri: str | None,
    endpoint_url: str | None,
    cluster: str | None,
    config: Path | None,
    *,
    ask_slurm: bool = False,
) -> Found:
    """The run that a command's arguments mean. Raises ``UsageError``, ``ConfigError``, ``StoreError``.

    Without ``ask_slurm`` Slurm is asked only about a JOB that is no plain number, which may have another id in the store. A JOB that is a
    run's name is no job's: with ``ask_slurm`` the job is meant that wrote to the run last.
    """
    known = settings(config)
    where = place(known, uri, endpoint_url, cluster)
    named = not is_job_id(job)
    shown, error = slurm_job(known, job) if not named and (ask_slurm or not job.isdigit()) else (None, None)
    path = find_run(where, job, name, shown)
    if named and ask_slurm:
        shown, error = writers_job(known, RunLog(where.store, path).tail())
    return Found(known, where, path, shown, error)


def _existing(where: Place, job: str, name: str | None) -> str:
    run = run_path(where.cluster, job, name or "main")
    found = bool(RunLog(where.store, run).seqs())
    if not found and not where.given and not is_job_id(job):
        outside = run_path(LOCAL, job, name or "main")
        if RunLog(where.store, outside).seqs():
            return outside
    if not found:
        raise UsageError(
            f"{job}: no run of it in {where.store.uri}/{where.cluster}: it has not reached `spotburst run` yet, "
            "or was refused there (its output says why), or it keeps its checkpoints elsewhere (--uri, --name, --cluster)"
        )
    return run


def _together(events: Sequence[Event]) -> Iterator[tuple[float, str]]:
    """What was said of many nodes at once, once."""
    counts: dict[tuple[str, int], tuple[float, int]] = {}
    for event in events:
        first, count = counts.get((event.text, int(event.time // 10)), (event.time, 0))
        counts[event.text, int(event.time // 10)] = first, count + 1
    for (text, _), (first, count) in counts.items():
        yield first, f"manager: {text}" + (f" ({count} times)" if count > 1 else "")


def decisions(config: Config | None, job: str, shown: Job | None) -> list[tuple[float, str]]:
    """What the manager noted about the job, where this user may read its ledger: (Unix seconds, words)."""
    number = number_of(job, shown)
    if config is None or number is None:
        return []
    events, _ = from_ledger(config, lambda ledger: ledger.events(job=number))
    return list(_together(events or ()))
