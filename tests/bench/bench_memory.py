"""The most memory that saving and restoring state directories takes, each in a process of its own, and what the wrapper itself takes.

python -m tests.bench.bench_memory [FOLDER]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench import sink
from tests.bench.memory_child import resident
from tests.bench.table import Line, size_text
from tests.fixtures.seaweedfs import seaweedfs, weed_program

MIB = 1 << 20
ALLOWED = 256 * MIB


def lines(folder: str | None = None) -> Iterator[Line]:
    """Files on disk, and a bucket that takes little at a time, so that all that may wait does."""
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        states = {
            "1 GiB file": _large(place / "large", 1024),
            "1,000 files of 0.9 MiB": _many(place / "mid", 1000, 943_718),
            "20,000 files of 4 KiB": _many(place / "small", 20_000, 4096),
        }
        uri = f"file://{place / 'store'}"
        for name, state in states.items():
            yield _line(f"memory of a save, {name}", _child("save", uri, state))
            yield _line(f"memory of a restore, {name}", _child("restore", uri, state))
        shutil.rmtree(place / "store")
        environ = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
        with sink.running(slow=True) as endpoint:
            for name, state in states.items():
                yield _line(f"memory of a save to S3, {name}", _child("save", "s3://sink/m", state, endpoint, environ))
        if weed_program() is not None:
            state = _large(place / "less", 192)
            with seaweedfs(place / "weed") as server:
                uri, endpoint = f"{server.uri}/m", server.endpoint_url
                _child("save", uri, state, endpoint, server.environment)
                restored = _child("restore", uri, state, endpoint, server.environment)
                yield _line("memory of a restore from S3, 192 MiB file", restored)
        yield Line("memory of the wrapper itself", _wrapper(place), "python -c", _python(), None, size_text)
    finally:
        shutil.rmtree(place)


def _line(what: str, count: float) -> Line:
    return Line(what, count, "allowed", ALLOWED, 1.0, size_text)


def _large(folder: Path, mib: int) -> Path:
    folder.mkdir()
    block = os.urandom(MIB)
    with (folder / "file").open("wb") as file:
        for number in range(mib):
            file.write(number.to_bytes(8, "little") + block[8:])
    return folder


def _many(folder: Path, count: int, size: int) -> Path:
    folder.mkdir()
    block = os.urandom(size)
    for number in range(count):
        (folder / str(number)).write_bytes(number.to_bytes(8, "little") + block[8:])
    return folder


def _child(what: str, uri: str, state: Path, endpoint: str = "", environ: dict[str, str] | None = None) -> int:
    command = [sys.executable, "-m", "tests.bench.memory_child", what, uri, str(state), endpoint]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environ or {})})
    return int(done.stdout)


def _wrapper(folder: Path) -> float:
    """Resident bytes of a wrapper whose program has begun."""
    spotburst = str(Path(sys.executable).parent / "spotburst")
    command = [spotburst, "run", "--run", "memory", "--uri", f"file://{folder / 'store'}", "--", "sh", "-c"]
    program = [*command, "echo; read end"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return resident("VmHWM", process.pid)


def _python() -> float:
    """The same of a Python that does nothing."""
    program = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return resident("VmHWM", process.pid)


if __name__ == "__main__":
    for one in lines(*sys.argv[1:2]):
        print(one, flush=True)
