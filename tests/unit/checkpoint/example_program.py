"""Runs examples undisturbed, stopped by SIGTERM, and resumed, in forks of one process that has imported all: `… FOLDER NAME…`."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import warnings
from pathlib import Path

import lightning.pytorch  # noqa: F401 - once for all
import torch
import torch._dynamo
import transformers  # noqa: F401

EXAMPLES = Path(__file__).parents[3] / "examples"


def signal_at(said: str) -> None:
    """Send this process SIGTERM as soon as it says that."""
    write = sys.stdout.write

    def watched(text: str) -> int:
        if said in text:
            os.kill(os.getpid(), signal.SIGTERM)
        return write(text)

    sys.stdout.write = watched  # type: ignore[method-assign]


def run(name: str, folder: Path, attempt: str, stop_at: str = "") -> int:
    """One start of an example; its output and final weights go to ``folder``. Returns its exit code."""
    output = folder / f"{name}-{attempt}.log"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with output.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            if attempt != "undisturbed":
                os.environ |= {"SPOTBURST_URI": f"file://{folder}/store", "SPOTBURST_RUN": name}
            sys.argv[1:] = ["--out", str(folder / f"{name}-{attempt}.pt")]
            if stop_at:
                signal_at(stop_at)
            runpy.run_path(str(EXAMPLES / f"train_{name}.py"), run_name="__main__")
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    for example in sys.argv[2:]:
        codes = [
            run(example, place, "undisturbed"),
            run(example, place, "stopped", "step 9"),
            run(example, place, "resumed"),
        ]
        print(example, *codes, flush=True)
