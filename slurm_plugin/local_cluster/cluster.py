"""A private cluster: ``with LocalCluster(folder, default_settings(nodes=2)) as cluster: …``. Several can run side by side on one host."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import yaml

from slurm_plugin import render
from slurm_plugin.cloud.local import network
from slurm_plugin.cloud.local.cloud import LocalCloud, destroy_all, from_config
from slurm_plugin.cloud.local.host import find_command, require
from slurm_plugin.cloud.local.state import Process, read_json, write_json
from slurm_plugin.config import Config, load_config
from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster import accounting
from slurm_plugin.local_cluster.daemons import Daemons, without_name_server
from slurm_plugin.local_cluster.folder import require_own
from slurm_plugin.local_cluster.munge import Munge
from slurm_plugin.local_cluster.reserve import free_port, reserve_network
from slurm_plugin.local_cluster.settings import default_settings, place
from slurm_plugin.slurm.client import SlurmClient

PATIENCE = 60.0
"""Seconds within which a daemon starts, and answers: the host may be busy with other clusters."""
COMMANDS = ("ip", "bridge", "unshare", "slurmd", "slurmctld", "munged", "sinfo", "scontrol", "sbatch", "srun")


class LocalCluster:
    """munged, slurmctld, the manager and the embedded cloud below one folder. ``start``/``stop``, or a ``with`` block."""

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, Any] | None = None,
        *,
        manager: bool = True,
        slurm_root: Path | None = None,
        with_accounting: bool = False,
        **site: Any,
    ) -> None:
        """``settings`` as burst.yaml has them (``default_settings``); folders, bridge and subnet are filled in.

        ``manager=False`` runs none: nodes then boot only by calls of the provider. ``slurm_root``: prefix of another Slurm
        (``bin``, ``sbin``, its plugins in ``lib/slurm``). ``with_accounting``: a slurmdbd with a MariaDB of its own.
        ``site``: fields of ``render.Site`` to set, such as ``min_job_age=5`` or ``debug_flags=("Power",)``.
        """
        self.root = root.resolve()
        self.settings = dict(settings if settings is not None else default_settings())
        self.with_manager = manager
        self.slurm_root = slurm_root
        self.daemons = Daemons(self.root)
        self.munge = Munge(self.root)
        self.with_accounting = with_accounting
        self._accounting: accounting.Accounting | None = None
        self._site = site
        self._config: Config | None = None
        self.first_job_id = 1  # beyond an earlier cluster's in this folder, from `start` on
        self._handlers: dict[int, Any] = {}
        self._jobs = 0

    # Paths and views.

    @property
    def etc(self) -> Path:
        """slurm.conf, gres.conf, cgroup.conf, burst.yaml."""
        return self.root / "etc"

    @property
    def log(self) -> Path:
        """Logs of the daemons; those of machines lie in their instance folders."""
        return self.root / "log"

    @property
    def config_path(self) -> Path:
        """burst.yaml."""
        return self.etc / "burst.yaml"

    @property
    def config(self) -> Config:
        """burst.yaml as the cluster runs with it. Raises ``LocalCloudError`` before ``start``."""
        if self._config is None:
            if not self.config_path.is_file():
                raise LocalCloudError(
                    f"no cluster was started in {self.root}: start one with spotburst local up {self.root}"
                )
            self._config = load_config(self.config_path)
        return self._config

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF must name."""
        return self.etc / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """Of this process, with SLURM_CONF and PATH for this cluster, and without any other Slurm's or job's variables."""
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN", "SPOTBURST"))}
        slurm = [str(self.slurm_root / part) for part in ("bin", "sbin")] if self.slurm_root else []
        path = [
            str(Path(sys.executable).parent),
            *slurm,
            mine.get("PATH", ""),
            "/usr/sbin",
            "/usr/bin",
            "/sbin",
            "/bin",
        ]
        return {**mine, "PATH": os.pathsep.join(p for p in path if p), "SLURM_CONF": str(self.slurm_conf)}

    def cloud(self, name: str | None = None) -> LocalCloud:
        """The embedded cloud as the manager uses it; ``name`` is needed only where burst.yaml has several."""
        return from_config(self.config, name)

    def client(self) -> SlurmClient:
        """Slurm's commands as spotburst uses them."""
        from slurm_plugin.slurm.cli import CliClient

        folder = find_command("scontrol", self.slurm_root)
        return CliClient(Path(folder).parent if folder else None, self.slurm_conf, PATIENCE)

    # Start and stop.

    def start(self) -> LocalCluster:
        """Bring all up and wait until slurmctld answers. What a killed run left in this folder is taken down first.

        Raises ``LocalCloudError`` when it can't run here or runs already; nothing is left behind then.
        """
        require((*COMMANDS, *(accounting.COMMANDS if self.with_accounting else ())), self.slurm_root)
        require_own(self.root)
        if self.daemons.alive("slurmctld"):
            raise LocalCloudError(f"a cluster runs in {self.root} already: spotburst local down {self.root}")
        self.stop()
        try:
            self._prepare()
            self.start_munged()
            self._start_accounting()
            self.start_slurmctld()
            if self.with_manager:
                self.start_manager()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Take all down: daemons, machines, bridge. Configuration and logs stay. Any number of times, also after a crash.

        Raises ``LocalCloudError`` where the folder is another user's.
        """
        require_own(self.root)
        self.daemons.stop("manager")
        self._note_job_ids()
        tails = self._machine_logs()
        destroy_all(self._state_dir())
        for text, path in tails:
            path.write_text(text, encoding="utf-8")
        for name in ("slurmctld", *accounting.DAEMONS, "munged"):
            self.daemons.stop(name)
        for stray in self.daemons.strays():
            stray.end(patience=5.0)
        (self.daemons.notes / "owner.json").unlink(missing_ok=True)
        self.munge.remove_short_folder()
        self._config = None

    def __enter__(self) -> LocalCluster:
        self.start()
        self._own()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            self._handlers.clear()

    def _own(self) -> None:
        """The cluster is to end with this process: note whose it is (see ``sweep``), and end in order at SIGTERM and SIGHUP."""
        if (me := Process.of(os.getpid())) is not None:
            write_json(self.daemons.notes / "owner.json", me.to_dict())
        if threading.current_thread() is threading.main_thread():

            def leave(number: int, frame: FrameType | None) -> None:
                raise SystemExit(128 + number)

            for number in (signal.SIGTERM, signal.SIGHUP):
                self._handlers[number] = signal.signal(number, leave)

    def _prepare(self) -> None:
        # A cluster starts without jobs and nodes of an earlier one, whose machines are gone; job ids go on, because runs are named by them.
        for old in ("slurmctld", "state"):
            shutil.rmtree(self.root / old, ignore_errors=True)
        for folder in ("etc", "log", "run", "state", "slurmctld", "checkpoints", "jobs"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "slurmctld").chmod(0o700)
        (self.root / "state").chmod(0o700)
        bridge, subnet = reserve_network(self._state_dir())
        sinfo = find_command("sinfo", self.slurm_root)
        placed = place(
            self.settings, self.root, bridge, subnet, Path(sinfo).parent if sinfo and self.slurm_root else None
        )
        header = "# Made by spotburst for a private cluster: changes are lost at the next start.\n"
        self.config_path.write_text(header + yaml.safe_dump(placed, sort_keys=False), encoding="utf-8")
        self._config = load_config(self.config_path)
        network.address_bridge(bridge, subnet.network_address + 1, subnet.prefixlen)
        version = self.version()
        if self.with_accounting:
            self._accounting = accounting.Accounting(self.root, str(subnet.network_address + 1))
        self.first_job_id = self._first_job_id()
        site = render.Site(
            control_host=socket.gethostname().split(".")[0],
            control_address=str(subnet.network_address + 1),
            state_save=self.root / "slurmctld",
            log_dir=self.log,
            run_dir=self.root / "run",
            control_port=free_port(16800 + subnet.network_address.packed[2]),
            munge_socket=self.munge.socket,
            first_job_id=self.first_job_id,
            **{**self._site, "more": (*self._lines(), *self._site.get("more", ()))},
        )
        programs = render.Programs.beside_python()
        for program in (programs.resume, programs.suspend, programs.resume_fail):
            if not os.access(program, os.X_OK):
                raise LocalCloudError(
                    f"{program} is missing: install spotburst in {program.parent.parent} (pip install -e .)"
                )
        self.slurm_conf.write_text(render.slurm_conf(self.config, site, version, programs), encoding="utf-8")
        (self.etc / "gres.conf").write_text(render.gres_conf(self.config), encoding="utf-8")
        (self.etc / "cgroup.conf").write_text(render.cgroup_conf(version, embedded=True), encoding="utf-8")

    def version(self) -> render.Version:
        """Of the slurmctld that will run."""
        done = subprocess.run([self._command("slurmctld"), "-V"], capture_output=True, text=True, check=False)
        return render.parse_version(done.stdout or done.stderr)

    def start_munged(self) -> None:
        """Authentication of this cluster alone: a key and a socket of its own."""
        command = self.munge.command(self._command("munged"))
        self.daemons.start("munged", command, self.environment, self.log / "munged.log")
        self.wait_for(self.munge.socket.exists, PATIENCE, "munged's socket", alive="munged")

    def _start_accounting(self) -> None:
        made = self._accounting
        if made is None:
            return
        made.prepare(self._command("mariadb-install-db"), self.environment, self.munge.socket, self._plugins())
        daemons = (
            ("mariadbd", made.mariadbd(self._command("mariadbd")), made.database_ready),
            ("slurmdbd", [self._command("slurmdbd"), "-D"], made.ready),
        )
        for name, command, ready in daemons:
            self.daemons.start(name, command, self.environment, self.log / f"{name}.out")
            self.wait_for(ready, PATIENCE, f"{name} to be ready", alive=name)
        self.run("sacctmgr", "-i", "add", "cluster", self.config.cluster)

    def start_slurmctld(self) -> None:
        """Also to start it again after ``kill_slurmctld``."""
        command = without_name_server(self.root / "run", [self._command("slurmctld"), "-D", "-f", str(self.slurm_conf)])
        self.daemons.start("slurmctld", command, self.environment, self.log / "slurmctld.out")
        self.wait_for(
            lambda: "is UP" in self.run("scontrol", "ping", check=False),
            PATIENCE,
            "slurmctld's answer",
            alive="slurmctld",
        )

    def kill_slurmctld(self, number: int = signal.SIGKILL) -> None:
        """End it as a crash would."""
        self.daemons.kill("slurmctld", number)

    def start_manager(self) -> None:
        """Also to start it again after ``kill_manager``."""
        command = [str(render.Programs.beside_python().spotburst), "manager", "--config", str(self.config_path)]
        self.daemons.start("manager", command, self.environment, self.log / "manager.log")

    def kill_manager(self, number: int = signal.SIGKILL) -> None:
        """End it as a crash would."""
        self.daemons.kill("manager", number)

    # Use.

    def run(
        self,
        *command: str | Path,
        check: bool = True,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> str:
        """Run a command in the cluster's environment; its output (both streams). Raises ``AssertionError`` that shows it."""
        done = subprocess.run(
            [str(c) for c in command],
            env={**self.environment, **(env or {})},
            cwd=cwd or self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def submit(self, script: str | Path, *options: str, env: Mapping[str, str] | None = None) -> str:
        """``sbatch`` a script (a file, or the text of a shell script); the job's id. Output goes to ``jobs/<id>.out``."""
        if isinstance(script, str):
            self._jobs += 1
            path = self.root / "jobs" / f"script-{os.getpid()}-{self._jobs}.sh"
            path.write_text(script if script.startswith("#!") else f"#!/bin/bash\n{script}\n", encoding="utf-8")
            script = path
        answer = self.run("sbatch", "--parsable", f"--output={self.root}/jobs/%j.out", *options, script, env=env)
        return answer.strip().splitlines()[-1].split(";")[0]

    def output(self, job_id: str) -> str:
        """What a job has written so far."""
        path = self.root / "jobs" / f"{job_id}.out"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def wait_for(
        self, predicate: Callable[[], Any], timeout: float, what: str, *, every: float = 0.1, alive: str | None = None
    ) -> Any:
        """Wait until the predicate is true and return its value. Raises ``TimeoutError`` that shows the state of everything.

        ``alive``: a daemon without which waiting is vain.
        """
        until = time.monotonic() + timeout
        while True:
            if value := predicate():
                return value
            ended = alive is not None and not self.daemons.alive(alive)
            if ended or time.monotonic() >= until:
                why = f"{alive} ended" if ended else f"not within {timeout:g} s"
                raise TimeoutError(f"waited for {what}: {why}\n{self.diagnostics()}")
            time.sleep(every)

    def diagnostics(self, lines: int = 25) -> str:
        """Nodes, jobs and the ends of all logs (``*.out`` repeats what the log has, unless there is none)."""
        parts = []
        if self.daemons.alive("slurmctld"):
            views = (("sinfo", "-N", "-l"), ("squeue", "-l"), ("scontrol", "show", "jobs", "-o"))
            parts += [f"== {' '.join(view)}\n{self.run(*view, check=False)}" for view in views]
        logs = [*sorted(self.log.glob("*")), *sorted((self._state_dir() / "local" / "instances").glob("i-*/*.*"))]
        for path in logs:
            if path.suffix == ".log" or (path.suffix == ".out" and not path.with_suffix(".log").exists()):
                text = path.read_text(encoding="utf-8", errors="replace")
                parts.append(f"== {path}\n" + "\n".join(text.splitlines()[-lines:]))
        return "\n".join(parts)

    # Inside.

    def _plugins(self) -> Path | None:
        """Of another Slurm; its own default may be a folder of this host's."""
        folder = self.slurm_root / "lib" / "slurm" if self.slurm_root else None
        return folder if folder is not None and folder.is_dir() else None

    def _lines(self) -> list[str]:
        """What this cluster's slurm.conf has beside the template's."""
        plugins = self._plugins()
        made = self._accounting
        return [*([f"PluginDir={plugins}"] if plugins else []), *(made.slurm_conf(self.munge.socket) if made else ())]

    def _command(self, name: str) -> str:
        found = find_command(name, self.slurm_root)
        if found is None:
            raise LocalCloudError(f"{name} is not installed")
        return found

    def _state_dir(self) -> Path:
        return self.root / "state"

    def _machine_logs(self) -> list[tuple[str, Path]]:
        """Logs of machines, to be kept when the machines' folders go."""
        kept = []
        for path in sorted((self._state_dir() / "local" / "instances").glob("i-*/*.log")):
            spec = read_json(path.parent / "instance.json") or {}
            name = f"{spec.get('node', 'machine')}-{path.parent.name}-{path.name}"
            kept.append((path.read_text(encoding="utf-8", errors="replace"), self.log / name))
        return kept

    def _first_job_id(self) -> int:
        """After the last job of an earlier cluster in this folder; far after it where that was killed and its last job isn't known."""
        note = self.root / "run" / "job_ids.json"
        known = read_json(note) or {"next": 1, "exact": True}
        first = int(known["next"]) + (0 if known["exact"] else 1000)
        write_json(note, {"next": first, "exact": False})
        return first

    def _note_job_ids(self) -> None:
        if self.daemons.alive("slurmctld"):
            try:
                shown = self.run("scontrol", "show", "config", check=False)
            except subprocess.TimeoutExpired:
                return  # it hangs, and is taken down all the same
            if found := re.search(r"NEXT_JOB_ID\s*=\s*(\d+)", shown):
                write_json(self.root / "run" / "job_ids.json", {"next": int(found[1]), "exact": True})
