"""The program's end of the socket, against a real wrapper."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from job_wrapper.client import Connection
from job_wrapper.errors import ExitCode
from job_wrapper.protocol import encode
from job_wrapper.store import ObjectRef, open_store, read_manifest

if TYPE_CHECKING:
    from conftest import Room

PARTS = """
    import os, sys, time
    from job_wrapper.client import Connection
    from job_wrapper.errors import CheckpointFailed
    from job_wrapper.store import PartWriter, open_store, read_item, read_manifest, read_part
    c = Connection.connect()
    store = open_store(c.welcome.uri, prove=False)
    def commit(step, seq=None):
        with PartWriter(store, c.welcome.data, "rank-0") as w:
            w.add_bytes("step", str(step).encode())
            ref = w.finish()
        return c.commit(step, {"rank-0": ref}, seq=seq)
    step = 0
    while c.welcome.restore is not None:
        entry = c.welcome.restore.entry
        try:
            manifest = read_manifest(store, c.welcome.restore.manifest)
            part = read_part(store, manifest.parts["rank-0"])
            step = int(read_item(store, part.items[0]))
            c.restore_done(entry, 0.1)
            break
        except Exception as error:
            print("bad", entry, flush=True)
            c.restore_failed(entry, str(error))
    print("from", step, flush=True)
"""
LOOP = (
    PARTS
    + """
    open("ready", "w").close()
    while True:
        step += 1
        time.sleep(0.01)
        r = c.take_request()
        if r is not None and commit(step, r.seq).stop:
            print("stopped at", step, flush=True)
            open("stopped", "w").close()
            sys.exit(0)
"""
)


def ready(room: Room) -> None:
    room.wait_for((room.path / "ready").exists)
    (room.path / "ready").unlink()


def test_without_a_wrapper_everything_does_nothing() -> None:
    program = (
        "import job_wrapper as j, sys\n"
        "j.on_request(lambda: 1/0)\n"
        "assert j.requested() is False and j.restored() is False and j.state_dir() is None\n"
        "j.saved()\n"
        "assert 'torch' not in sys.modules and 'job_wrapper.store.write' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PATH": "/usr/bin"})


def test_named_wrapper_that_is_gone_is_an_error(tmp_path: object) -> None:
    program = "import job_wrapper as j\nj.requested()"
    done = subprocess.run(
        [sys.executable, "-c", program], env={"SPOTBURST_SOCKET": f"{tmp_path}/none"}, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert b"the wrapper does not answer" in done.stderr


def test_parts_commit_stop_and_restore(room: Room) -> None:
    room.requeues_after("stopped")
    process = room.start(LOOP, "--state-dir", str(room.path / "state"))
    ready(room)
    (room.path / "state" / "log").write_text("kept with the parts")
    room.notice()
    code, out, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    step = int(out.split()[-1])
    (commit,) = room.commits()
    assert commit.summary.commits[-1].step == step
    manifest = read_manifest(open_store(room.uri, prove=False), commit.summary.commits[-1].manifest)
    assert set(manifest.parts) == {"rank-0", "state-dir"}
    assert f"step {step} " in err
    room.notice_file.unlink()
    (room.path / "state" / "log").unlink()
    room.view(restarts=1)
    process = room.start(LOOP, "--state-dir", str(room.path / "state"), restarts="1")
    ready(room)
    assert (room.path / "state" / "log").read_text() == "kept with the parts"
    room.preempt()
    room.view(restarts=1, preempt="99999999999")
    process.send_signal(signal.SIGTERM)
    code, out, _ = room.end(process)
    assert code == ExitCode.REQUEUED
    assert out.startswith(f"from {step}\n")
    resumed = room.commits()[-1].body
    assert (resumed["restored_step"], resumed["restore_seconds"]) == (step, 0.1)
    assert resumed["resumed_at"] <= room.commits()[-1].time


def test_damaged_part_is_reported_and_an_older_one_is_given(room: Room) -> None:
    code, out, err = room.run(PARTS + "    commit(1); commit(2); commit(3); os.kill(os.getpid(), 9)")
    assert code == ExitCode.REQUEUED, err
    assert len(room.commits()) == 3
    for commit in room.commits()[1:]:
        manifest = read_manifest(open_store(room.uri, prove=False), commit.summary.commits[-1].manifest)
        pack = room.store / manifest.packs[0]
        pack.chmod(0o644)
        pack.write_bytes(b"x" * pack.stat().st_size)
    room.view(restarts=1)
    code, out, err = room.run(PARTS, restarts="1")
    assert code == 0, err
    entries = [c.seq for c in room.commits()]
    assert out == f"bad {entries[2]}\nbad {entries[1]}\nfrom 1\n"
    assert room.kinds()[-4:] == ["claim", "restore_failed", "restore_failed", "end"]


def test_all_damaged_ends_the_run_rather_than_beginning_anew(room: Room) -> None:
    room.run(PARTS + "    commit(1); os.kill(os.getpid(), 9)")
    for pack in room.store.rglob("*.pack"):
        pack.chmod(0o644)
        pack.write_bytes(b"x" * pack.stat().st_size)
    room.view(restarts=1)
    code, out, err = room.run(PARTS, restarts="1")
    assert code == ExitCode.RESTORE_FAILED
    assert "from" not in out
    assert room.log()[-1].body["reason"] == "RestoreFailed"
    assert "Nothing was started from scratch" in err


def test_parts_of_a_stranger_are_refused_and_the_program_told(room: Room) -> None:
    foreign = ObjectRef("c/99/main/data/e00000001/x.part", 3, "xxh3-128:" + "0" * 32)
    program = (
        PARTS
        + f"""
    from job_wrapper.store import ObjectRef
    try:
        c.commit(1, {{"rank-0": ObjectRef({foreign.key!r}, 3, {foreign.checksum!r})}})
    except CheckpointFailed as error:
        print(error)
    missing = ObjectRef(c.welcome.data + "/none.part", 3, {foreign.checksum!r})
    try:
        c.commit(1, {{"rank-0": missing}})
    except CheckpointFailed as error:
        print("missing")
"""
    )
    code, out, err = room.run(program)
    assert code == 0, err
    assert "was not written by this attempt" in out
    assert out.endswith("missing\n")
    assert room.kinds() == ["claim", "end"]


def test_fenced_program_is_told_and_ended(room: Room) -> None:
    first = room.start(LOOP)
    ready(room)
    second = room.start(LOOP, restarts="1")
    ready(room)
    first.send_signal(signal.SIGUSR1)
    code, out, _ = room.end(first)
    assert code == ExitCode.FENCED
    assert "stopped at" not in out
    assert second.poll() is None
    second.kill()


def test_words_that_are_not_understood_are_passed_over(room: Room) -> None:
    program = """
        import json, os, socket
        s = socket.socket(socket.AF_UNIX); s.connect(os.environ["SPOTBURST_SOCKET"])
        for line in [b"", b"{", b"[]", b"null", b'{"type":1}', b'{"type":"checkpoint.ack"}', b'{"type":"checkpoint.ack","seq":true}',
                     b'{"type":"checkpoint.commit","seq":1,"step":1,"parts":[]}',
                     b'{"type":"checkpoint.commit","seq":1,"step":1,"parts":{"a":{"key":"../../x","length":1,"checksum":"c"}}}',
                     b'{"type":"restore.failed","entry":"x"}', b'{"type":"progress","completed":-1}', b'{"type":"dance"}',
                     b"[" * 100_000, b'{"type":"restore.done","entry":1,"seconds":1' + b"0" * 400 + b"}",
                     b'{"type":"restore.done","entry":1,"seconds":NaN}', b"\\xff" * 100]:
            s.sendall(line + b"\\n")
        s.sendall(b'{"type":"checkpoint.subscribe","more":1}\\n')
        print(json.loads(s.makefile().readline())["type"])
        big = socket.socket(socket.AF_UNIX); big.connect(os.environ["SPOTBURST_SOCKET"])
        try:
            big.sendall(b"x" * (3 << 20)); print(big.recv(10))
        except OSError:
            print(b"")
    """
    code, out, err = room.run(program)
    assert (code, out) == (0, "welcome\nb''\n"), err
    assert "Traceback" not in err


def test_words_of_a_wrapper_that_are_not_understood_are_passed_over() -> None:
    welcome = {"type": "welcome", "run": "r", "uri": "u", "epoch": 3, "data": "d"}
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    with theirs:
        for message in (
            welcome, {**welcome, "progress": "x"}, {**welcome, "progress": [1]}, {**welcome, "restore": 5}, {**welcome, "interval": 10**400},
            {"type": "checkpoint.request", "seq": 4, "deadline": 10**400}, {"type": "fenced", "epoch": float("inf")}, {"type": "checkpoint.request", "seq": 5, "deadline": 9.5},
        ):  # fmt: skip
            theirs.sendall(encode(message))
    connection._read()
    assert connection.welcome.epoch == 3 and len(connection._welcomes) == 1
    assert connection.request is not None and (connection.request.seq, connection.request.deadline) == (5, 9.5)
    assert connection.fenced is None
    connection.close()


def test_socket_is_private(room: Room) -> None:
    program = "import os\np = os.environ['SPOTBURST_SOCKET']\nprint(oct(os.stat(os.path.dirname(p)).st_mode & 0o777))"
    assert room.run(program)[1] == "0o700\n"


def test_helpers_of_the_program_can_be_ended_though_signals_are_ignored(room: Room) -> None:
    program = """
        import multiprocessing, os, signal, subprocess, time, job_wrapper
        job_wrapper.on_request(lambda: None)
        os.kill(os.getpid(), signal.SIGTERM)      # reaches the tree, ends nothing
        for method in ("fork", "spawn"):
            runs = f"import time; open('{method}', 'w').close(); time.sleep(600)"
            p = multiprocessing.get_context(method).Process(target=exec, args=(runs,))
            p.start()
            while not os.path.exists(method): time.sleep(0.01)
            p.terminate(); p.join(60)
            print(method, p.exitcode)
        s = subprocess.Popen(["sleep", "600"]); s.terminate(); print(s.wait())
    """
    guarded = program.replace(
        "import multiprocessing", "import sys; sys.modules['__main__'].__spec__ = None; import multiprocessing"
    )
    body = "if __name__ == '__main__':\n" + "\n".join(
        "    " + line.strip() if not line.startswith("            ") else "        " + line.strip()
        for line in guarded.strip("\n").splitlines()
        if line.strip()
    )
    code, out, err = room.run(body)
    assert (code, out) == (0, "fork -15\nspawn -15\n-15\n"), err


def test_forked_worker_does_not_answer_for_its_parent(room: Room) -> None:
    program = """
        import os, time, job_wrapper, sys
        from job_wrapper import client
        job_wrapper.on_request(lambda: open(os.path.join(job_wrapper.state_dir(), "x"), "w").close())
        open("ready", "w").close()
        if os.fork() == 0:
            for _ in range(200):
                time.sleep(0.01)
                if job_wrapper.requested(): os._exit(3)
            os._exit(0)
        n = 0
        while n < 1:
            time.sleep(0.01)
            n += job_wrapper.requested()
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    process = room.start(program, "--state-dir", str(room.path / "state"))
    ready(room)
    process.send_signal(signal.SIGUSR1)
    code, out, err = room.end(process)
    assert (code, out) == (0, "0\n"), err
