"""``make bench``: all benchmarks, one table. Exit code 0 also where a bar is missed: machines differ.

python -m tests.bench [FOLDER]    FOLDER is on the disk to be measured
"""

from __future__ import annotations

import sys
from itertools import chain

from tests.bench import (
    bench_checkpoint,
    bench_manager,
    bench_memory,
    bench_notice,
    bench_overlap,
    bench_resume,
    bench_resume_program,
    bench_server,
    bench_store,
    bench_wrapper,
)


def main() -> None:
    """Print the table."""
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    for line in chain(
        bench_checkpoint.lines(folder=folder),
        bench_overlap.lines(folder=folder),
        bench_store.lines(),
        bench_server.lines(folder=folder),
        bench_memory.lines(folder=folder),
        bench_wrapper.lines(),
        bench_notice.lines(),
        bench_manager.lines(),
        bench_resume_program.lines(),
        bench_resume.lines(rounds=1),
    ):
        print(line, flush=True)


if __name__ == "__main__":
    main()
