"""Slurm by its commands: squeue, sinfo and scontrol. Works from 22.05 on."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.slurm import command, parse
from slurm_plugin.slurm.controllers import Controller, parse_ping
from slurm_plugin.slurm.orders import checked, comment_of, in_batches, one_line
from slurm_plugin.slurm.records import Job, Node, Partition, Start


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
        text = parse.settings(self.shown_config()).get("SLURM_VERSION", "")
        match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
        if not match:
            raise SlurmUnavailable(f"scontrol show config: SLURM_VERSION is {text!r}")
        return int(match[1]), int(match[2]), int(match[3])

    def slurmctld_start(self) -> Start:
        """By ``scontrol show config``."""
        return parse.slurmctld_start(self.shown_config())

    def shown_config(self) -> str:
        """What ``scontrol show config`` prints: its first line has the controller's time of day."""
        return self._run("scontrol", "show", "config")

    def installed(self) -> str:
        """What ``scontrol --version`` prints, for which slurmctld need not run."""
        return self._run("scontrol", "--version")

    def controllers(self) -> tuple[Controller, ...]:
        """By order of SlurmctldHost, whether each is up: ``scontrol ping``, which calls it a failure when none is."""
        try:
            text = self._run("scontrol", "ping")
        except (SlurmUnavailable, SlurmRefused) as error:
            if not (found := parse_ping(str(error))):
                raise
            return found
        return parse_ping(text)

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
        """One ``scontrol update`` for many nodes, as ``orders.in_batches`` tells them."""
        changes = [f"State={state}"] if state is not None else []
        if reason is not None:
            # scontrol takes one double quote off either end of a reason, though not of a comment: give it one to take.
            changes.append(f'Reason="{one_line(reason)}"')
        if address is not None:
            changes.append(f"NodeAddr={one_line(address)}")
        in_batches(names, lambda hostlist: self._run("scontrol", "update", f"NodeName={hostlist}", *changes))

    def requeue(self, job_id: str, *, hold: bool = False) -> None:
        """``scontrol requeue`` or ``requeuehold``."""
        self._run("scontrol", "requeuehold" if hold else "requeue", checked(job_id))

    def start_now(self, job_id: str) -> None:
        """``scontrol update JobId=… StartTime=now``."""
        self._run("scontrol", "update", f"JobId={checked(job_id)}", "StartTime=now")

    def hold(self, job_id: str, *, releasable: bool = False) -> None:
        """``scontrol hold`` or ``uhold``."""
        self._run("scontrol", "uhold" if releasable else "hold", checked(job_id))

    def release(self, job_id: str) -> None:
        """``scontrol release``."""
        self._run("scontrol", "release", checked(job_id))

    def cancel(self, job_id: str) -> None:
        """``scancel --state=PENDING``."""
        self._run("scancel", "--state=PENDING", checked(job_id))

    def end(self, job_id: str) -> None:
        """``scancel``, whatever the job's state."""
        self._run("scancel", checked(job_id))

    def signal(self, job_id: str, name: str) -> None:
        """``scancel --signal``: to all steps of the job but its batch shell, through slurmctld (to one step it would go to the nodes
        directly, whose names the login node may not know)."""
        self._run("scancel", f"--signal={name}", checked(job_id))

    def comment(self, job_id: str) -> str | None:
        """``squeue --format=%k``, asked for alone, since it may hold anything."""
        try:
            text = self._run("squeue", "--noheader", "--states=all", f"--jobs={checked(job_id)}", "--format=%k")
        except SlurmRefused as error:
            if "invalid job id" not in str(error).lower():
                raise
            return None
        return None if not text else "" if text.strip() == "(null)" else text.removesuffix("\n")

    def set_comment(self, job_id: str, comment: str) -> None:
        """``scontrol update JobId=… Comment=…``; line breaks become spaces, and what is longer than Slurm takes is cut."""
        self._run("scontrol", "update", f"JobId={checked(job_id)}", f"Comment={comment_of(comment)}")

    def set_admin_comment(self, job_id: str, comment: str) -> None:
        """``scontrol update JobId=… AdminComment=…``, which only an administrator may."""
        self._run("scontrol", "update", f"JobId={checked(job_id)}", f"AdminComment={comment_of(comment)}")

    def _run(self, name: str, *arguments: str) -> str:
        return command.run([self._path(name), *arguments], env=self._env, timeout=self._timeout)

    def _path(self, name: str) -> str:
        if self._bin_dir is not None:
            return str(self._bin_dir / name)
        return shutil.which(name, path=f"{self._env['PATH']}:/usr/bin:/usr/local/bin:/opt/slurm/bin") or name
