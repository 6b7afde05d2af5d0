"""How far a long restore or upload is: what is told, to whom, and when."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from job_wrapper.state_dirs import save
from job_wrapper.state_restore import restore
from job_wrapper.store import open_store, read_part
from job_wrapper.transfer import EVERY, Shown, line
from tests.fixtures.terminal import shown_on_terminal


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_batch_jobs_output_has_a_line_now_and_then() -> None:
    said: list[str] = []
    clock = Clock()
    with Shown("restoring", said.append, bar=False, steady=clock)(10 << 30) as tell:
        for _ in range(10):
            clock.now += EVERY / 2 + 1
            tell(1 << 30)
    assert said[0] == "restoring: 2.0 of 10.0 GiB, 0.062 GiB/s, 128 s left"
    assert len(said) == 5
    assert said[-1].startswith("restoring: 10.0 of 10.0 GiB")
    assert "left" not in said[-1]


@pytest.mark.parametrize(
    ("done", "total", "seconds"), [(0, 0, 0.0), (0, 5, 3.0), (7, 5, 1e-9), (1 << 21, 1 << 22, 2.0)]
)
def test_no_figures_are_too_odd_for_a_line(done: int, total: int, seconds: float) -> None:
    assert line("saving", done, total, seconds).startswith("saving: ")


def test_all_bytes_of_files_are_told_when_they_are_saved_and_restored(tmp_path: Path) -> None:
    state, back = tmp_path / "state", tmp_path / "back"
    state.mkdir()
    for name, size in (("a", 3_000_000), ("b", 10), ("c", 0)):
        (state / name).write_bytes(os.urandom(size))
    store = open_store(f"file://{tmp_path}/store", prove=False, create=True)

    class Told:
        def __init__(self) -> None:
            self.total = self.done = 0

        def __call__(self, total: int) -> Told:
            self.total, self.done = total, 0
            return self

        def __enter__(self) -> Callable[[int], None]:
            return self.add

        def __exit__(self, *_: object) -> None:
            pass

        def add(self, count: int) -> None:
            self.done += count

    told = Told()
    first = save(store, "c/1/main/data/e00000001", [state], progress=told)
    assert (told.total, told.done) == (3_000_010, 3_000_010)
    again = Told()
    kept = read_part(store, first)
    save(store, "c/1/main/data/e00000001", [state], base=kept, progress=again)
    assert again.done == again.total == 3_000_010, "also what is not read again"
    read = Told()
    restore(store, [back], kept, read)
    assert (read.total, read.done) == (3_000_010, 3_000_010)
    assert (back / "a").read_bytes() == (state / "a").read_bytes()
    for pack in (tmp_path / "store").rglob("*.pack"):
        pack.unlink()
    save(store, "c/1/main/data/e00000001", [state], base=kept, progress=again)
    assert again.done == again.total == 3_000_010, "what is begun anew is told anew"


DRAWS = """
from job_wrapper import transfer
transfer.FIRST = 0.0
with transfer.Shown("restoring", print, bar=transfer.may_draw())(1000) as tell:
    for _ in range(10):
        tell(100)
print("over")
"""


def drawn(**environ: str) -> str:
    return shown_on_terminal([sys.executable, "-c", DRAWS], **{"TERM": "xterm", **environ})


def test_a_terminal_has_a_bar_and_no_colours_where_nobody_wants_any() -> None:
    shown = drawn()
    assert "restoring" in shown
    assert re.search(r"\x1b\[(1;)?3", shown)
    plain = drawn(NO_COLOR="1")
    assert "restoring" in plain
    assert not re.search(r"\x1b\[(1;)?[39]", plain)
    assert "restoring" not in drawn(TERM="dumb")
