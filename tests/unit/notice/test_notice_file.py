"""The file between the node agent and the wrappers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from job_wrapper.notice.file import FileWatcher, agent_alive, beat, read_notice, write_notice
from job_wrapper.notice.slurm import preemption
from job_wrapper.notice.types import Notice
from job_wrapper.slurm_job import JobView

NOTICE = Notice("aws", "reclaim", "id-1", 1000.0, 1120.0, "terminate")


@pytest.fixture
def ear(tmp_path: Path) -> tuple[FileWatcher, list[Notice | None], Path, list[str]]:
    log: list[str] = []
    path = tmp_path / "run" / "notice.json"
    return FileWatcher(str(path), log=log.append), [], path, log


def test_written_heard_once_changed_withdrawn(ear: tuple[FileWatcher, list[Notice | None], Path, list[str]]) -> None:
    watcher, heard, path, _ = ear
    watcher.look(heard.append)
    assert heard == []
    write_notice(path, NOTICE)
    for _ in range(3):
        watcher.look(heard.append)
    assert heard == [NOTICE]
    write_notice(path, NOTICE)  # by a restarted agent
    watcher.look(heard.append)
    assert heard == [NOTICE]
    other = Notice("aws", "reclaim", "id-2", 1000.0, 1060.0)
    write_notice(path, other)
    watcher.look(heard.append)
    path.unlink()
    watcher.look(heard.append)
    watcher.look(heard.append)
    assert heard == [NOTICE, other, None]
    assert [p.name for p in path.parent.iterdir()] == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind":"party"}', '{"kind":"reclaim","provider":"aws"}', "\0"])
def test_what_is_no_notice_is_said_once_and_passed_over(
    ear: tuple[FileWatcher, list[Notice | None], Path, list[str]], text: str
) -> None:
    watcher, heard, path, log = ear
    path.parent.mkdir()
    path.write_text(text)
    for _ in range(3):
        watcher.look(heard.append)
    assert heard == []
    assert len(log) == 1
    assert read_notice(path) is None
    write_notice(path, NOTICE)
    watcher.look(heard.append)
    assert heard == [NOTICE]


def test_agent_is_alive_as_long_as_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run" / "notice.json"
    assert not agent_alive(str(file))
    beat(file)
    with monkeypatch.context() as busy:
        busy.setattr("job_wrapper.notice.file.FRESH_SECONDS", 120.0)
        assert agent_alive(str(file))
    os.utime(file.with_name("agent.alive"), (1000.0, 1000.0))
    assert not agent_alive(str(file))
    assert agent_alive(str(file), now=1005.0)


@pytest.mark.parametrize(
    ("view", "preempted"),
    [
        (JobView("RUNNING", 1, 1000.0, start_time=900.0, end_time=1030.0), True),
        (JobView("RUNNING", 1, None, start_time=900.0), False),
        (JobView("RUNNING", 1, 800.0, start_time=900.0), False),
        (JobView("RUNNING", 2, 1000.0, start_time=900.0), False),
        (JobView("COMPLETING", 1, 1000.0, start_time=900.0), False),
    ],
)
def test_preempt_time_of_this_attempt(view: JobView, preempted: bool) -> None:
    notice = preemption(view, 1, 1001.0)
    assert (notice is not None) == preempted
    if notice is not None:
        assert (notice.kind, notice.deadline, notice.source_id) == ("preempt", 1030.0, "preempt@1000")


@pytest.mark.parametrize("value", ["1" + "0" * 400, "1e999", "NaN", "true", '"1"'])
def test_a_time_that_is_none_is_no_notice(tmp_path: Path, value: str) -> None:
    file = tmp_path / "notice.json"
    for name in ("arrived", "deadline"):
        file.write_text(json.dumps({**json.loads(NOTICE.to_json()), name: "here"}).replace('"here"', value))
        said: list[str] = []
        FileWatcher(str(file), log=said.append).look(lambda notice: pytest.fail(f"told of {notice}"))
        assert f"{name} is" in said[0]
        assert read_notice(file) is None
