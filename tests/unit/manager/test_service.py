"""What systemd is told, by the loop and while it waits, and what it says of itself."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.loop import Loop
from slurm_plugin.manager.say import Once
from slurm_plugin.manager.service import Service
from slurm_plugin.manager.status import status_line
from slurm_plugin.manager.wake import Waker
from tests.unit.manager.listener import Listener
from tests.unit.reconcile.views import job, view


@pytest.mark.parametrize("address", ["", f"@spotburst-test-{os.getpid()}"], ids=["path", "abstract"])
def test_words_reach_systemd_and_a_status_only_when_it_changes(tmp_path: Path, address: str) -> None:
    listener = Listener(tmp_path / "notify", address or None, watchdog=8)
    service = Service(listener.environ)
    assert service.longest_pause == 4.0
    service.ready()
    service.ready()
    for text in ("one\nline", "one line", "other"):
        service.status(text)
        service.alive()
    service.stopping()
    assert listener.hear() == [
        "READY=1", "STATUS=one line", "WATCHDOG=1", "WATCHDOG=1", "STATUS=other", "WATCHDOG=1", "STOPPING=1",
    ]  # fmt: skip


def test_without_systemd_nothing_is_told_and_nothing_fails(tmp_path: Path) -> None:
    for environ in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}, {"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}):
        service = Service(environ)
        service.ready()
        service.alive()
        assert service.longest_pause == float("inf")


class Stage:
    """A loop over an observer that the test leads: each look is one of ``looks``, or hangs."""

    def __init__(self, folder: Path, listener: Listener) -> None:
        self.let_go, self.hangs, self.hang = threading.Event(), threading.Event(), False
        self.fault: Exception | None = None
        self.why = ""
        once = Once()
        observer = SimpleNamespace(
            once=once, look=self._look, policy=SimpleNamespace(nodeset_of={}), close=lambda: None
        )
        config = SimpleNamespace(cluster="c", manager=SimpleNamespace(interval=0.01, busy_interval=0.01))
        applier = SimpleNamespace(apply=lambda actions, view: False)
        self.once = once
        self.ledger = Ledger.open(folder / "ledger.db")
        post = SimpleNamespace(lost=lambda: self.why, start=lambda: None, stop=lambda: None)
        parts: Any = (config, observer, applier, Waker(folder / "manager.sock"), self.ledger)
        self.loop = Loop(*parts, post=post)  # type: ignore[arg-type]
        self.loop.service = Service(listener.environ)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)

    def _look(self) -> Any:
        if self.hang:
            self.hangs.set()
            self.let_go.wait(120)
        if self.fault is not None:
            raise self.fault
        return view()


def test_the_watchdog_hears_of_passes_that_end_and_of_none_that_hangs(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "notify", watchdog=30)
    stage = Stage(tmp_path, listener)
    assert listener.hear() == [], "not ready before it acts"
    stage.thread.start()
    told = listener.until(lambda words: words.count("WATCHDOG=1") >= 3)
    assert told[0] == "READY=1"
    assert told[1] == "STATUS=acting: 0 jobs, 0 machines"
    stage.hang = True
    assert stage.hangs.wait(60)
    before = len(listener.hear())
    assert listener.hear()[before:] == [], "a pass that hangs is told of by nobody"
    stage.hang, stage.fault = False, ValueError("what nobody thought of")
    stage.let_go.set()
    told = listener.until(lambda words: words[before:].count("WATCHDOG=1") >= 2)
    assert "STATUS=acting; not well: a pass" in told[before:], "a pass that fails has ended, and that it fails is told"
    stage.fault = None
    listener.until(lambda words: words[-1] == "WATCHDOG=1" and "STATUS=acting: 0 jobs, 0 machines" in words[before:])
    stage.why = "another acts now"
    # Read meanwhile: what the kernel has no room for is not told.
    listener.until(lambda words: words[-1] == "STOPPING=1")
    stage.thread.join(60)
    assert not stage.thread.is_alive(), "it ends by itself where it may act no more"
    assert listener.hear()[-1] == "STOPPING=1"


def test_the_status_names_what_is_not_well() -> None:
    once = Once()
    once.fault("Slurm", str(SlurmUnavailable("no answer")))
    assert status_line(view(jobs=[job()]), once.lasting()) == "acting: 1 job, 0 machines; not well: Slurm"
    for name in ("cloud aws", "cloud gcp", "requests"):
        once.fault(name, "away")
    assert status_line(None, once.lasting()) == "acting; not well: Slurm, cloud aws, cloud gcp and 1 more"
    for name in once.lasting():
        once.well(name)
    assert status_line(None, once.lasting()) == "acting"
