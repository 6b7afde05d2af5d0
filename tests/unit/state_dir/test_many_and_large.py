"""State directories at their limits: as many as are allowed, unchanged bytes that are not stored again, large files in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from job_wrapper.state_dirs import MAX_DIRS, check_paths, save
from job_wrapper.state_restore import restore
from job_wrapper.store import ObjectRef, ObjectStore, read_part

DATA = "c/1/main/data/e00000001"
LATER = 10**19
"""A clock that says that no file was changed just now."""
MEMORY = """
import json, sys
from pathlib import Path
from job_wrapper.state_dirs import save
from job_wrapper.state_restore import restore
from job_wrapper.store import ObjectRef, open_store, read_part

def memory(field):
    return next(int(line.split()[1]) >> 10 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))

uri, what, folder, ref = sys.argv[1:]
store = open_store(uri, prove=False)
if what == "restore":
    part = read_part(store, ObjectRef(**json.loads(ref)))
before = memory("VmRSS")
save(store, "c/1/main/data/e00000001", [Path(folder)]) if what == "save" else restore(store, [Path(folder)], part)
print(memory("VmHWM") - before)
"""


def stored(store: ObjectStore) -> int:
    return sum(info.size for info in store.list(DATA) if info.key.endswith(".pack"))


def test_as_many_as_are_allowed_are_one_checkpoint(store: ObjectStore, tmp_path: Path) -> None:
    roots = check_paths([f"{tmp_path}/state/{number}" for number in range(MAX_DIRS)])
    assert len(roots) == 64
    for number, root in enumerate(roots):
        (root / "step").write_text(f"7 in {number}")
    part = read_part(store, save(store, DATA, roots))
    for root in roots:
        (root / "step").write_text("8")
    restore(store, roots, part)
    assert [(root / "step").read_text() for root in roots] == [f"7 in {number}" for number in range(64)]


def test_what_did_not_change_is_not_stored_again(store: ObjectStore, tmp_path: Path) -> None:
    (root,) = check_paths([f"{tmp_path}/state"])
    for number in range(9):
        (root / f"frozen-{number}").write_bytes(os.urandom(1 << 20))
    (root / "weights").write_bytes(os.urandom(1 << 20))
    base = read_part(store, save(store, DATA, [root], clock_ns=lambda: LATER))
    first = stored(store)
    assert first >= 10 << 20
    (root / "weights").write_bytes(os.urandom(1 << 20))
    (root / "frozen-0").rename(root / "renamed")
    (root / "frozen-1").touch()  # as a program does that writes all files anew
    part = read_part(store, save(store, DATA, [root], base=base, clock_ns=lambda: LATER))
    assert stored(store) - first <= (2 << 20) + (64 << 10), "the weights, and the file of a new name"
    other = tmp_path / "other"
    restore(store, [other], part)
    for path in root.iterdir():
        assert (other / path.name).read_bytes() == path.read_bytes()


def test_large_and_sparse_files_take_little_memory(store: ObjectStore, tmp_path: Path) -> None:
    """More than the bound in one file, and far more in one that is mostly holes."""
    (root,) = check_paths([f"{tmp_path}/state"])
    block = os.urandom(16 << 20)
    with (root / "large").open("wb") as file:
        for number in range(24):
            file.write(number.to_bytes(8, "big") + block)
    with (root / "sparse").open("wb") as file:
        file.truncate(64 << 30)
        file.seek(32 << 30)
        file.write(b"middle")
    pointer = json.dumps(asdict(save(store, DATA, [root])))
    for what, folder in (("save", root), ("restore", tmp_path / "other")):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, store.uri, what, folder, pointer], check=True, capture_output=True, text=True
        )
        assert int(done.stdout) < 256, f"MiB for a {what} of 384 MiB"
    assert subprocess.run(["cmp", root / "large", tmp_path / "other" / "large"], check=False).returncode == 0
    assert (tmp_path / "other" / "sparse").stat().st_size == 64 << 30
    assert (tmp_path / "other" / "sparse").stat().st_blocks * 512 < 1 << 20
    part = read_part(store, ObjectRef(**json.loads(pointer)))
    assert {item.name for item in part.items} == {"0", "0/large", "0/sparse"}
