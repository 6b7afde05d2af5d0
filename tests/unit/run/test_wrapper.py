"""The wrapper as users meet it: real processes, a real socket, a POSIX store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from job_wrapper.errors import ExitCode
from job_wrapper.store import open_store, verify_checkpoint

if TYPE_CHECKING:
    from conftest import Room

COUNTER = """
    import os, sys, time, job_wrapper
    file = os.path.join(job_wrapper.state_dir(), "step")
    step = int(open(file).read()) if job_wrapper.restored() else 0
    print("from", step, flush=True)
    last = int(os.environ.get("LAST", "1000000"))
    def save():
        with open(file + ".new", "w") as f:
            f.write(str(step))
        os.replace(file + ".new", file)
    job_wrapper.on_request(save)
    open("ready", "w").close()
    while step < last:
        step += 1
        time.sleep(0.01)
        job_wrapper.requested()
    save()
"""
SLEEPER = "import time\nopen('ready', 'w').close()\ntime.sleep(60)\n"


def ready(room: Room) -> None:
    room.wait_for((room.path / "ready").exists)
    (room.path / "ready").unlink()


@pytest.mark.parametrize(
    ("program", "code", "reason"),
    [
        (["true"], 0, "Finished"),
        (["sh", "-c", "exit 7"], 7, "ProgramFailed"),
        (["sh", "-c", "kill -SEGV $$"], 139, "ProgramFailed"),
        (["/no/such/program"], 127, "ProgramFailed"),
        (["/etc/passwd"], 126, "ProgramFailed"),
    ],
)
def test_exit_code_of_the_program(room: Room, program: list[str], code: int, reason: str) -> None:
    got, _, err = room.run(program)
    assert got == code, err
    end = room.log()[-1]
    assert (end.kind.value, end.body["exit_code"], end.body["reason"]) == ("end", code, reason)
    assert room.calls() == []


def test_environment_and_streams_of_the_program(room: Room) -> None:
    code, out, _ = room.run(
        "import os\nfor k in sorted(os.environ):\n  if k.startswith('SPOTBURST'): print(k, os.environ[k])"
    )
    assert code == 0
    told = dict(line.split(" ", 1) for line in out.splitlines())
    assert (told["SPOTBURST_RUN"], told["SPOTBURST_EPOCH"], told["SPOTBURST_RESTORED"]) == ("c/12/main", "1", "0")
    assert not Path(told["SPOTBURST_SOCKET"]).parent.exists(), "the socket's folder is removed"


def test_keys_of_the_configuration_that_may_change_are_told_to_the_program(room: Room) -> None:
    show = "import os; print(os.environ['SPOTBURST_ALLOW_CONFIG_CHANGE'], os.environ['PET_SIGNALS_TO_HANDLE'])"
    options = ("--allow-config-change", "lr", "--allow-config-change", "data.path")
    _, out, err = room.run(show, *options, SPOTBURST_ALLOW_CONFIG_CHANGE="steps")
    assert out == "steps,lr,data.path SIGINT,SIGQUIT\n", err


def test_finished_run_is_not_run_again(room: Room) -> None:
    room.run(["sh", "-c", "echo once >> file"])
    code, _, err = room.run(["sh", "-c", "echo once >> file"], restarts="1")
    assert code == 0
    assert (room.path / "file").read_text() == "once\n"
    assert "ended successfully" in err


def test_another_command_of_the_same_job_needs_a_name(room: Room) -> None:
    room.run(["true"])
    code, _, err = room.run(["echo", "second"], SLURM_STEP_ID="1")
    assert code == ExitCode.USAGE
    assert "--name" in err
    code, out, _ = room.run(["echo", "second"], "--name", "second", SLURM_STEP_ID="1")
    assert (code, out) == (0, "second\n")


def test_next_attempt_of_an_unfinished_run_may_have_another_command(room: Room) -> None:
    room.run(["sh", "-c", "kill -KILL $$", "node-1"])  # such as the address of the job's first node
    code, _, err = room.run(["sh", "-c", "exit 0", "node-2"], restarts="1")
    assert code == 0, err
    assert room.kinds().count("claim") == 2


@pytest.mark.parametrize("folder", ["", "no/absolute/path", "/not/there"])
def test_tmpdir_that_cannot_be_used(room: Room, folder: str) -> None:
    code, out, err = room.run("import os; print(os.environ['SPOTBURST_SOCKET'])", TMPDIR=folder)
    assert code == 0, err
    assert out.startswith("/tmp/spotburst-")


def test_no_place_for_the_socket_is_said_before_any_work(room: Room) -> None:
    code, out, err = room.run(["echo", "ran"], TMPDIR="/proc")
    assert (code, out) == (ExitCode.USAGE, "")
    assert "TMPDIR" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("requeue", "batch", "hint"), [(0, 1, "#SBATCH --requeue"), (1, 0, "sbatch")])
def test_job_that_cannot_be_requeued_is_told_before_any_work(room: Room, requeue: int, batch: int, hint: str) -> None:
    room.view(requeue=requeue, batch=batch)
    code, _, err = room.run(["touch", "started"])
    assert code == ExitCode.NOT_REQUEUEABLE
    assert hint in err
    assert not (room.path / "started").exists()
    assert not list(room.store.iterdir()), "nothing was claimed"
    code, _, _ = room.run(["touch", "started"], "--on-interruption", "fail")
    assert code == 0


def test_uri_that_cannot_be_written(room: Room) -> None:
    code, _, err = room.run(["touch", "started"], "--uri", f"file://{room.path}/no/such/store")
    assert code == ExitCode.STORE_REFUSED
    assert "spotburst: " in err
    assert "Traceback" not in err
    assert not (room.path / "started").exists()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--state-dir", "relative"], "absolute"),
        (["--state-dir", "/"], "directory of its own"),
        (["--name", "a/b"], "name"),
    ],
)
def test_bad_arguments(room: Room, options: list[str], hint: str) -> None:
    code, _, err = room.run(["touch", "started"], *options)
    assert code == ExitCode.USAGE
    assert hint in err
    assert "Traceback" not in err
    assert not (room.path / "started").exists()


def test_outside_slurm_the_run_needs_a_name(room: Room) -> None:
    env = {k: v for k, v in room.environ().items() if not k.startswith("SLURM_")}
    command = [sys.executable, "-c", "from job_wrapper.run import main; import sys; sys.exit(main(sys.argv[1:]))"]
    done = subprocess.run([*command, "--uri", room.uri, "--", "true"], env=env, capture_output=True, check=False)
    assert done.returncode == ExitCode.USAGE
    assert b"--run" in done.stderr


def test_reclaim_commits_requeues_and_goes_on_at_the_step(room: Room) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"))
    ready(room)
    room.notice()
    code, out, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    assert out == "from 0\n"
    assert room.calls() == ["scontrol requeue 12"]
    assert room.kinds() == ["claim", "commit", "interrupted"]
    commit, interrupted = room.log()[1:]
    assert commit.body["urgent"] is True
    assert commit.body["notice"]["provider"] == "aws"
    assert commit.body["requested_at"] <= commit.body["answered_at"] <= commit.time
    assert interrupted.body["reason"] == "aws reclaim"
    saved = int((room.path / "state" / "step").read_text())
    # On another node: its disk is empty, and there is no notice.
    (room.path / "state" / "step").unlink()
    (room.path / "state").rmdir()
    room.notice_file.unlink()
    room.view(restarts=1)
    code, out, err = room.run(COUNTER, "--state-dir", str(room.path / "state"), restarts="1", LAST=str(saved + 5))
    assert code == 0, err
    assert out == f"from {saved}\n"
    assert room.kinds() == ["claim", "commit", "interrupted", "claim", "commit", "end"]
    assert [e.epoch for e in room.log()] == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_preemption_by_any_signal(room: Room, number: int) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"))
    ready(room)
    room.preempt()
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    process.send_signal(number)
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    assert room.calls() == ["scontrol requeue 12"]
    assert room.log()[-1].body["reason"] == "preempted"


def test_users_own_signal_commits_and_the_program_goes_on(room: Room) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"))
    ready(room)
    process.send_signal(signal.SIGUSR1)
    room.wait_for(lambda: len(room.commits()) == 1)
    time.sleep(0.5)  # a signal while the first is being answered is the same one
    process.send_signal(signal.SIGUSR1)
    room.wait_for(lambda: len(room.commits()) == 2)
    assert process.poll() is None
    assert room.calls() == []
    process.kill()


def test_signals_to_the_whole_tree_do_not_end_the_program(room: Room) -> None:
    """proctrack/linuxproc signals every process that it finds below the step."""
    process = room.start("open('pid','w').write(str(__import__('os').getpid()))\n" + SLEEPER)
    ready(room)
    program = int((room.path / "pid").read_text())
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        os.kill(program, number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    os.kill(program, 0)
    assert os.getsid(program) != os.getsid(process.pid)


def test_cancelled_job_commits_and_is_not_requeued(room: Room) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"))
    ready(room)
    room.view("COMPLETING")
    process.send_signal(signal.SIGTERM)
    code, _, _ = room.end(process)
    assert code == 143
    assert room.calls() == []
    assert room.kinds() == ["claim", "commit", "interrupted"]


def test_reclaim_of_a_program_that_knows_nothing_of_it(room: Room) -> None:
    process = room.start(SLEEPER)
    ready(room)
    room.notice()
    code, _, _ = room.end(process)
    assert code == ExitCode.REQUEUED
    assert room.kinds() == ["claim", "interrupted"]


def test_state_of_a_program_that_knows_nothing_of_it_is_saved_at_the_interval_and_the_notice(room: Room) -> None:
    state = room.path / "state"
    program = f"open({str(state / 'a')!r}, 'w').write('x' * 1000)\n" + SLEEPER
    options = ["--state-dir", str(state), "--interval", "0.3s"]
    process = room.start(program, *options)
    ready(room)
    room.wait_for(lambda: len(room.commits()) >= 3)
    room.notice()
    code, _, _ = room.end(process)
    assert code == ExitCode.REQUEUED
    assert room.commits()[-1].body["urgent"] is True
    (state / "a").unlink()
    room.notice_file.unlink()
    room.view(restarts=1)
    # The same command, whose file reads now what it wrote before.
    code, out, _ = room.run(f"print(len(open({str(state / 'a')!r}).read()))", *options, restarts="1")
    assert (code, out) == (0, "1000\n")


def test_second_attempt_fences_the_first(room: Room) -> None:
    first = room.start(COUNTER, "--state-dir", str(room.path / "state"))
    ready(room)
    second = room.start(COUNTER, "--state-dir", str(room.path / "state2"), restarts="1")
    ready(room)
    first.send_signal(signal.SIGUSR1)  # a commit is asked for
    code, _, err = room.end(first)
    assert code == ExitCode.FENCED
    assert "fenced" in err
    assert [e.epoch for e in room.log()] == [1, 2], "the old attempt wrote nothing"
    assert room.calls() == []
    assert second.poll() is None
    second.kill()


def test_fenced_attempt_is_stopped_between_commits_too(room: Room) -> None:
    first = room.start(SLEEPER)
    ready(room)
    second = room.start(SLEEPER, restarts="1")
    ready(room)
    code, _, _ = room.end(first, seconds=15)
    assert code == ExitCode.FENCED
    assert room.kinds() == ["claim", "claim"]
    second.kill()


def test_store_that_goes_away_and_comes_back(room: Room) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"), "--interval", "0.3s")
    ready(room)
    room.wait_for(lambda: len(room.commits()) >= 1)
    room.store.rename(room.path / "away")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    (room.path / "away").rename(room.store)
    count = len(room.commits())
    room.wait_for(lambda: len(room.commits()) > count)
    room.notice()
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED
    assert "the store can't be reached, it is tried again; the last commit is" in err
    assert "the store is back after" in err


def test_a_job_that_comes_back_does_not_begin_anew_on_a_bare_mount_point(room: Room) -> None:
    process = room.start(SLEEPER, restarts="1")
    ready(room)
    process.kill()
    process.wait()
    room.store.rename(room.path / "away")
    room.store.mkdir()  # the mount point, without what is mounted there
    room.view(restarts=2)
    process = room.start(SLEEPER, restarts="2")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    assert not list(room.store.rglob("*")), "nothing may be begun here"
    room.store.rmdir()
    (room.path / "away").rename(room.store)
    room.wait_for(lambda: room.kinds() == ["claim", "claim"])
    process.kill()


def test_older_attempt_is_refused(room: Room) -> None:
    second = room.start(SLEEPER, restarts="1")
    ready(room)
    code, _, _ = room.run(SLEEPER)
    assert code == ExitCode.RUN_HELD
    second.kill()


def test_two_attempts_without_progress_end_the_run(room: Room) -> None:
    codes = []
    for restarts in range(3):
        room.view(restarts=restarts)
        code, _, err = room.run(["sh", "-c", "echo x >> tries; kill -9 $$"], restarts=str(restarts))
        codes.append(code)
    assert codes == [ExitCode.REQUEUED, ExitCode.REQUEUED, ExitCode.NO_PROGRESS], err
    assert (room.path / "tries").read_text() == "x\nx\n"
    end = room.log()[-1]
    assert (end.kind.value, end.body["reason"]) == ("end", "NoProgress")
    assert len(room.calls()) == 2


def test_requeue_that_is_refused_keeps_the_wrapper_alive(room: Room) -> None:
    (room.fake / "refuse").write_text("Requeue of this job is not now possible\n")
    process = room.start(SLEEPER)
    ready(room)
    room.notice()
    room.wait_for(lambda: len(room.calls()) >= 2)
    assert process.poll() is None
    (room.fake / "refuse").unlink()
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED
    assert err.count("not now possible") == 1


def test_kill_of_the_wrapper_ends_all_that_the_program_started(room: Room) -> None:
    script = "setsid sleep 300 & echo $! > other; sleep 301 & echo $! > child; echo $$ > shell; printf %s $SPOTBURST_SOCKET > socket; touch ready; wait"
    process = room.start(["sh", "-c", script])
    ready(room)
    pids = [int((room.path / name).read_text()) for name in ("child", "shell")]
    folder = Path((room.path / "socket").read_text()).parent
    assert folder.is_dir()
    process.kill()
    process.wait()
    room.wait_for(lambda: not any(_alive(pid) for pid in pids))
    room.wait_for(lambda: not folder.exists())
    os.kill(int((room.path / "other").read_text()), signal.SIGKILL)  # a session of its own is out of reach


def test_program_leaves_nothing_behind(room: Room) -> None:
    code, _, _ = room.run(["sh", "-c", "sleep 300 & echo $! > child"])
    assert code == 0
    room.wait_for(lambda: not _alive(int((room.path / "child").read_text())))


def test_checkpoint_too_large_is_said_and_the_program_goes_on(room: Room) -> None:
    state = room.path / "state"
    program = f"open({str(state / 'a')!r}, 'w').write('x' * 5000)\nimport time\ntime.sleep(1.5)\n"
    code, _, err = room.run(program, "--state-dir", str(state), "--max-size", "1K", "--interval", "0.3s")
    assert "--max-size" in err
    assert code == ExitCode.CHECKPOINT_FAILED
    assert room.commits() == []


def test_state_directory_without_files_is_no_checkpoint(room: Room) -> None:
    state = room.path / "state"
    process = room.start(SLEEPER, "--state-dir", str(state), "--interval", "0.2s")
    ready(room)
    time.sleep(1)
    room.notice()
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED
    assert room.kinds() == ["claim", "interrupted"]
    assert "no commit" not in err


def test_program_that_clears_its_state_at_the_end_has_finished_and_the_last_checkpoint_stands(room: Room) -> None:
    file = room.path / "state" / "a"
    program = f"""
        import os, time
        open({str(file)!r}, "w").write("x")
        while not os.path.exists("go"):
            time.sleep(0.01)
        os.unlink({str(file)!r})
    """
    process = room.start(program, "--state-dir", str(file.parent), "--interval", "0.3s")
    room.wait_for(room.commits)
    (room.path / "go").touch()
    code, _, err = room.end(process)
    assert code == 0
    assert "is empty, but the last checkpoint holds 1 files" in err
    assert room.kinds()[-1] == "end"
    assert room.log()[-1].summary.commits


def test_damaged_checkpoint_is_skipped_for_the_older_one(room: Room) -> None:
    state = room.path / "state"
    process = room.start(COUNTER, "--state-dir", str(state))
    ready(room)
    for count in (1, 2):
        time.sleep(0.5)
        process.send_signal(signal.SIGUSR1)
        room.wait_for(lambda count=count: len(room.commits()) == count)
    process.kill()
    process.wait()
    older, newest = room.commits()
    pack = next(
        p
        for p in sorted(room.store.rglob("*.pack"))
        if p.stat().st_mtime >= newest.time - 5 and _names(newest, p, room)
    )
    data = bytearray(pack.read_bytes())
    data[0] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    room.view(restarts=1)
    process = room.start(COUNTER, "--state-dir", str(state), restarts="1")
    ready(room)
    assert room.kinds()[-1] == "restore_failed"
    assert room.log()[-1].body["entry"] == newest.seq
    process.kill()
    _, out, err = room.end(process)
    assert "damaged" in err
    assert out.startswith("from ")
    assert f"entry {older.seq}" in err


def _names(commit: object, pack: Path, room: Room) -> bool:
    from job_wrapper.store import open_store, read_manifest

    manifest = read_manifest(open_store(room.uri, prove=False), commit.summary.commits[-1].manifest)  # type: ignore[attr-defined]
    return any(str(pack).endswith(key) for key in manifest.packs)


def test_batch_step_watches_the_preempt_time_by_itself(room: Room) -> None:
    process = room.start(SLEEPER, SLURM_STEP_ID="-")
    ready(room)
    room.preempt()
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED
    assert "srun" in err


def test_outside_slurm_term_commits_and_the_next_start_goes_on(room: Room) -> None:
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"), slurm=False)
    ready(room)
    process.send_signal(signal.SIGTERM)
    code, _, _ = room.end(process)
    assert code == 143
    (room.path / "state" / "step").write_text("-5")
    process = room.start(COUNTER, "--state-dir", str(room.path / "state"), slurm=False)
    ready(room)
    other, _, err = room.run(COUNTER, "--state-dir", str(room.path / "state2"), slurm=False)
    assert (other, "held" in err) == (ExitCode.RUN_HELD, True)
    process.send_signal(signal.SIGINT)
    code, out, _ = room.end(process)
    assert code == 130
    assert int(out.split()[1]) > 0
    assert room.calls() == []


def test_other_ranks_find_the_claim_and_write_nothing(room: Room) -> None:
    state = room.path / "state"
    command = ["sh", "-c", f"echo $SPOTBURST_EPOCH $(cat {state}/file); echo saved > {state}/file; sleep 1; kill -9 $$"]
    for restarts, said in (("0", "1\n"), ("1", "2 saved\n")):
        more = {"SLURM_STEP_NUM_TASKS": "2", "restarts": restarts}
        options = ["--state-dir", str(state), "--interval", "0.3s"]
        other = room.start(command, *options, **more, SLURM_PROCID="1")
        first = room.start(command, *options, **more)
        _, out, err = room.end(first)
        assert out == said, err
        _, out, err = room.end(other)
        assert out in (said, "1 saved\n"), err
        (state / "file").unlink()
        room.view(restarts=1)
    assert {e.writer.nonce for e in room.log()} == {e.writer.nonce for e in room.log() if e.kind.value == "claim"}
    assert room.kinds().count("claim") == 2


def test_finished_run_keeps_its_final_checkpoint_alone_and_a_failed_one_all(room: Room) -> None:
    for code in (0, 7):
        state = room.path / f"state-{code}"
        run = f"c/run-{code}/main"
        program = ["sh", "-c", f"while [ ! -e stop ]; do date +%N > {state}/file; sleep 0.05; done; exit {code}"]
        process = room.start(program, "--state-dir", str(state), "--interval", "0.2s", "--run", f"run-{code}")
        room.wait_for(lambda run=run: len(room.commits(run)) >= 5)
        (room.path / "stop").touch()
        assert room.end(process)[0] == code
        (room.path / "stop").unlink()
        store, last = open_store(room.uri, prove=False), room.log(run)[-1]
        assert last.kind.value == "end"
        stored = [info.key for info in store.list(f"{run}/data/") if "/manifest-" in info.key]
        assert len(stored) == 1 if code == 0 else len(stored) >= 3  # what the last commit dropped may still be there
        verify_checkpoint(store, last.summary.commits[-1].manifest)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
