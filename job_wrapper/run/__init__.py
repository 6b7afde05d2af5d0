"""``spotburst run -- CMD``: the wrapper. Starts fast: nothing is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """The wrapper with these arguments (those after ``run``); returns its exit code."""
    from job_wrapper.run.cli import main as run

    return run(argv)
