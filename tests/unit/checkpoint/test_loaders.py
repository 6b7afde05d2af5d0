"""However a program's data comes, and however it is ended, the run ends as one that never was disturbed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from job_wrapper.errors import ExitCode
from tests.unit.checkpoint.lifeline import of_session
from tests.unit.checkpoint.training import KINDS, Attempt, assert_same

BATCHES = 6
"""An epoch, of two; fewer with gradients accumulated."""

End = dict[str, Any]
"""How one attempt ends, counted from its own first step, if it gets that far. ``how``: "stop", an urgent request, the program saves and
leaves; "save, kill", SIGKILL one step after a save has begun behind it; "kill", SIGKILL ``after`` times 20 ms after the start,
wherever that is. ``saves``: steps at which an ordinary checkpoint is asked for."""

Run = Callable[[str, str, list[End], Path], Attempt]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Attempt after attempt, and a last one that nothing disturbs unless an earlier one came to the end."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    program = Path(__file__).with_name("forking.py")
    with subprocess.Popen(
        [sys.executable, program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        assert server.stdin and server.stdout

        def attempts(kind: str, store: str, ends: list[End], result: Path) -> Attempt:
            for end in [*ends, None]:
                line = json.dumps({"kind": kind, "store": store, "result": str(result), "end": end})
                server.stdin.write(line + "\n")
                server.stdin.flush()
                code = int(server.stdout.readline())
                if result.exists():
                    done: Attempt = pickle.loads(result.read_bytes())  # noqa: S301 - made by this test
                    return done
                assert code in (ExitCode.REQUEUED, -signal.SIGKILL)
            raise AssertionError("the run did not end")

        yield attempts
        server.stdin.close()
    end = time.monotonic() + 60
    while left := of_session(server.pid):
        assert time.monotonic() < end, f"processes are left: {left}"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Attempt]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return cache(lambda kind: run(kind, "", [], folder / kind))


ends = st.fixed_dictionaries(
    {
        "how": st.sampled_from(["stop", "save, kill", "kill"]),
        "after": st.integers(1, BATCHES + 1),
        "saves": st.lists(st.integers(1, BATCHES), max_size=2),
    }
)


@settings(
    max_examples=12,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink what takes a second would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(kind=st.sampled_from(sorted(KINDS)), ends=st.lists(ends, max_size=3))
def test_any_ends_give_the_same_bytes(
    tmp_path: Path, run: Run, undisturbed: Callable[[str], Attempt], kind: str, ends: list[End]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    try:
        assert_same(run(kind, str(folder / "store"), ends, folder / "result"), undisturbed(kind))
    finally:
        shutil.rmtree(folder)


def stop(after: int) -> End:
    return {"how": "stop", "after": after, "saves": []}


@pytest.mark.parametrize("kind", KINDS)
def test_stops_in_the_middle_at_the_end_and_after_it(
    tmp_path: Path, run: Run, undisturbed: Callable[[str], Attempt], kind: str
) -> None:
    ends = [stop(2), stop(4), stop(1)]  # steps 2, 6 (most often an epoch's last) and 7
    if KINDS[kind].accumulate > 1:
        ends = [stop(1), stop(1), stop(1)]
    assert_same(run(kind, str(tmp_path / "store"), ends, tmp_path / "result"), undisturbed(kind))
