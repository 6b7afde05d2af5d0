"""Rights by owner, group and mode are what the kernel says they are."""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.checks import reading, rights
from slurm_plugin.checks.rights import EXECUTE, READ, WRITE, User, allowed
from tests.fixtures.unmet import need_root

ASK = "import os,sys,json; print(json.dumps([[os.access(p, w) for w in (4, 2, 1)] for p in sys.argv[1:]]))"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter: those above pytest's own are its user's alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_as_the_kernel_decides(open_folder: Path) -> None:
    need_root("to give files to others")
    user = User("daemon", 1, frozenset({1, 54321}))
    choice = random.Random(1)
    paths = []
    for number in range(120):
        path = open_folder / f"f{number}"
        path.mkdir() if number % 3 == 0 else path.touch()
        os.chown(path, choice.choice((0, 1, 2)), choice.choice((0, 1, 54321, 7)))
        path.chmod(choice.randrange(0o1000))
        paths.append(path)
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", ASK, *paths],
        user=1, group=1, extra_groups=[54321], capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    mine = [[allowed(reading.facts(path), user, wanted) for wanted in (READ, WRITE, EXECUTE)] for path in paths]
    assert mine == told
    root = User("root", 0, frozenset({0}))
    assert [allowed(reading.facts(p), root, EXECUTE) for p in paths] == [os.access(p, os.X_OK) for p in paths]


def test_a_folder_on_the_way_that_bars_it(tmp_path: Path) -> None:
    program = tmp_path / "closed" / "bin" / "spotburst-resume"
    program.parent.mkdir(parents=True)
    program.touch()
    program.chmod(0o755)
    (tmp_path / "closed").chmod(0o700)
    user = User("slurm", 64030, frozenset({64030}))
    (found,) = rights.program("ResumeProgram", reading.facts(program), reading.parents(program)[-2:], user, None)
    assert f"slurm (SlurmUser) can't pass through {tmp_path / 'closed'}" in found.detail
    assert f"chmod o+x {tmp_path / 'closed'}" in found.fix


def test_a_ledger_of_another_user(tmp_path: Path) -> None:
    user = User("slurm", 64030, frozenset({64030}))
    folder = rights.Facts(tmp_path, stat.S_IFDIR | 0o700, 64030, 64030)
    ledger = rights.Facts(tmp_path / "ledger.db", stat.S_IFREG | 0o600, 0, 0)
    (found,) = rights.state_folder(folder, {"ledger.db": ledger}, user)
    assert "was the manager started as another user?" in found.detail
    assert found.fix == f"chown -R slurm {tmp_path}"
    mine = rights.Facts(tmp_path / "ledger.db", stat.S_IFREG | 0o600, 64030, 64030)
    assert list(rights.state_folder(folder, {"ledger.db": mine}, user)) == []
    of_root = rights.Facts(tmp_path, stat.S_IFDIR | 0o700, 0, 0)
    (found,) = rights.state_folder(of_root, {}, user)
    assert "as whom Slurm runs the power programs, can't write there" in found.detail


def test_what_all_runs_have_in_common_must_not_be_a_users(open_folder: Path) -> None:
    need_root("to give files to others")
    slurm = User("slurm", 54321, frozenset({54321}))
    common = [open_folder / "c", open_folder / "c" / "jobs", open_folder / "not-made-yet"]
    common[1].mkdir(parents=True)

    def found() -> list[str]:
        return [
            one.detail + " | " + one.fix
            for one in rights.shared_store(reading.facts(open_folder), [reading.facts(path) for path in common], slurm)
        ]

    os.chown(common[0], 1003, 1003)
    assert found() == [], "one user's store is that user's business"
    open_folder.chmod(0o1777)
    (only,) = found()
    assert only == f"{common[0]} belongs to user 1003, who could move others' runs away | chown slurm {common[0]}"
    os.chown(common[0], 54321, 0)
    assert found() == []
    open_folder.chmod(0o777)
    assert "every user may remove others' runs" in found()[0]
