"""Slurm's settings, as slurmctld runs with them or as slurm.conf has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_plugin.errors import ConfigError
from slurm_plugin.render import Version
from slurm_plugin.slurm.hostlist import expand
from slurm_plugin.slurm.parse import settings, suspend_time
from slurm_plugin.slurm.records import Partition

RUNNING = "slurmctld"
_DEEPEST = 10
_INFINITE = ("", "-1", "none", "infinite", "infinity", "unlimited")
_RECORDS = ("nodename", "partitionname", "nodeset", "downnodes", "frontendname", "slurmctldhost")
_WORD = re.compile(r'\b(\w+)\+?\s*=\s*("[^"]*"|\S*)')
_DEFAULTS = {
    "jobfileappend": "0",
    "jobrequeue": "1",
    "killwait": "30",
    "minjobage": "300",
    "preemptmode": "OFF",
    "preempttype": "preempt/none",
    "proctracktype": "proctrack/cgroup",
    "resumerate": "300",
    "resumetimeout": "60",
    "returntoservice": "0",
    "slurmdtimeout": "300",
    "slurmuser": "root",
    "statesavelocation": "/var/spool",
    "suspendtime": "INFINITE",
    "suspendtimeout": "30",
    "accountingstoragetype": "accounting_storage/none",
}
"""Of what a file does not set (src/common/read_config.[ch] of 22.05.8 to 26.05.3)."""


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """``values`` by slurm.conf's names in lower case; ``source``: ``RUNNING``, or the file's path; ``hosts``: the controllers' names.

    ``partitions``: those that there are.
    """

    values: Mapping[str, str]
    version: Version
    source: str
    partitions: tuple[Partition, ...] = ()
    hosts: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        """The value; "" where there is none."""
        default = ("16" if self.version >= (23, 11, 0) else "50") if name == "TreeWidth" else ""
        return self.values.get(name.lower(), _DEFAULTS.get(name.lower(), default))

    def words(self, name: str) -> tuple[str, ...]:
        """The value's words in lower case, where it is a list with commas."""
        return tuple(word.strip().lower() for word in self.text(name).split(",") if word.strip())

    def number(self, name: str) -> int | None:
        """Its leading number (``300 sec``, ``300 nodes/min``); None for infinite and for what is none."""
        text = self.text(name).strip().lower()
        if text in _INFINITE:
            return None
        match = re.match(r"\d{1,18}", text)
        return int(match[0]) if match else None

    @property
    def version_text(self) -> str:
        """Such as ``22.05.8``."""
        return f"{self.version[0]}.{self.version[1]:02}.{self.version[2]}"


def shown(text: str, version: Version, partitions: tuple[Partition, ...]) -> SlurmConf:
    """What ``scontrol show config`` printed. Pure."""
    values = {key.lower(): value for key, value in settings(text).items()}
    hosts = re.findall(r"^SlurmctldHost\[\d+\]\s*=\s*([^\s(]+)", text, re.MULTILINE)
    return SlurmConf(values, version, RUNNING, partitions, tuple(hosts))


def written(path: Path, version: Version, read: Callable[[Path], str]) -> SlurmConf:
    """slurm.conf as its file has it, with what it includes. Of a name that is set twice Slurm takes the last.

    Raises ``ConfigError`` where a file can't be read (``read`` may raise ``OSError``) or one includes itself.
    """
    values: dict[str, str] = {}
    partitions: dict[str, Partition] = {}
    hosts: list[str] = []
    for line in _lines(path, read, 0):
        words = [(key.lower(), value.strip('"')) for key, value in _WORD.findall(line)]
        if not words:
            continue
        first, value = words[0]
        if first == "slurmctldhost":
            hosts.append(value.partition("(")[0])
        if first == "partitionname" and value.upper() != "DEFAULT":
            partitions[value] = _partition(dict(words), values)
        if first not in _RECORDS:
            values.update(words)
    return SlurmConf(values, version, str(path), tuple(partitions.values()), tuple(hosts))


def _lines(path: Path, read: Callable[[Path], str], depth: int) -> list[str]:
    if depth > _DEEPEST:
        raise ConfigError(f"{path}: Include goes deeper than {_DEEPEST} files; does a file include itself?")
    try:
        text = read(path)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    found = []
    for raw in re.sub(r"\\\n", "", text).splitlines():
        line = re.sub(r"(?<!\\)#.*", "", raw).strip()
        include = re.match(r"include\s+(\S+)", line, re.IGNORECASE)
        found += _lines(path.parent / include[1], read, depth + 1) if include else [line]
    return found


def _partition(words: Mapping[str, str], values: Mapping[str, str]) -> Partition:
    try:
        nodes = expand(words.get("nodes", ""))
    except ConfigError:
        nodes = ()
    numbers = {
        key: int(words[key]) if re.fullmatch(r"\d{1,18}", words.get(key, "")) else 0
        for key in ("prioritytier", "gracetime")
    }
    return Partition(
        words["partitionname"],
        nodes,
        priority_tier=numbers["prioritytier"] or 1,
        grace_time=numbers["gracetime"],
        preempt_mode=words.get("preemptmode", values.get("preemptmode", "OFF")).upper(),
        default=words.get("default", "").upper() == "YES",
        suspend_time=suspend_time(words.get("suspendtime", "")),
    )
