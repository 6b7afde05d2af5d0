"""A program that can't hear: no signal handler and no thread of it runs while it is inside one long C call."""

from __future__ import annotations

from job_wrapper.errors import ExitCode
from tests.unit.run.conftest import Room

DEAF = """
import itertools, os, signal
signal.signal(signal.SIGTERM, lambda *_: open("heard", "w").close())
open({state!r}, "w").write("work")
# One call, for ever. It tells that it has begun by itself: before it a signal would still be heard.
sum(itertools.chain(filter(None, map(os.mkdir, ["ready"])), range(1 << 60)))
"""


def test_program_inside_one_long_c_call_is_checkpointed_and_the_job_requeued_in_time(room: Room) -> None:
    """The notice reaches the wrapper, which needs nothing of the program."""
    state = room.path / "state" / "file"
    process = room.start(DEAF.format(state=str(state)), "--state-dir", str(state.parent), "--interval", "10m")
    room.wait_for((room.path / "ready").exists)
    room.notice(seconds=60)
    code, _, said = room.end(process)
    assert code == ExitCode.REQUEUED, said
    assert room.kinds() == ["claim", "commit", "interrupted"]
    assert room.commits()[0].body["urgent"] is True
    assert not (room.path / "heard").exists()
