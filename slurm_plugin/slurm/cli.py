"""Slurm by its commands: squeue, sinfo and scontrol. Works from 22.05 on."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.slurm import command, parse
from slurm_plugin.slurm.hostlist import fold
from slurm_plugin.slurm.records import Job, Node, Partition

_JOB_ID = re.compile(r"\d+(_(\d+|\[[\d,%:-]+\]))?(\+\d+)?")
NODES_A_CALL = 500
"""Nodes in one ``scontrol update``: a hostlist that won't fold must still fit into one argument (128 KiB)."""

COMMENT_BYTES = 1024
"""Longest comment of a job (22.05.8 and 24.11.5 refuse one a little longer)."""


class CliClient:
    """``SlurmClient`` over the commands in ``bin_dir`` (None: PATH, then /usr/bin).

    ``conf`` becomes SLURM_CONF; ``timeout`` in seconds bounds each command. Safe to use from several threads.
    """

    def __init__(self, bin_dir: Path | None = None, conf: Path | None = None, timeout: float = 10.0) -> None:
        self._bin_dir = bin_dir
        self._env = command.environment(os.environ, conf)
        self._timeout = timeout
        self._nodes_by_scontrol: bool | None = None

    # --- asking -------------------------------------------------------------------------------------------------------

    def version(self) -> tuple[int, int, int]:
        """slurmctld's version, as ``scontrol show config`` tells it."""
        text = self.config().get("SLURM_VERSION", "")
        match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
        if not match:
            raise SlurmUnavailable(f"scontrol show config: SLURM_VERSION is {text!r}")
        return int(match[1]), int(match[2]), int(match[3])

    def config(self) -> dict[str, str]:
        """What slurmctld runs with, by slurm.conf's names: ``scontrol show config``. "(null)" is ""."""
        text = self._run("scontrol", "show", "config")
        found = re.findall(r"^(\w+)[ \t]*=[ \t]?(.*)$", text, re.MULTILINE)
        return {key: "" if value.strip() == "(null)" else value.strip() for key, value in found}

    def jobs(self) -> tuple[Job, ...]:
        """All jobs in slurmctld's memory. 22.05 ignores the filter and shows all; 24.11 needs ``--states=all`` for ended ones."""
        return parse.parse_jobs(self._run("squeue", "--all", "--states=all", "--json"), "squeue --json")

    def nodes(self) -> tuple[Node, ...]:
        """All nodes: by scontrol where it has ``--json`` (from 23.02 on; sinfo groups nodes there), by sinfo before."""
        if self._nodes_by_scontrol is not False:
            try:
                text = self._run("scontrol", "--all", "show", "nodes", "--json")
            except SlurmRefused as error:
                if "unrecognized option" not in str(error):
                    raise
            else:
                self._nodes_by_scontrol = True
                return parse.parse_nodes(text, "scontrol show nodes --json")
        nodes = parse.parse_nodes(self._run("sinfo", "--all", "--json"), "sinfo --json")
        self._nodes_by_scontrol = False
        return nodes

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions, hidden ones included."""
        return parse.parse_partitions(
            self._run("scontrol", "--all", "--oneliner", "show", "partition"), "scontrol show partition"
        )

    # --- telling ------------------------------------------------------------------------------------------------------

    def update_nodes(
        self,
        names: Iterable[str],
        *,
        state: str | None = None,
        reason: str | None = None,
        address: str | None = None,
    ) -> None:
        """One ``scontrol update`` for many nodes; none for no nodes.

        A refusal of one node stays its own (22.05.8, 24.11.5): after "Invalid node state specified" Slurm has changed the others
        of the call; after "Invalid node name specified" it has changed none, so each is then told by itself. ``SlurmRefused`` comes
        at the end and does not tell which nodes were refused in the first case: look at the nodes again.
        """
        changes = [f"State={state}"] if state is not None else []
        if reason is not None:
            # scontrol takes one double quote off either end of a reason, though not of a comment: give it one to take.
            changes.append(f'Reason="{_one_line(reason)}"')
        if address is not None:
            changes.append(f"NodeAddr={_one_line(address)}")
        pending = iter(dict.fromkeys(names))
        refusals: list[SlurmRefused] = []
        while batch := list(islice(pending, NODES_A_CALL)):
            refusals += self._update_batch(batch, changes)
        if refusals:
            raise SlurmRefused("\n".join(map(str, refusals)))

    def _update_batch(self, names: list[str], changes: list[str]) -> list[SlurmRefused]:
        try:
            self._run("scontrol", "update", f"NodeName={fold(names)}", *changes)
        except SlurmRefused as error:
            if len(names) > 1 and "invalid node name" in str(error).lower():
                return [refusal for name in names for refusal in self._update_batch([name], changes)]
            return [error]
        return []

    def requeue(self, job_id: str, *, hold: bool = False) -> None:
        """``scontrol requeue`` or ``requeuehold``."""
        self._run("scontrol", "requeuehold" if hold else "requeue", _checked(job_id))

    def start_now(self, job_id: str) -> None:
        """``scontrol update JobId=… StartTime=now``."""
        self._run("scontrol", "update", f"JobId={_checked(job_id)}", "StartTime=now")

    def hold(self, job_id: str) -> None:
        """``scontrol hold``."""
        self._run("scontrol", "hold", _checked(job_id))

    def release(self, job_id: str) -> None:
        """``scontrol release``."""
        self._run("scontrol", "release", _checked(job_id))

    def cancel(self, job_id: str) -> None:
        """``scancel --state=PENDING``."""
        self._run("scancel", "--state=PENDING", _checked(job_id))

    def set_comment(self, job_id: str, comment: str) -> None:
        """``scontrol update JobId=… Comment=…``; line breaks become spaces, and what is longer than Slurm takes is cut."""
        short = _one_line(comment).encode()[:COMMENT_BYTES].decode(errors="ignore")
        self._run("scontrol", "update", f"JobId={_checked(job_id)}", f"Comment={short}")

    def _run(self, name: str, *arguments: str) -> str:
        return command.run([self._path(name), *arguments], env=self._env, timeout=self._timeout)

    def _path(self, name: str) -> str:
        if self._bin_dir is not None:
            return str(self._bin_dir / name)
        return shutil.which(name, path=f"{self._env['PATH']}:/usr/bin:/usr/local/bin:/opt/slurm/bin") or name


def _checked(job_id: str) -> str:
    """A job id can't be taken for an option or a second argument."""
    if not _JOB_ID.fullmatch(job_id):
        raise SlurmRefused(f"{job_id!r} is not a job id: write 123, 123_4 or 123+1")
    return job_id


def _one_line(value: str) -> str:
    return " ".join(value.split("\n")).replace("\r", " ").replace("\0", " ")
