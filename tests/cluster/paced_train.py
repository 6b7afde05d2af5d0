"""examples/train.py, whose steps take as long as ``--step-time`` says only until the file that TRAIN_HURRY names is there.

So a training lasts for as long as something is to happen to it, however busy the machine is, and no longer.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

TRAIN = Path(__file__).resolve().parents[2] / "examples/train.py"


def main() -> int:
    hurry = Path(os.environ["TRAIN_HURRY"])

    def sleep(seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not hurry.exists():
            time.sleep(min(left, 0.1))

    spec = importlib.util.spec_from_file_location("train", TRAIN)
    assert spec is not None
    assert spec.loader is not None
    train = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    train.time = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)  # type: ignore[attr-defined]
    code: int = train.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
