"""The last words of ``examples/demo.py`` where it fails: short, with where to look and how to go on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from examples import demo


def test_a_wait_that_was_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: demo.Demo) -> bool:
        raise TimeoutError("waited for attempt 2 of job 1: not within 90 s\n" + "== log\nline\n" * 100)

    monkeypatch.setattr(demo.Demo, "run", run)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--folder", str(tmp_path / "demo")])
    monkeypatch.setattr(os, "getloadavg", lambda: (7.25, 6.0, 5.0))
    assert demo.main() == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 4
    assert said[0] == "RESULT FAILED: waited for attempt 2 of job 1: not within 90 s"
    assert f"{tmp_path}/demo/cluster/log" in said[1]
    assert f"{tmp_path}/demo/failure.txt" in said[1]
    assert f"load 7.2 on {os.cpu_count()} processor" in said[2]
    assert "`make demo` again" in said[3]
    assert (tmp_path / "demo" / "failure.txt").read_text().count("line") == 100


def test_a_training_that_did_not_finish_is_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = demo.Demo(tmp_path, 10, 0.0)
    made.same()
    assert made.failed == [f"the training in {tmp_path}/train did not finish: there is no final.pt"]
    assert capsys.readouterr().out.startswith("FAIL  the training")
