"""The events socket spoken by hand, as a program in another language does it: a few lines of JSON, no library of ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from job_wrapper.errors import ExitCode
from tests.unit.run.conftest import LEAVES_LATE

if TYPE_CHECKING:
    from conftest import Room

PERL = """
use IO::Socket::UNIX;
$| = 1;
my $wrapper = IO::Socket::UNIX->new(Peer => $ENV{SPOTBURST_SOCKET}) or die "no socket";
$wrapper->autoflush(1);
print $wrapper qq({"type":"checkpoint.subscribe"}\\n);
while (my $line = <$wrapper>) {
    print $line;
    if ($line =~ /"welcome"/) { open my $file, ">", "ready" or die; }
    if ($line =~ /"checkpoint.request"/) {
        my ($seq) = $line =~ /"seq":(\\d+)/;
        open my $file, ">", "$ENV{SPOTBURST_STATE_DIR}/answer" or die; print $file "for $seq"; close $file;
        print $wrapper qq({"type":"checkpoint.ack","seq":$seq}\\n);
    }
    if ($line =~ /"stop":true/) { open my $file, ">", "stopped" or die; exit 0; }
}
"""
PYTHON = """
    import json, os, pathlib, socket
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(os.environ["SPOTBURST_SOCKET"])
    stream.sendall(b'{"type":"checkpoint.subscribe"}\\n')
    for line in stream.makefile():
        print(line, end="", flush=True)
        message = json.loads(line)
        if message["type"] == "welcome":
            pathlib.Path("ready").touch()
        if message["type"] == "checkpoint.request":
            pathlib.Path(os.environ["SPOTBURST_STATE_DIR"], "answer").write_text("for %d" % message["seq"])
            stream.sendall(b'{"type":"checkpoint.ack","seq":%d}\\n' % message["seq"])
        if message.get("stop"):
            pathlib.Path("stopped").touch()
            break
"""
SILENT = """
    import os, pathlib, socket, time
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(os.environ["SPOTBURST_SOCKET"])
    stream.sendall(b'{"type":"checkpoint.subscribe"}\\n')
    pathlib.Path(os.environ["SPOTBURST_STATE_DIR"], "file").write_text("what there is")
    pathlib.Path("ready").touch()
    time.sleep(600)
"""


@pytest.mark.parametrize("language", ["perl", "python"])
def test_subscribe_request_acknowledge(room: Room, language: str) -> None:
    program = PYTHON if language == "python" else ["perl", "-e", PERL]
    room.requeues_after("stopped")
    process = room.start(program, "--state-dir", str(room.path / "state"))
    room.wait_for((room.path / "ready").exists)
    # A request that is not urgent, and no other: one that an urgent one finds unanswered is replaced.
    room.notice(kind="rebalance")
    room.wait_for(room.commits)
    room.notice()
    deadline = json.loads(room.notice_file.read_text())["deadline"]
    code, out, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    heard = [json.loads(line) for line in out.splitlines()]
    assert [heard[0]["type"], heard[0]["epoch"], heard[0]["restore"]] == ["welcome", 1, None]
    requests = [m for m in heard if m["type"] == "checkpoint.request"]
    assert [(m["seq"], m["urgent"]) for m in requests] == [(1, False), (2, True)]
    assert requests[-1]["deadline"] == deadline
    answers = [m for m in heard if m["type"] == "checkpoint.committed"]
    assert [m["seq"] for m in answers] == [m["seq"] for m in requests]
    assert [m["stop"] for m in answers] == [False, True]
    assert [m["entry"] for m in answers] == [entry.seq for entry in room.commits()]
    last = (room.path / "state" / "answer").read_text()
    (room.path / "state" / "answer").unlink()
    (room.path / "notice.json").unlink()
    room.view(restarts=1)
    code, out, err = room.run(
        ["sh", "-c", "cat $SPOTBURST_STATE_DIR/answer"], "--state-dir", str(room.path / "state"), restarts="1"
    )
    assert (code, out) == (0, last) and last == f"for {requests[-1]['seq']}", err


def test_program_that_never_answers_is_checkpointed_when_time_is_short(room: Room) -> None:
    room.wrapper = LEAVES_LATE + room.wrapper
    process = room.start(SILENT, "--state-dir", str(room.path / "state"))
    room.wait_for((room.path / "ready").exists)
    room.notice(seconds=4.0)
    code, _, err = room.end(process)
    assert code == ExitCode.REQUEUED, err
    assert [entry.body["urgent"] for entry in room.commits()] == [True]
    assert room.kinds() == ["claim", "commit", "interrupted"]
