"""What the wrapper costs a program's start.

python -m tests.bench.bench_wrapper
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.table import Line, in_turns, timed

ROUNDS = 15


def lines() -> Iterator[Line]:
    """``spotburst run -- true`` beside ``true``: no more than 150 ms may lie between them."""
    # Without byte code on disk every start would compile: not what an installed program does.
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    spotburst = str(Path(sys.executable).parent / "spotburst")

    def start(command: list[str]) -> float:
        return timed(lambda: subprocess.run(command, check=True, capture_output=True, env=environ))

    with tempfile.TemporaryDirectory() as folder:
        number = itertools.count()

        def run() -> float:
            return start([spotburst, "run", "--run", f"r{next(number)}", "--uri", f"file://{folder}", "--", "true"])

        run()
        wrapped, plain, python = in_turns(
            run, lambda: start(["true"]), lambda: start([sys.executable, "-c", "pass"]), rounds=ROUNDS
        )
    yield Line("spotburst run -- true, beyond true", wrapped - plain, "150 ms", 0.150, 1.0)
    yield Line("", wrapped - plain, "python -c pass", python, None)


if __name__ == "__main__":
    for one in lines():
        print(one, flush=True)
