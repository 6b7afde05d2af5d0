"""A private cluster is run by root: nothing that another user has prepared is run, followed or ended."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.cloud.local.state import Process, write_json
from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.folder import require_own
from slurm_plugin.local_cluster.munge import Munge
from tests.fixtures.unmet import need_root

HOSTILE = 1003


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_folder_that_another_user_prepared_is_not_used_and_what_it_notes_is_not_ended(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    need_root("to be two users")
    root = tmp_path / "cluster"
    (root / "run").mkdir(parents=True)
    noted = Process.of(sleeper.pid)
    assert noted is not None
    write_json(root / "run" / "slurmctld.json", noted.to_dict())
    os.chown(root, HOSTILE, HOSTILE)
    for act in (LocalCluster(root).stop, LocalCluster(root).start):
        with pytest.raises(LocalCloudError, match="is user 1003's"):
            act()
    assert sleeper.poll() is None
    os.chown(root, 0, 0)
    root.chmod(0o777)
    with pytest.raises(LocalCloudError, match="others may write to it"):
        LocalCluster(root).stop()
    root.chmod(0o755)
    require_own(root)
    require_own(tmp_path / "not-there")


def test_a_folder_of_munges_that_was_lost_and_made_by_another_user_is_not_used_again() -> None:
    need_root("to be two users")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / ("long" * 25)
        (root / "run").mkdir(parents=True)
        munge = Munge(root)
        first = munge.socket.parent
        assert Munge(root).socket.parent == first
        os.chown(first, HOSTILE, HOSTILE)
        second = munge.socket.parent
        assert second != first
        assert second.stat().st_uid == os.geteuid()
        munge.remove_short_folder()
        first.rmdir()
        assert not second.exists()
