"""Names in the store: which keys are allowed, and where each thing lies (the layout is told in ``io_types``)."""

from __future__ import annotations

import re

from job_wrapper.errors import Damaged, UsageError

_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._=+@,:-]+"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_ENTRY = re.compile(r"([0-9]{8})\.json\Z")
_EPOCH = re.compile(r"e([0-9]{8})\Z")
MAX_KEY = 1024
"""Longest key in bytes: S3's limit."""
MAX_SEQ = 99_999_999
PROOF_KEY = ".spotburst/store.json"
PROBE_PREFIX = ".spotburst/probe/"


def short(value: object) -> str:
    """A stored value for an error's text: it may be anything, of any depth and length."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep; a number with too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else text[:100] + "…"


def is_key(key: object) -> bool:
    """Whether ``key`` may name an object: relative, ``/``-separated, no empty, ``.`` or ``..`` segment, plain ASCII.

    ``~`` is never part of a key, so the POSIX store marks its unfinished files with it.
    """
    return isinstance(key, str) and len(key) <= MAX_KEY and _KEY.match(key) is not None


def check_key(key: str, where: str) -> str:
    """``key`` itself if it is allowed. Raises ``Damaged`` naming ``where`` it was read from."""
    if not is_key(key):
        raise Damaged(f"{where}: {short(key)} is not a name that spotburst gives to a stored object")
    return key


def check_name(name: str, what: str) -> str:
    """``name`` itself if it can be one step of a path in the store. Raises ``UsageError`` naming ``what`` it is."""
    if not _NAME.match(name):
        raise UsageError(
            f"{what} {name!r}: use 1 to 128 letters, digits, '.', '_' and '-', beginning with a letter or a digit"
        )
    return name


def run_path(cluster: str, job: str, name: str = "main") -> str:
    """``<cluster>/<job>/<name>``; ``job`` is a job id, ``<array job>_<task>``, or a name that outlives the job."""
    check_name(cluster, "cluster name")
    if job == "jobs":
        raise UsageError("run name 'jobs': this name is taken for spotburst's own use; choose another with --run")
    return f"{cluster}/{check_name(job, 'run name')}/{check_name(name, 'name')}"


def is_run(text: str) -> bool:
    """Whether ``text`` is a run's path as ``run_path`` makes it."""
    steps = text.split("/")
    return len(steps) == 3 and all(_NAME.match(step) for step in steps)


def job_pointer(cluster: str, job_id: str, name: str) -> str:
    """Key of the pointer from a job to one of its runs. ``name`` is the run's name within the job."""
    return f"{check_name(cluster, 'cluster name')}/jobs/{check_name(job_id, 'job id')}/{name}"


def pointer_of_run(run: str, job_id: str) -> str:
    """Key of the pointer that ``job_id`` keeps to ``run``; a run that is not named after the job keeps its own name in it."""
    cluster, job, name = run.split("/")
    return job_pointer(cluster, job_id, name if job == job_id else f"{job}+{name}")


def log_prefix(run: str) -> str:
    """Prefix of all log entries of a run."""
    return f"{run}/log/"


def log_key(run: str, seq: int) -> str:
    """Key of one log entry."""
    return f"{run}/log/{seq:08d}.json"


def seq_of(key: str) -> int | None:
    """Sequence number of a log entry's key; None for a foreign object."""
    match = _ENTRY.match(key.rpartition("/")[2])
    return int(match.group(1)) if match else None


def data_root(run: str) -> str:
    """Prefix of all checkpoint data of a run."""
    return f"{run}/data/"


def data_prefix(run: str, epoch: int) -> str:
    """Where the holder of ``epoch`` writes, without a ``/`` at the end."""
    return f"{run}/data/e{epoch:08d}"


def gang_prefix(run: str, epoch: int) -> str:
    """Where the wrappers of that attempt on several nodes tell each other things, with a ``/`` at the end."""
    return f"{data_prefix(run, epoch)}/gang/"


def epoch_of(run: str, key: str) -> int | None:
    """The epoch under whose prefix a data object of ``run`` lies; None for a foreign object."""
    root = data_root(run)
    if not key.startswith(root):
        return None
    match = _EPOCH.match(key[len(root) :].partition("/")[0])
    return int(match.group(1)) if match else None
