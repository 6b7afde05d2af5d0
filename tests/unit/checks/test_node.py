"""What ``spotburst check`` finds on a compute node."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from job_wrapper.node_config import NodeConfig
from job_wrapper.notice import file, probe
from job_wrapper.notice.file import HEARTBEAT, beat
from job_wrapper.store import open_store
from slurm_plugin.checks import node as checks
from slurm_plugin.checks.finding import Finding, State
from slurm_plugin.cli.look import Role, look
from tests.fixtures.imds import imds

NODE = NodeConfig(node="n1", nodeset="spot", provider="aws")


@pytest.mark.parametrize(
    ("alive", "unit", "states", "fix"),
    [
        (True, "active", [State.OK], ""),
        (True, "", [State.OK], ""),
        (True, "inactive", [State.OK, State.NOTE], "enable --now"),
        (False, "active", [State.FAULT], "systemctl restart"),
        (False, "failed", [State.FAULT], "journalctl -u"),
        (False, checks.ABSENT, [State.FAULT], "spotburst render agent-service"),
        (False, "", [State.FAULT], "start `spotburst agent` as root"),
    ],
)
def test_the_agent(alive: bool, unit: str, states: list[State], fix: str) -> None:
    found = list(checks.agent(NODE, alive=alive, unit=unit))
    assert [one.state for one in found] == states
    assert fix in found[-1].fix


@pytest.mark.parametrize(
    ("provider", "answers", "state", "detail"),
    [
        ("aws", "aws", State.OK, "answers as aws does"),
        ("aws", "", State.FAULT, "notices of aws come from, does not answer"),
        ("gcp", "aws", State.FAULT, "answers as aws does"),
        ("auto", "gcp", State.OK, "answers as gcp does"),
        ("auto", "", State.FAULT, "does not answer as any cloud does"),
    ],
)
def test_where_notices_come_from(provider: str, answers: str, state: State, detail: str) -> None:
    (found,) = checks.notices(NodeConfig(node="n1", provider=provider), answers)
    assert (found.state, detail in found.detail) == (state, True)
    assert ("EC2" in found.fix) == (provider == "aws" and state is State.FAULT)


def on_node(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = "", **settings: object) -> dict[str, Finding]:
    """By what was looked at. ``text``: of node.json, instead of the settings."""
    given = {"node": "n1", "nodeset": "spot", "notice_file": str(folder / "notice.json"), **settings}
    (folder / "node.json").write_text(text or json.dumps(given))
    monkeypatch.setenv("SPOTBURST_NODE_CONFIG", str(folder / "node.json"))
    found = list(look(None))
    assert all(one.fix for one in found if one.state is State.FAULT)
    return {one.what: one for one in found}


def test_a_node_is_asked_and_its_heartbeat_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither grows old nor hangs while this machine is busy with something else.
    monkeypatch.setattr(file, "FRESH_SECONDS", 600.0)
    monkeypatch.setattr(probe, "SECONDS", 60.0)
    with imds() as service:
        service.pages["/latest/meta-data/instance-id"] = "i-1"
        settings = {"provider": "aws", "metadata_url": service.url}
        beat(tmp_path / "notice.json")
        found = on_node(tmp_path, monkeypatch, **settings)
    assert (found["agent"].state, found["notices"].state) == (State.OK, State.OK)
    assert on_node(tmp_path, monkeypatch, **settings)["notices"].state is State.FAULT, "it is gone"
    past = time.time() - 601
    os.utime(tmp_path / HEARTBEAT, (past, past))
    assert on_node(tmp_path, monkeypatch, **settings)["agent"].state is State.FAULT


def test_settings_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = on_node(tmp_path, monkeypatch, text="{node")["node.json"]
    assert (bad.state, "can't be read as this node's settings" in bad.detail) == (State.FAULT, True)
    strange = on_node(tmp_path, monkeypatch, provider="moon", metadata_url="http://127.0.0.1:9")
    assert "provider is 'moon'" in strange["node.json"].detail
    url = on_node(tmp_path, monkeypatch, provider="aws", metadata_url="https://moon")["notices"]
    assert (url.state, "metadata_url in node.json" in url.detail) == (State.FAULT, True)
    nobody = on_node(tmp_path, monkeypatch, provider="none")
    assert (nobody["agent"].state, "notices" in nobody) == (State.OK, False)


def test_a_machine_without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTBURST_NODE_CONFIG", str(tmp_path / "node.json"))
    (tmp_path / "node.json").write_text(json.dumps({"metadata_url": "http://127.0.0.1:9"}))
    found = {one.what: one for one in look(None, Role.NODE)}
    assert (found["node.json"].state, "notices" in found) == (State.FAULT, False)


def test_a_folder_that_nobody_has_begun_is_none_and_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    settings = {"provider": "none", "uri": f"file://{shared}"}
    found = on_node(tmp_path, monkeypatch, **settings)["checkpoint store"]
    assert (found.state, "is not there on this machine" in found.detail) == (State.FAULT, True)
    assert not shared.exists()
    shared.mkdir()
    found = on_node(tmp_path, monkeypatch, **settings)["checkpoint store"]
    assert (found.state, "has not been used" in found.detail) == (State.FAULT, True)
    open_store(f"file://{shared}")
    assert on_node(tmp_path, monkeypatch, **settings)["checkpoint store"].state is State.OK
