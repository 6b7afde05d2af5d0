"""What slurmctld asked for: the files that ``resume_scripts`` leave in ``<state_dir>/requests``.

A request stays until it is removed; acting upon one twice must do nothing the second time.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import structlog

from slurm_plugin.errors import ConfigError
from slurm_plugin.slurm.hostlist import expand

log = structlog.get_logger(__name__)

Kind = Literal["resume", "suspend", "resume_fail"]
_ABANDONED = 3600.0
"""Seconds after which an unfinished file is taken for the remains of a crash."""


@dataclass(frozen=True, slots=True)
class RequestedJob:
    """One job that waits: its ``nodes``, and those of them that this call is to ``resume`` (ResumeRate may split a job)."""

    job_id: int
    nodes: tuple[str, ...]
    resume: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One call of ResumeProgram, SuspendProgram or ResumeFailProgram.

    ``time`` is Unix seconds of the call. ``jobs`` is None where Slurm did not tell (``note`` says why) and for the other two
    kinds; ``nodes`` holds also nodes that no job of ``jobs`` wants (powered up by hand).
    """

    kind: Kind
    nodes: tuple[str, ...]
    time: float
    path: Path
    jobs: tuple[RequestedJob, ...] | None = None
    note: str = ""


def read_requests(state_dir: Path) -> list[Request]:
    """All requests not yet removed, oldest first. An unreadable one is moved to ``requests/bad`` and logged.

    Raises ``ConfigError`` when the folder itself can't be read.
    """
    folder = state_dir / "requests"
    try:
        paths = sorted(p for p in folder.iterdir() if p.suffix == ".json" and p.is_file())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{folder}: can't be read: {error.strerror}; state_dir must belong to SlurmUser") from error
    requests = []
    for path in paths:
        if path.name.startswith("."):
            _drop_if_abandoned(path)
            continue
        try:
            requests.append(_read(path))
        except FileNotFoundError:
            continue
        except Exception as error:  # whatever is wrong with one file, the others are read
            _set_aside(path, error)
    return requests


def remove(request: Request) -> None:
    """The request is done. No error if it is gone already."""
    request.path.unlink(missing_ok=True)


def _read(path: Path) -> Request:
    data: Any = json.loads(path.read_text(encoding="utf-8"))
    if data["kind"] not in get_args(Kind):
        raise ValueError(f"kind {data['kind']!r} is none of {', '.join(get_args(Kind))}")
    nodes = expand(data["hostlist"])
    if not nodes:
        raise ValueError("no nodes")
    jobs, note = data.get("jobs"), str(data.get("note", ""))
    try:
        read = None if jobs is None else tuple(map(_job, jobs))
    except Exception as error:  # the nodes are wanted all the same
        read, note = None, f"what Slurm tells of its jobs can't be read ({error}): launching by the hostlist alone"
    return Request(kind=data["kind"], nodes=nodes, time=float(data["time"]), path=path, jobs=read, note=note)


def _job(told: Any) -> RequestedJob:
    return RequestedJob(int(told["job_id"]), expand(told["nodes"]), expand(told["resume"]))


def _set_aside(path: Path, error: Exception) -> None:
    log.error("unreadable request set aside", path=str(path), error=str(error))
    bad = path.parent / "bad"
    try:
        bad.mkdir(exist_ok=True)
        path.rename(bad / path.name)
    except OSError as failure:
        log.error("a request can't be set aside", path=str(path), error=str(failure))


def _drop_if_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _ABANDONED:
            path.unlink()
