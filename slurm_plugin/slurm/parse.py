"""What Slurm's commands print, to records. Pure: text in, records out.

The JSON differs from version to version, so each value is accepted in every shape that any of them has, in any mixture:

- numbers: ``5`` (22.05) or ``{"set": true, "infinite": false, "number": 5}`` (from 23.02 on);
- states: one string plus ``state_flags`` (22.05) or a list (from 23.11 on), in capitals or not;
- lists of names: a hostlist or comma-separated string, or a list.

Run against the real commands of 22.05.8 and 24.11.5; the shapes of the versions between are in their data_parser plugins.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import structlog

from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.slurm.hostlist import expand
from slurm_plugin.slurm.records import Job, Node, Partition, Start

log = structlog.get_logger(__name__)

Record = TypeVar("Record")

_UNSET = {0xFFFE, 0xFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF}
"""NO_VAL16, INFINITE16, NO_VAL, INFINITE, NO_VAL64, INFINITE64 (slurm.h): 22.05 prints them as plain numbers."""
_MOST = 1 << 64
"""Slurm counts in 64 bits at most. A larger number could not be reckoned with: it may be no float."""

_IMPLIED = {"CONFIGURING": "RUNNING", "SIGNALING": "RUNNING", "STOPPED": "RUNNING"}
"""22.05 prints one word for a job's state, the flag where there is one, though the job is RUNNING beneath it."""


def settings(text: str) -> dict[str, str]:
    """``scontrol show config``: what slurmctld runs with, by slurm.conf's names. "(null)" and "N/A" are ""."""
    found = re.findall(r"^(\w+)[ \t]*=[ \t]?(.*)$", text, re.MULTILINE)
    return {key: "" if value.strip() in ("(null)", "N/A") else value.strip() for key, value in found}


def slurmctld_start(text: str) -> Start:
    """From ``scontrol show config``. Raises ``SlurmUnavailable`` where it does not say when slurmctld began.

    That is in this machine's time of day: of the two that an hour of the year may be, the earlier is taken.
    """
    shown = settings(text)
    said = shown.get("BOOT_TIME", "")
    try:
        began = datetime.strptime(said, "%Y-%m-%dT%H:%M:%S").timestamp()
    except (ValueError, OverflowError, OSError):  # no time, or none that a clock can count
        raise SlurmUnavailable(f"scontrol show config: BOOT_TIME is {said!r}") from None
    return Start(began, bool(shown.get("HealthCheckProgram")))


def parse_jobs(text: str, command: str) -> tuple[Job, ...]:
    """``squeue --json``. Raises ``SlurmUnavailable`` when the answer as a whole can't be read."""
    return _records(text, "jobs", job, command)


def parse_nodes(text: str, command: str) -> tuple[Node, ...]:
    """``sinfo --json`` of 22.05 or ``scontrol show nodes --json``. Raises ``SlurmUnavailable`` like ``parse_jobs``."""
    return _records(text, "nodes", node, command)


def parse_partitions(text: str, command: str) -> tuple[Partition, ...]:
    """``scontrol show partition -o``: a line each. Text, because JSON leaves out PreemptMode. Raises ``SlurmUnavailable``."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) == 1 and lines[0].startswith("No partitions"):
        return ()
    return _readable(lines, partition, "partitions", command)


def _records(text: str, key: str, read: Callable[[Any], Record], command: str) -> tuple[Record, ...]:
    try:
        # strict=False: comments may hold raw control characters.
        answer = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise SlurmUnavailable(f"{command}: the answer is not JSON ({error}); it begins {text[:80]!r}") from None
    return records_of(answer, key, read, command)


def records_of(answer: Any, key: str, read: Callable[[Any], Record], command: str) -> tuple[Record, ...]:
    """The records of an answer that is read already; ``read`` is ``job`` or ``node``. Raises ``SlurmUnavailable`` like ``parse_jobs``."""
    if not isinstance(answer, dict):
        raise SlurmUnavailable(f"{command}: the answer is not a JSON object")
    if answer.get("errors"):
        raise SlurmUnavailable(f"{command}: {_errors(answer['errors'])}")
    items = answer.get(key)
    if not isinstance(items, list):
        raise SlurmUnavailable(f"{command}: the answer has no list of {key}")
    return _readable(items, read, key, command)


def _readable(items: list[Any], read: Callable[[Any], Record], what: str, command: str) -> tuple[Record, ...]:
    """The records that can be read. None at all, of some, means that the format is not understood: an error, never ()."""
    records: list[Record] = []
    fault: Exception | None = None
    for item in items:
        try:
            records.append(read(item))
        except Exception as error:  # whatever is wrong with one record, the others are read
            fault = error
            log.warning(
                "unreadable record left out", command=command, kind=what, error=str(error), record=str(item)[:200]
            )
    if fault is not None and not records:
        raise SlurmUnavailable(f"{command}: none of {len(items)} {what} can be read; the last: {fault}")
    return tuple(records)


def _errors(errors: Any) -> str:
    found = errors if isinstance(errors, list) else [errors]
    texts = [str(e.get("description") or e.get("error") or e) if isinstance(e, Mapping) else str(e) for e in found]
    return "; ".join(texts)


# --- values -----------------------------------------------------------------------------------------------------------


def number(value: Any, unset: int = 0) -> int:
    """A number in any version's shape; ``unset`` for null, infinite and not set. Raises ``ValueError`` for anything else."""
    # 22.05's shape; there are hundreds of thousands of them in a large cluster's answer.
    if type(value) is int and -_MOST < value < _MOST:
        return unset if value in _UNSET else value
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite", False):
            return unset
        value = value.get("number")
    if value is None or value == "" or value in ("Infinity", "-Infinity", "NaN"):
        return unset
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else unset
    if isinstance(value, str | int) and -_MOST < (plain := int(value)) < _MOST:
        return unset if plain in _UNSET else plain
    raise ValueError(f"{value!r} is not a number")


def text_of(value: Any) -> str:
    """A string in any version's shape: null and Slurm's own ``(null)`` are "". Raises ``ValueError`` for lists and objects."""
    if value is None or value == "(null)":
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    raise ValueError(f"{value!r} is not a string")


def flags(*values: Any) -> frozenset[str]:
    """States as a set of capitals, from strings (``"IDLE+CLOUD"`` too) and lists. Raises ``ValueError`` for anything else."""
    if len(values) == 1 and type(values[0]) is str:
        return _flags_of(values[0])
    return _flags(values)


@lru_cache(maxsize=4096)
def _flags_of(value: str) -> frozenset[str]:
    return _flags((value,))


def _flags(values: tuple[Any, ...]) -> frozenset[str]:
    found: set[str] = set()
    for value in values:
        if value is None:
            continue
        if not isinstance(value, str | list | tuple):
            raise ValueError(f"{value!r} is not a state")
        for word in value.split("+") if isinstance(value, str) else value:
            if not isinstance(word, str):
                raise ValueError(f"{word!r} is not a state")
            if word.strip():
                found.add(word.strip().upper())
    return frozenset(found)


def words(value: Any) -> tuple[str, ...]:
    """A comma-separated string or a list, to its words."""
    items = value.split(",") if isinstance(value, str) else (value or ())
    return tuple(str(item).strip() for item in items if str(item).strip() and item != "(null)")


def hosts(value: Any) -> tuple[str, ...]:
    """Node names from a hostlist or a list of them. Raises ``ConfigError`` for what is no hostlist."""
    if isinstance(value, str):
        return () if value in ("", "(null)", "None assigned") else _expand(value)
    return tuple(name for item in value or () for name in _expand(str(item)))


_ONE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


def _expand(value: str) -> tuple[str, ...]:
    return (value,) if _ONE_NAME.fullmatch(value) else _expand_list(value)


# Thousands of jobs name the same few hostlists, at each pass of the manager.
_expand_list = lru_cache(maxsize=4096)(expand)


def gpus(tres: Any) -> int:
    """How many GPUs a TRES string names: ``gres:gpu:2`` (22.05), ``gres/gpu:a100:2``, ``cpu=1,gres/gpu=2``, ``gpu`` (one)."""
    total = 0
    by_type = 0
    for item in words(text_of(tres)):
        match = re.fullmatch(r"(?:gres[:/])?gpu(?::([^:=]*[^:=\d][^:=]*))?(?:[:=](\d{1,9}))?", item)
        if match and match[1]:
            by_type += int(match[2] or 1)
        elif match:
            total += int(match[2] or 1)
    # Accounting strings name the total and each type ("gres/gpu=2,gres/gpu:a100=2"): the same GPUs, said twice.
    return max(total, by_type)


def _reason(data: Any) -> str:
    """Why the job waits, as ``squeue`` shows it. Why Slurm itself holds a job is told in words beside ``JobHeldUser`` (22.05.8)."""
    reason, words = text_of(data.get("state_reason")), text_of(data.get("state_description"))
    return words.replace(" ", "_") if words and reason.startswith("JobHeld") else reason


# --- records ----------------------------------------------------------------------------------------------------------


def job(data: Any) -> Job:
    """One element of ``jobs``. Raises ``LookupError``, ``TypeError``, ``ValueError`` or ``ConfigError`` when unreadable."""
    job_id = number(data["job_id"])
    if job_id <= 0:
        raise ValueError(f"job_id is {data['job_id']!r}")
    states = flags(data["job_state"])
    if not states:
        raise ValueError("job_state is empty")
    states |= {_IMPLIED[flag] for flag in states if flag in _IMPLIED}
    exit_code, exit_signal = _exit(data.get("exit_code"))
    nodes = number(data.get("node_count"), 1) or 1
    return Job(
        job_id=job_id,
        name_id=_name_id(job_id, data),
        states=states,
        reason=_reason(data),
        partition=text_of(data.get("partition")),
        user=text_of(data.get("user_name")),
        user_id=number(data.get("user_id")),
        nodes=hosts(data.get("nodes")),
        node_count=nodes,
        restart_count=number(data.get("restart_cnt")),
        requeue=bool(data.get("requeue", True)),
        batch=bool(data.get("batch_flag", True)),
        priority=number(data.get("priority")),
        submit_time=number(data.get("submit_time")),
        eligible_time=number(data.get("eligible_time")),
        start_time=number(data.get("start_time")),
        end_time=number(data.get("end_time")),
        preempt_time=number(data.get("preempt_time")),
        deadline=number(data.get("deadline")),
        time_limit=number(data.get("time_limit")) * 60,
        exit_code=exit_code,
        exit_signal=exit_signal,
        comment=text_of(data.get("comment")),
        admin_comment=text_of(data.get("admin_comment")),
        name=text_of(data.get("name")),
        gpus_per_node=_gpus_per_node(data, nodes),
        features=text_of(data.get("features")),
        required_nodes=hosts(data.get("required_nodes")),
        excluded_nodes=hosts(data.get("excluded_nodes")),
    )


def node(data: Any) -> Node:
    """One element of ``nodes``. Raises like ``job``."""
    name = text_of(data["name"])
    states = flags(data["state"], data.get("state_flags"))
    if not name or not states:
        raise ValueError("a node without name or state")
    return Node(
        name=name,
        states=states,
        reason=text_of(data.get("reason")),
        address=text_of(data.get("address")),
        hostname=text_of(data.get("hostname")),
        port=number(data.get("port"), 6818),
        partitions=words(data.get("partitions")),
        features=words(data.get("active_features") or data.get("features")),
        gres=text_of(data.get("gres")),
        cpus=number(data.get("cpus"), 1),
        boot_time=number(data.get("boot_time")),
        last_busy=number(data.get("last_busy")),
        slurmd_start_time=number(data.get("slurmd_start_time")),
    )


def partition(line: str) -> Partition:
    """One line of ``scontrol show partition -o``. Raises like ``job``."""
    values = dict(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", line))
    return Partition(
        name=values["PartitionName"],
        nodes=hosts(values.get("Nodes", "")),
        priority_tier=number(values.get("PriorityTier", "1")),
        grace_time=number(values.get("GraceTime", "0")),
        preempt_mode=values.get("PreemptMode", "OFF").upper(),
        default=values.get("Default", "NO").upper() == "YES",
        suspend_time=suspend_time(values.get("SuspendTime", "")),
    )


def suspend_time(text: str) -> float | None:
    """A partition's, as scontrol shows it (``GLOBAL``, ``INFINITE``, ``300``) or slurm.conf has it. None where it is the cluster's."""
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    return math.inf if text.upper() in ("INFINITE", "-1") else None


def _name_id(job_id: int, data: Mapping[str, Any]) -> str:
    """The id as users type it: ``7``, ``7_3``, ``7_[1-9]`` for the part of an array not yet started, ``7+1``."""
    array = number(data.get("array_job_id"))
    task = number(data.get("array_task_id"), -1)
    if array and task >= 0:
        return f"{array}_{task}"
    if array and text_of(data.get("array_task_string")):
        return f"{array}_[{data['array_task_string']}]"
    het = number(data.get("het_job_id"))
    return f"{het}+{number(data.get('het_job_offset'))}" if het else str(job_id)


def _exit(value: Any) -> tuple[int, int]:
    """(exit code, signal). 22.05 prints the raw wait status; later versions an object."""
    if isinstance(value, Mapping) and "return_code" in value:
        signal = value.get("signal")
        number_of_signal = signal.get("id", signal.get("signal_id")) if isinstance(signal, Mapping) else signal
        return number(value["return_code"]), number(number_of_signal)
    status = number(value)
    return (status >> 8) & 0xFF, status & 0x7F


def _gpus_per_node(data: Mapping[str, Any], nodes: int) -> int:
    """GPUs a node, whichever way they were asked for; a number that does not divide evenly is rounded up."""
    per_node = gpus(data.get("tres_per_node"))
    if per_node:
        return per_node
    whole = gpus(data.get("tres_per_job"))
    whole = whole or gpus(data.get("tres_per_task")) * (number(data.get("tasks"), 1) or 1)
    whole = whole or gpus(data.get("tres_req_str"))
    return math.ceil(whole / nodes)
