"""What is left of a private cluster whose owner is dead, and how a process is known to be dead."""

from __future__ import annotations

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.cloud.local.state import Process, write_json
from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster import sweep
from slurm_plugin.local_cluster.cluster import LocalCluster


def test_a_number_that_is_a_threads_now_is_no_process() -> None:
    """Numbers are given out again, soon where there are 32768 of them."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        noted = Process.of(thread.native_id)
        assert noted is not None
        for process in (noted, replace(noted, started=1)):
            assert not process.alive()
            assert not process.send(0)
            assert process.wait(0)
    finally:
        over.set()
        thread.join()


def left_by_the_dead(folder: Path) -> Path:
    """The note of whose it was."""
    with subprocess.Popen(["sleep", "1000"]) as owner:
        dead = Process.of(owner.pid)
        owner.kill()
    assert dead is not None
    (folder / "run").mkdir()
    note = folder / "run" / "owner.json"
    write_json(note, dead.to_dict())
    return note


def test_only_one_of_two_takes_a_cluster_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = left_by_the_dead(tmp_path)
    stops = []

    def stop(cluster: LocalCluster) -> None:
        stops.append(cluster.root)
        time.sleep(0.2)
        note.unlink()

    monkeypatch.setattr(LocalCluster, "stop", stop)
    monkeypatch.setattr(sweep, "clusters", lambda: [LocalCluster(tmp_path)])
    with ThreadPoolExecutor(4) as pool:
        swept = [one for found in pool.map(lambda _: sweep.sweep(), range(4)) for one in found]
    assert swept == stops == [tmp_path]


def test_nothing_is_made_in_a_folder_that_others_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have put a link where the lock is to be."""
    left_by_the_dead(tmp_path)
    tmp_path.chmod(0o777)
    monkeypatch.setattr(sweep, "clusters", lambda: [LocalCluster(tmp_path)])
    with pytest.raises(LocalCloudError, match="others may write to it"):
        sweep.sweep()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["owner.json"]
