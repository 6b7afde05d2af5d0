"""Providers as burst.yaml names them: made without a word to any cloud, and a missing client library is one clear message."""

from __future__ import annotations

import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slurm_plugin.config import Config
from slurm_plugin.errors import ConfigError
from slurm_plugin.manager import providers

GCP = {"type": "gcp", "project": "p", "region": "us-central1", "image": "i", "subnetwork": "s"}
AZURE = {
    "type": "azure",
    "subscription": "s",
    "resource_group": "g",
    "region": "r",
    "image": "i",
    "subnet": "n",
    "ssh_public_key": "k",
}


def config(tmp_path: Path, provider: dict[str, Any]) -> Config:
    offering = {"provider": "far", "instance_type": "x", "zone": "any"}
    return Config.model_validate(
        {
            "cluster": "c",
            "state_dir": str(tmp_path),
            "checkpoints": {"uri": "file:///shared"},
            "providers": {"far": provider},
            "nodesets": [{"name": "n", "nodes": "n-1", "cpus": 1, "memory_mb": 1, "offerings": [offering]}],
            "partitions": [{"name": "p", "nodesets": ["n"]}],
        }
    )


@pytest.mark.parametrize("provider", [GCP, AZURE], ids=lambda p: p["type"])
def test_made_without_a_word_to_the_cloud(
    provider: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was sent")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    made = providers.build(config(tmp_path, provider), "far")
    assert made.name == "far"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("provider", "library"), [(GCP, "google"), (AZURE, "azure")], ids=["gcp", "azure"])
def test_missing_library_is_named_with_its_remedy(
    provider: dict[str, Any], library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(module: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)

    monkeypatch.setattr(providers, "import_module", without)
    with pytest.raises(
        ConfigError, match=rf"providers.far.type: .*\({library}\): pip install 'spotburst\[{provider['type']}\]'"
    ):
        providers.build(config(tmp_path, provider), "far")
