"""Record one request of slurmctld as a file in ``<state_dir>/requests``, wake the manager, return.

Runs in the environment that slurmctld gives (SLURM_FACTS: power saving): SLURM_CONF and SLURM_RESUME_FILE and nothing else; on 22.05
with standard input, output and error closed. Its exit status is ignored, and while it runs, later versions of slurmctld do nothing
else: so it returns within half a second whatever the disk does. Standard library only, and as little of it as will do.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import Any

PATIENCE = 0.25
"""Seconds from its start that slurmctld is kept waiting; a slower disk is waited for in the background."""
DEFAULT_STATE_DIR = "/var/lib/spotburst"
BIN_DIRS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin")


def run(kind: str) -> int:
    """Record that slurmctld called the program ``kind`` (resume, suspend, resume_fail) with the hostlist in ``argv[1]``."""
    _open_standard_files()
    if len(sys.argv) != 2 or not sys.argv[1] or sys.argv[1].startswith("-"):
        name = os.path.basename(sys.argv[0])
        sys.stderr.write(
            f"usage: {name} HOSTLIST\nSlurm runs it (see slurm.conf); its argument is such as spot-[1-4].\n"
        )
        return 2
    request: dict[str, Any] = {"kind": kind, "hostlist": sys.argv[1], "time": time.time()}
    if kind == "resume":
        # Read at once: the file is gone as soon as slurmctld takes this program for ended.
        request.update(_resume_file(os.environ.get("SLURM_RESUME_FILE")))
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            # From 23.02 on slurmctld waits until nobody holds this program's output any more, so only the parent does.
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.close(heard)
            status = _record(request)
        except BaseException as error:  # the child must never return into what called run()
            _say(f"{kind} {request['hostlist']}: {error!r}")
            status = 1
        os._exit(status)
    os.close(said)
    until = time.monotonic() + PATIENCE - _age()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            try:  # noqa: SIM105 - one import less
                os.write(2, os.read(heard, 65536))
            except OSError:
                pass
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return 0
        time.sleep(0.002)


def _age() -> float:
    """Seconds since this process was started: on a busy machine Python's own start takes its share of the patience."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _open_standard_files() -> None:
    """Give 0, 1 and 2 to /dev/null where they are closed: else the next file opened becomes standard output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - for the process's life


def _resume_file(path: str | None) -> dict[str, Any]:
    """Which job wants which nodes. 22.05 says ``nodes``; 23.02 and later ``nodes_alloc`` and ``nodes_resume``."""
    if not path:
        return {"jobs": None, "note": "Slurm gave no SLURM_RESUME_FILE: launching by the hostlist alone"}
    try:
        with open(path, encoding="utf-8") as file:
            jobs = [
                {
                    "job_id": int(job["job_id"]),
                    "nodes": str(job.get("nodes_alloc") or job["nodes"]),
                    "resume": str(job.get("nodes_resume") or job["nodes"]),
                }
                for job in json.load(file)["jobs"]
            ]
    except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        return {
            "jobs": None,
            "note": f"SLURM_RESUME_FILE {path} can't be read ({error!r}): launching by the hostlist alone",
        }
    return {"jobs": jobs}


def _record(request: dict[str, Any]) -> int:
    """Write the request and wake the manager. Where it can't be written, a wanted node is set down: that requeues its jobs at once
    instead of after ResumeTimeout."""
    bin_dir = None
    try:
        state_dir, bin_dir = _settings()
        _write(state_dir, request)
    except Exception as error:  # whatever it is, slurmctld and the administrator must learn of it
        reason = f"spotburst: {request['kind']} not recorded: {error}"
        _say(f"{request['hostlist']}: {reason}")
        if request["kind"] == "resume":
            _set_down(request["hostlist"], reason, bin_dir)
        return 1
    if request.get("note"):
        _say(f"{request['kind']} {request['hostlist']}: {request['note']}")
    _wake(state_dir, request["kind"])
    return 0


def _settings() -> tuple[str, str | None]:
    """(state directory, folder of Slurm's commands) from burst.yaml. Not validated: the manager does that."""
    conf = os.environ.get("SLURM_CONF")
    places = [os.environ.get("SPOTBURST_CONFIG"), f"{os.path.dirname(conf)}/burst.yaml" if conf else None]
    for place in [*places, "/etc/slurm/burst.yaml", "/etc/spotburst/burst.yaml"]:
        if not place:
            continue
        try:
            with open(place, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            continue
        settings = _yaml(text)
        if not isinstance(settings, dict):
            raise ValueError(f"{place} does not hold keys and values")
        slurm = settings.get("slurm")
        bin_dir = slurm.get("bin_dir") if isinstance(slurm, dict) else None
        return str(settings.get("state_dir") or DEFAULT_STATE_DIR), bin_dir
    raise FileNotFoundError(f"no burst.yaml beside {conf or 'SLURM_CONF'}, in /etc/slurm or in /etc/spotburst")


def _yaml(text: str) -> Any:
    import yaml  # late: it takes longer than all the rest

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders


def _write(state_dir: str, request: dict[str, Any]) -> None:
    """Durable and whole, or not there at all. The name sorts by time."""
    folder = f"{state_dir}/requests"
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise FileNotFoundError(f"state_dir {state_dir} is not there: start spotburst's manager once") from None
    name = f"{time.time_ns():020d}-{os.getpid()}.json"
    temporary = f"{folder}/.{name}"
    with open(temporary, "x", encoding="utf-8") as file:
        json.dump(request, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, f"{folder}/{name}")
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _wake(state_dir: str, kind: str) -> None:
    """Tell a running manager to look now. It looks by itself anyway, so nothing here may fail."""
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as wake:
            wake.sendto(kind.encode(), f"{state_dir}/manager.sock")
    except OSError:
        pass


def _set_down(hostlist: str, reason: str, bin_dir: str | None) -> None:
    import subprocess

    program = next((p for p in (f"{f}/scontrol" for f in (bin_dir, *BIN_DIRS) if f) if os.access(p, os.X_OK)), None)
    if program is None:
        _say(f"{hostlist}: can't be set down: scontrol is in none of {', '.join(BIN_DIRS)}; set slurm.bin_dir")
        return
    words = re.sub(r"\s+", " ", reason)
    command = [program, "update", f"NodeName={hostlist}", "State=down", f'Reason="{words}"']
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"{hostlist}: can't be set down: {error}")
        return
    if done.returncode:
        _say(f"{hostlist}: can't be set down: {done.stderr.strip()}")


def _say(message: str) -> None:
    """To the system's log, and to standard error (which slurmctld logs with DebugFlags=Script)."""
    import syslog

    syslog.openlog("spotburst", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR, message)
    try:
        sys.stderr.write(f"spotburst: {message}\n")
        sys.stderr.flush()
    except OSError:
        pass
