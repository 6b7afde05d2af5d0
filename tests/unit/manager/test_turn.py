"""One manager acts: by the lock, also of another machine, and by the controller that acts."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from slurm_plugin.manager import turn
from slurm_plugin.manager.service import Service
from slurm_plugin.manager.single import Lock, LockTaken, only_one
from slurm_plugin.manager.turn import Post, my_turn
from slurm_plugin.slurm.controllers import Controller, Watch
from tests.unit.manager.listener import Listener

HERE = socket.gethostname()


class Slurm:
    def __init__(self, *controllers: Controller) -> None:
        self.told = controllers

    def controllers(self) -> tuple[Controller, ...]:
        return self.told

    def version(self) -> tuple[int, int, int]:
        return 24, 11, 5


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "EVERY", 0.02)


class Waiting:
    """A manager that waits for its turn in a thread."""

    def __init__(self, state: Path, watch: Watch, service: Service) -> None:
        self.stopped, self.acts, self.over = threading.Event(), threading.Event(), threading.Event()
        self.lock: Lock | None = None
        self._thread = threading.Thread(target=self._run, args=(state, watch, service), daemon=True)
        self._thread.start()

    def _run(self, state: Path, watch: Watch, service: Service) -> None:
        with my_turn(state, watch, service, self.stopped) as self.lock:
            self.acts.set()
            if self.lock is not None:
                self.over.wait(120)

    def end(self) -> None:
        self.stopped.set()
        self.over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_one_waits_while_another_machines_manager_holds_the_lock_and_takes_over_when_that_is_gone(
    tmp_path: Path,
) -> None:
    listener = Listener(tmp_path / "notify")
    with ExitStack() as other:
        other.enter_context(only_one(tmp_path))
        (tmp_path / "manager.lock").write_text("77 ctl-a\n")
        waiting = Waiting(tmp_path, Watch(Slurm(), HERE), Service(listener.environ))
        told = listener.until(lambda words: words.count("WATCHDOG=1") > 1)
        assert not waiting.acts.is_set()
        assert told[0].startswith("STATUS=standing by: ")
        assert "process 77 on ctl-a" in told[0]
        assert told[1] == "READY=1", "waiting is what this service does here"
    assert waiting.acts.wait(60)
    assert (tmp_path / "manager.lock").read_text() == f"{os.getpid()} {HERE}\n"
    waiting.end()


def test_a_second_one_on_the_same_machine_is_a_mistake(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(LockTaken, match="another manager runs already"):  # noqa: SIM117
        with my_turn(tmp_path, Watch(Slurm(), HERE), Service({}), threading.Event()):
            pass


def test_it_waits_for_its_own_controller_to_act_and_steps_down_for_another(tmp_path: Path) -> None:
    slurm = Slurm(Controller("ctl-a", True), Controller(HERE, True))
    listener = Listener(tmp_path / "notify")
    waiting = Waiting(tmp_path, Watch(slurm, HERE), Service(listener.environ))
    listener.until(lambda words: any("slurmctld acts on ctl-a" in word for word in words))
    assert (tmp_path / "requests").is_dir(), "slurmctld's programs need it whoever acts"
    assert not waiting.acts.is_set()
    slurm.told = Controller("ctl-a", False), Controller(HERE, True)
    assert waiting.acts.wait(60)
    assert waiting.lock is not None
    watch = Watch(slurm, HERE)
    post = Post(waiting.lock, watch)
    watch.look()
    watch.look()
    assert post.lost() == ""
    slurm.told = Controller("ctl-a", True), Controller(HERE, True)
    post.start()
    until = threading.Event()
    while not post.lost():
        assert not until.wait(0.01)
    assert "slurmctld acts on ctl-a now" in post.lost()
    post.stop()
    waiting.end()


def test_a_lock_that_the_storage_gave_to_another_ends_this_one(tmp_path: Path) -> None:
    with only_one(tmp_path) as lock:
        post = Post(lock, Watch(Slurm(), HERE))
        assert post.lost() == ""
        (tmp_path / "manager.lock").write_text("1 ctl-b\n")
        assert "is another's now" in post.lost()
    with only_one(tmp_path) as lock:
        (tmp_path / "manager.lock").unlink()
        (tmp_path / "manager.lock").write_text(lock.line + "\n")
        assert not lock.ours(), "another file of that name is another lock"


def test_it_stops_while_it_waits(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, Watch(Slurm(Controller("a", True), Controller(HERE, False)), HERE), Service({}))
    waiting.end()
    assert waiting.lock is None
