"""Which lines of the project an input reaches: those that reach a new one are worth going on from."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_ROOT = str(Path(__file__).resolve().parents[2]) + "/"
_OURS = tuple(_ROOT + package + "/" for package in ("job_wrapper", "slurm_plugin", "resume_scripts"))


class Lines:
    """All that were reached so far, by one target."""

    def __init__(self) -> None:
        self._seen: set[tuple[CodeType, int]] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def new(self, work: Callable[[], object]) -> bool:
        """Do ``work`` in this thread; whether it reached a line that none before it did."""
        before = len(self._seen)
        sys.settrace(self._called)
        try:
            work()
        finally:
            sys.settrace(None)
        return len(self._seen) > before

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        self._seen.add((frame.f_code, frame.f_lineno))
        return self._line

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._seen.add((frame.f_code, frame.f_lineno))
        return self._line
