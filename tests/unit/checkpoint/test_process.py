"""Real programs, killed, signalled, and run under the real wrapper."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_wrapper.errors import ExitCode
from tests.unit.checkpoint.training import Attempt, assert_same, open_run, train

ROOT = Path(__file__).parents[3]
WRAPPER = "import sys; from job_wrapper.run import main; sys.exit(main(sys.argv[1:]))"


class Room:
    """Starts programs, and takes down what is left of them."""

    def __init__(self, path: Path) -> None:
        self.path, self.store = path, path / "store"
        self.store.mkdir()
        self.result = path / "result"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, **environ: str) -> subprocess.Popen[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SPOTBURST_"))}
        process = subprocess.Popen(
            [sys.executable, *command],
            env=kept | {"PYTHONPATH": str(ROOT), "SPOTBURST_NODE_CONFIG": ""} | environ,
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def program(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start("-m", "tests.unit.checkpoint.program", str(self.store), str(self.result), *arguments)

    def wrapped(self, *arguments: str) -> subprocess.Popen[str]:
        command = ("-m", "tests.unit.checkpoint.program", "-", str(self.result), *arguments)
        options = ("--uri", f"file://{self.store}", "--run", "wrapped")
        return self.start("-c", WRAPPER, *options, "--", sys.executable, *command)

    def attempt(self) -> Attempt:
        attempt: Attempt = pickle.loads(self.result.read_bytes())  # noqa: S301 (our own, made a moment ago)
        return attempt


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path)
    yield room
    for process in room.started:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def undisturbed() -> Attempt:
    return train(None)


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    seen = []
    for one in process.stdout:
        seen.append(one)
        if one.strip() == line:
            return
    raise AssertionError("".join(seen))


@pytest.mark.parametrize(("phase", "resumed"), [("pack end", 4), ("manifest", 4), ("commit", 4), ("committed", 9)])
def test_killed_in_the_middle_of_a_save(room: Room, undisturbed: Attempt, phase: str, resumed: int) -> None:
    first = room.program(f"hang:{phase}")
    read_until(first, "hanging")
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    second = train(open_run(room.store))
    assert second.began_at == resumed
    assert_same(second, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_without_the_wrapper_saves_the_last_step_and_ends(
    room: Room, undisturbed: Attempt, number: int
) -> None:
    first = room.program("await:5")
    read_until(first, "step 5")
    first.send_signal(number)
    output, _ = first.communicate()
    assert first.returncode == ExitCode.REQUEUED, output
    second = train(open_run(room.store))
    assert second.began_at >= 5
    assert_same(second, undisturbed)


def test_under_the_wrapper_stopped_twice_and_the_newest_checkpoint_damaged(room: Room, undisturbed: Attempt) -> None:
    outputs = []
    for step in (3, 10):
        process = room.wrapped(f"await:{step}")
        read_until(process, f"step {step}")
        process.send_signal(signal.SIGTERM)
        outputs.append(process.communicate()[0])
        assert process.returncode == 128 + signal.SIGTERM, outputs
    assert "step 3\n" not in outputs[1]  # the second one went on
    newest = max(room.store.glob("*/wrapped/main/data/*/*.pack"), key=lambda pack: pack.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    process = room.wrapped()
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert 3 <= room.attempt().began_at < 10, output
    assert_same(room.attempt(), undisturbed)


def run(room: Room, script: str, **environ: str) -> tuple[int, str]:
    process = room.start("-c", textwrap.dedent(script), **environ)
    output, _ = process.communicate()
    return process.returncode, output


def test_an_error_is_one_message_and_its_exit_code(room: Room) -> None:
    script = """
        import os
        from job_wrapper.checkpoint import Checkpointer
        with Checkpointer(config={"lr": os.environ["LR"]}) as checkpoint:
            checkpoint.step()
    """
    uri = f"file://{room.store}"
    assert run(room, script, SPOTBURST_URI=uri, SPOTBURST_RUN="r", LR="0.1") == (0, "")
    code, output = run(room, script, SPOTBURST_URI=uri, SPOTBURST_RUN="r", LR="0.2")
    assert (code, "Traceback" in output) == (ExitCode.CONFIG_CHANGED, False)
    assert output.startswith("spotburst: the configuration differs from that of the checkpoint of step 1")
    code, output = run(room, script, SPOTBURST_URI="ftp://x", SPOTBURST_RUN="r", LR="0.1")
    assert (code, output.count("\n"), output.startswith("spotburst: ")) == (ExitCode.STORE_REFUSED, 1, True)
    code, output = run(room, script.replace("config", "uri=os.environ['URI'], config"), URI=uri, LR="0.1")
    assert (code, output.count("\n"), "SPOTBURST_RUN" in output) == (ExitCode.USAGE, 1, True)


def test_a_program_that_does_not_close_is_told_so(room: Room) -> None:
    code, output = run(
        room,
        """
        from job_wrapper.checkpoint import Checkpointer
        checkpoint = Checkpointer(x=[1])
        checkpoint.step()
        """,
        SPOTBURST_URI=f"file://{room.store}",
        SPOTBURST_RUN="r",
    )
    assert code == 0
    assert "without closing its Checkpointer: step 1 is in no checkpoint" in output


def test_helpers_of_the_program_can_still_be_ended(room: Room) -> None:
    code, output = run(
        room,
        """
        import multiprocessing, signal
        from job_wrapper.checkpoint import Checkpointer
        with Checkpointer(x=[1]):
            for context in map(multiprocessing.get_context, ("fork", "forkserver")):
                begun = context.Event()
                work = "import time; begun.set(); time.sleep(120)"
                helper = context.Process(target=exec, args=(work, {"begun": begun}))
                helper.start()
                begun.wait(120)  # before that it is not yet ready for signals
                helper.terminate()
                helper.join(60)
                print(helper.exitcode)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        """,
        SPOTBURST_URI=f"file://{room.store}",
        SPOTBURST_RUN="r",
    )
    assert (code, output) == (0, "-15\n-15\n")


def test_a_shielded_loader_worker_outlives_a_signal_to_the_whole_tree(room: Room) -> None:
    _, output = run(
        room,
        """
        import os, subprocess
        from torch.utils.data import DataLoader
        from job_wrapper.checkpoint import shield_worker

        def started(shield):
            batches = iter(DataLoader(range(8), num_workers=1, prefetch_factor=1, worker_init_fn=shield))
            next(batches)
            return batches, batches._workers[0]

        def signal_from_outside(worker):
            subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)

        batches, worker = started(shield_worker)
        signal_from_outside(worker)
        print(len(list(batches)), flush=True)
        batches, worker = started(shield_worker)
        worker.terminate()  # by its own program
        worker.join(60)
        print(worker.exitcode, flush=True)
        batches, worker = started(None)
        try:
            signal_from_outside(worker)
            worker.join(60)
        except RuntimeError:
            pass  # torch's own handler has noticed
        print(worker.exitcode, flush=True)
        os._exit(0)
        """,
    )
    assert output == "7\n0\n-15\n"
