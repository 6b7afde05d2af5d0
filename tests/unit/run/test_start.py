"""What the wrapper's start loads: every program waits for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SLOW = {
    "torch", "numpy", "obstore", "boto3", "pydantic", "typer", "rich", "yaml", "structlog",
    # Of the standard library: each costs as much as several of our own modules.
    "http.client", "ssl", "asyncio", "logging", "concurrent.futures", "shutil", "subprocess", "tempfile", "multiprocessing",
}  # fmt: skip


def test_a_whole_run_on_a_file_store_loads_nothing_slow(tmp_path: Path) -> None:
    start = "import sys; sys.argv[0] = 'spotburst'; from slurm_plugin.cli import main; sys.exit(main())"

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-X", "importtime", "-c", start, "run", "--run", name, "--uri", f"file://{tmp_path}"]
        return subprocess.run([*command, "--", "true"], capture_output=True, text=True, check=False)

    run("first")  # proves the store, which may load what it likes
    done = run("second")
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"job_wrapper.run.loop", "job_wrapper.store.claim"} <= loaded
    assert not SLOW & loaded
