"""A process of its own whose memory ``bench_memory`` asks for: the save or the restore of a state directory.

python -m tests.bench.memory_child save|restore URI FOLDER [ENDPOINT]    prints the bytes that it took beyond what it had before
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from job_wrapper.state_dirs import save
from job_wrapper.state_restore import restore
from job_wrapper.store.io_types import ObjectRef
from job_wrapper.store.open import open_store
from job_wrapper.store.read import read_part

DATA = "run/data/e1"


def resident(field: str, pid: int | str = "self") -> int:
    """A line of a process's ``status`` in bytes: ``VmRSS`` is what is resident now, ``VmHWM`` the most so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise ValueError(field)


def main(what: str, uri: str, folder: str, endpoint: str = "") -> None:
    """The pointer to the part is kept in a file beside the state directory, for the restore."""
    root, pointer = Path(folder), Path(folder + ".json")
    store = open_store(uri, endpoint_url=endpoint, prove=False, create=True)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before = resident("VmRSS")
    if what == "save":
        pointer.write_text(json.dumps(asdict(save(store, DATA, [root]))))
    else:
        restore(store, [root], read_part(store, ObjectRef(**json.loads(pointer.read_text()))))
    print(resident("VmHWM") - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
