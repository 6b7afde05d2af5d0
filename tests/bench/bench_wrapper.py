"""What the wrapper costs: its start over the bare program, and the way from a notice to the requeue.

python tests/bench/bench_wrapper.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WRAPPER = [sys.executable, "-c", "import sys; from job_wrapper.run import main; sys.exit(main(sys.argv[1:]))"]


def median(commands: list[list[str]], environ: dict[str, str]) -> float:
    """Milliseconds."""
    times = []
    for command in commands:
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environ)
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times)[len(times) // 2]


def main() -> None:
    """Print the figures."""
    # Without byte code on disk every start would compile: not what an installed program does.
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        uri = f"file://{Path(folder)}"
        runs = [[*WRAPPER, "--run", f"r{i}", "--uri", uri, "--", "true"] for i in range(15)]
        subprocess.run([*WRAPPER, "--run", "first", "--uri", uri, "--", "true"], check=True, env=environ)
        print(f"true: {median([['true']] * 15, environ):.0f} ms")
        print(f"python -c pass: {median([[sys.executable, '-c', 'pass']] * 15, environ):.0f} ms")
        print(
            f"import of the wrapper: {median([[sys.executable, '-c', 'import job_wrapper.run.cli']] * 15, environ):.0f} ms"
        )
        print(f"spotburst run -- true: {median(runs, environ):.0f} ms")


if __name__ == "__main__":
    main()
