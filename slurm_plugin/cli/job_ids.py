"""JOB as people who use Slurm write it, and what to type in place of what is none. Pure."""

from __future__ import annotations

import re

_JOB = re.compile(r"\d+(_\d+)?(\+\d+)?\Z", re.ASCII)
_STEP = re.compile(r"(\d+(?:_\d+)?(?:\+\d+)?)\.(\d+|batch|extern|interactive)(\+\d+)?\Z", re.ASCII)
_TASKS = re.compile(r"(\d+)_(?:\[[\d,:%-]*\]|\d+[-,:][\d,:-]*|\*)\Z", re.ASCII)
_LIST = re.compile(r"(\d+(?:_\d+)?(?:\+\d+)?)(?:, *| +)\d.*\Z", re.ASCII)
_FOLDED = re.compile(r"(\d+)_\[([\d,:-]+)(%\d+)?\]", re.ASCII)
_PART = re.compile(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?", re.ASCII)


def is_job_id(text: str) -> bool:
    """Whether it is a job's id: ``123``, a task of an array ``123_4``, a component of a heterogeneous job ``123+1``."""
    return _JOB.match(text) is not None


def instead_of(text: str) -> str | None:
    """What to type in place of a step, of several tasks, of several jobs or of ``JobId=123``; None for what is none of these."""
    if step := _STEP.match(text):
        return f"{text} is a step: name its job, {step[1]}"
    if tasks := _TASKS.match(text):
        return f"{text} is several tasks: name one of them, such as {tasks[1]}_1"
    if several := _LIST.match(text):
        return f"{text!r} is several jobs: name one at a time, such as {several[1]}"
    name, equals, value = text.partition("=")
    if equals and name.lower() == "jobid":
        return f"{text}: leave out {name}=" + (f", and write {value}" if is_job_id(value) else "")
    return None


def holds(name_id: str, wanted: str) -> bool:
    """Whether ``wanted`` is one of the tasks that Slurm shows as one record, ``123_[4-9]``, until it starts them or is told something of one."""
    array, _, task = wanted.partition("_")
    folded = _FOLDED.fullmatch(name_id)
    if folded is None or folded[1] != array or not is_job_id(wanted) or not re.fullmatch(r"[0-9]{1,18}", task):
        return False
    for part in folded[2].split(","):
        found = _PART.fullmatch(part)
        if found is None:
            continue
        first = int(found[1])
        if int(task) in range(first, int(found[2] or first) + 1, max(1, int(found[3] or 1))):
            return True
    return False
