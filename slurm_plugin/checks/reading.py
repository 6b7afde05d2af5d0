"""Reading of what the rules look at. Nothing is decided here, and nothing is changed but a file of a moment in the checkpoint store."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from job_wrapper.store.open import scheme_of
from slurm_plugin.checks.clocks import Reading
from slurm_plugin.checks.rights import Facts, User
from slurm_plugin.checks.slurm_conf import SlurmConf, shown, written
from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.render import parse_version
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.parse import settings

_PATIENCE = 5.0
"""Seconds for an answer over the network."""


def facts(path: Path) -> Facts:
    """Of what is there, links followed."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return Facts(path, absent=True)
    except OSError as error:
        return Facts(path, fault=error.strerror or str(error))
    return Facts(path, found.st_mode, found.st_uid, found.st_gid)


def parents(path: Path) -> list[Facts]:
    """Of the folders above it, links resolved, the root first."""
    return [facts(folder) for folder in reversed(Path(os.path.realpath(path)).parents)]


def user(name: str) -> User | None:
    """An account by its name, or by its number; ``slurm(64030)`` as scontrol shows it, too. None where there is none."""
    plain = name.partition("(")[0]
    try:
        entry = pwd.getpwuid(int(plain)) if plain.isdecimal() else pwd.getpwnam(plain)
    except KeyError:
        return None
    return User(entry.pw_name, entry.pw_uid, frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def file_system(path: Path) -> str:
    """Its kind, such as ext4, by the mount table; "" where that can't be told."""
    real, best, kind = os.path.realpath(path), "", ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, where, what = line.split(" ")[:3]
            place = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), where)
            inside = real == place or real.startswith(place.rstrip("/") + "/")
            if inside and len(place) >= len(best):
                best, kind = place, what
    return kind


def interpreter(path: Path) -> Path | None:
    """What a script's first line names; None for another kind of file, and for one that can't be read."""
    try:
        with path.open("rb") as file:
            line = file.readline(512)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = line[2:].decode(errors="replace").split()
    return Path(words[0]) if words else None


def fails_to_start(program: Path, as_user: User) -> str:
    """Why one of spotburst's power programs can't be started as slurmctld does it; "" if it can.

    Called with an option it prints its usage and does nothing. As another user only where this is root.
    """
    switch = (
        {"user": as_user.uid, "group": min(as_user.gids), "extra_groups": sorted(as_user.gids)}
        if os.geteuid() == 0 and as_user.uid
        else {}
    )
    try:
        done = subprocess.run(
            [str(program), "--help"], env={}, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=30, check=False, **switch,  # type: ignore[call-overload]
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if "usage: " in done.stderr:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ends with {done.returncode}"


def running_slurm(client: CliClient) -> tuple[SlurmConf, Reading | None]:
    """What slurmctld runs with, and its clock. Raises ``SlurmUnavailable``, ``SlurmRefused``."""
    before = time.time()
    text = client.shown_config()
    after = time.time()
    conf = shown(text, parse_version(settings(text).get("SLURM_VERSION", "")), client.partitions())
    told = re.match(r"Configuration data as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", text)
    if told is None:
        return conf, None
    try:
        moment = time.mktime(time.strptime(told[1], "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):  # no day, or none that a clock can count
        return conf, None
    return conf, Reading("the controller's clock", moment, before, after, grain=1.0)


def slurm_from_file(client: CliClient, path: Path) -> SlurmConf:
    """slurm.conf by its file. Raises ``ConfigError``."""
    try:
        version = parse_version(client.installed())
    except (SlurmUnavailable, SlurmRefused):
        version = (22, 5, 0)
    return written(path, version, lambda one: one.read_text(encoding="utf-8", errors="replace"))


def text_of(path: Path) -> str | None:
    """A file's; None where it can't be read, "" where it isn't there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError:
        return None


def listens(path: Path) -> bool:
    """Whether somebody listens at the datagram socket. Raises ``PermissionError``."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(str(path))
    except PermissionError:
        raise
    except OSError:
        return False
    return True


def holder(lock: Path) -> str | None:
    """What the manager that holds the lock wrote there (``PID HOST``); None if nobody holds it. Raises ``OSError``."""
    descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(descriptor, 512, 0).decode(errors="replace").strip()
        return None
    finally:
        os.close(descriptor)


def store_folder(uri: str) -> Path | None:
    """The folder of checkpoints; None where they are in a bucket."""
    return Path(unquote(urlsplit(uri).path)) if scheme_of(uri) == "file" else None


def store_clock(uri: str, endpoint_url: str) -> Reading | None:
    """The store's clock: of a folder by the time of a new file, of a bucket by its server's HTTP date. None where it does not tell."""
    root = store_folder(uri)
    if root is not None:
        folder = root / ".spotburst"
        before = time.time()
        try:
            with tempfile.NamedTemporaryFile(prefix="clock-", dir=folder) as file:
                moment = os.fstat(file.fileno()).st_mtime
        except OSError:
            return None
        # A kernel's file times lag behind its clock by a tick.
        return Reading("the checkpoint store's clock", moment, before, time.time(), grain=0.1)
    before = time.time()
    date = _date(_server(uri, endpoint_url))
    if date is None:
        return None
    return Reading("the checkpoint store's clock", date, before, time.time(), grain=1.0)


def _server(uri: str, endpoint_url: str) -> str:
    env = os.environ
    kind = scheme_of(uri)
    if endpoint_url:
        return endpoint_url
    if kind == "s3":
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        return env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or f"https://s3.{region}.amazonaws.com"
    if kind == "gs":
        return env.get("STORAGE_EMULATOR_HOST") or env.get("GOOGLE_BASE_URL") or "https://storage.googleapis.com"
    account = env.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    return f"https://{account}.blob.core.windows.net" if account else ""


def _date(url: str) -> float | None:
    """By the answer's Date, whatever else it says."""
    address = url if "://" in url else f"http://{url}"
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_PATIENCE) as answer:  # noqa: S310 - the settings' own server
            headers = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except (OSError, ValueError):
        return None
    with contextlib.suppress(TypeError, ValueError):
        return parsedate_to_datetime(headers.get("Date", "")).timestamp()
    return None


def unit_state(unit: str) -> str:
    """By systemd: active, inactive, failed, …; ``not-found`` without a unit file; "" where there is no systemd."""
    command = ["systemctl", "show", "--property=LoadState,ActiveState", unit]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return "not-found" if told.get("LoadState") == "not-found" else told.get("ActiveState", "")
