from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from job_wrapper.errors import StoreError
from job_wrapper.store import mark_of, open_store
from slurm_plugin.config import Config
from slurm_plugin.manager.stores import Stores
from tests.unit.manager.test_reach import until


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "mounted").mkdir()
    offering = {"provider": "near", "instance_type": "x", "zone": "any"}
    return Config.model_validate(
        {
            "cluster": "c",
            "state_dir": str(tmp_path / "state"),
            "checkpoints": {"uri": f"file://{tmp_path}/mounted"},
            "providers": {"near": {"type": "local"}},
            "nodesets": [{"name": "n", "nodes": "n-1", "cpus": 1, "memory_mb": 1, "offerings": [offering]}],
            "partitions": [{"name": "p", "nodesets": ["n"]}],
        }
    )


def test_a_bare_mount_point_is_not_the_store_even_after_a_restart(config: Config, tmp_path: Path) -> None:
    stores = Stores(config)
    assert stores.mark == ""
    mark = mark_of(stores.open())
    assert stores.mark == mark != ""
    (tmp_path / "mounted").rename(tmp_path / "away")
    (tmp_path / "mounted").mkdir()
    for manager in (stores, Stores(config)):
        with pytest.raises(StoreError, match=r"Is its file system mounted.*spotburst store check"):
            manager.open()
        assert manager.mark == mark, "nodes that boot now are told of it all the same"
    assert not list((tmp_path / "mounted").iterdir())


def test_a_store_that_was_begun_anew_on_purpose_is_taken(config: Config, tmp_path: Path) -> None:
    old = mark_of(Stores(config).open())
    (tmp_path / "mounted").rename(tmp_path / "away")
    open_store(config.checkpoints.uri)
    stores = Stores(config)
    assert mark_of(stores.open()) == stores.mark != old
    assert Stores(config).mark == stores.mark


def test_a_note_that_is_damaged_or_of_another_store_is_none(config: Config) -> None:
    Stores(config).open()
    note = config.state_dir / "store.json"
    for text in ("", "{", "[]", '{"uri": "file:///elsewhere", "mark": "x"}', '{"uri": 1}'):
        note.write_text(text)
        assert Stores(config).mark == ""


def test_a_store_that_is_begun_anew_is_noticed_though_nobody_opens_it(config: Config, tmp_path: Path) -> None:
    """The same folder, emptied: whoever has it open goes on with it."""
    stores = Stores(config, every=0.02)
    old = mark_of(stores.open())
    stores.start()
    shutil.rmtree(tmp_path / "mounted/.spotburst")
    new = mark_of(open_store(config.checkpoints.uri))
    until(lambda: stores.mark == new)
    assert new != old
    stores.stop()
