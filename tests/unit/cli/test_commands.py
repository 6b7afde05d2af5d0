"""The command itself: how it starts, what it says to wrong arguments and settings, the commands that need no run."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.terminal import shown_on_terminal
from tests.unit.cli.conftest import Said, Site

Spotburst = Callable[..., Said]
PROGRAM = Path(sys.executable).parent / "spotburst"


@pytest.mark.parametrize("arguments", [["run", "--help"], ["run"], ["agent", "--help"]])
def test_run_and_agent_start_without_what_the_others_need(arguments: list[str]) -> None:
    script = (
        "import os, sys\n"
        "slow = {'typer', 'pydantic', 'rich', 'yaml', 'torch', 'boto3', 'obstore', 'structlog', 'ClusterShell', 'jinja2'}\n"
        f"sys.argv = ['spotburst', *{arguments!r}]\n"
        "from slurm_plugin.cli import main\n"
        "os._exit = sys.exit  # what `run` ends with\n"
        "try:\n"
        "    sys.exit(main())\n"
        "finally:\n"
        "    print('IMPORTED', sorted(slow & set(sys.modules)), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "IMPORTED []" in done.stdout
    assert done.returncode == (2 if arguments == ["run"] else 0)
    assert f"spotburst {arguments[0]}" in done.stdout + done.stderr


def test_help_lists_every_command(spotburst: Spotburst) -> None:
    said = spotburst("--help")
    assert said.code == 0
    for command in (
        "run",
        "agent",
        "describe",
        "attempts",
        "checkpoints",
        "nodes",
        "offerings",
        "plan",
        "store",
        "manager",
        "render",
        "check",
        "local",
    ):
        assert f"\n  {command} " in said.out


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["describe"], ["describe", "1", "2"], ["attempts", "1", "--nope"], ["store"]]
)
def test_wrong_arguments_end_with_2_and_a_word(spotburst: Spotburst, arguments: list[str]) -> None:
    said = spotburst(*arguments)
    assert said.code == 2
    assert "Usage" in said.err + said.out
    assert "Traceback" not in said.err


def test_version(spotburst: Spotburst) -> None:
    assert spotburst("--version").out.startswith("spotburst 0.")


def test_a_wrong_burst_yaml_is_one_line_a_fault_and_no_traceback(site: Site) -> None:
    burst = site.folder / "burst.yaml"
    burst.write_text(burst.read_text() + "colour: red\nrecovery: {max_attempts: 0}\n")
    done = subprocess.run([PROGRAM, "attempts", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"spotburst: {burst}: ") for line in lines)
    assert any("colour: unknown key; allowed here: checkpoints, cluster" in line for line in lines)


def test_a_burst_yaml_that_was_named_must_be_there(site: Site, spotburst: Spotburst) -> None:
    said = spotburst("attempts", "1", "--config", str(site.folder / "nowhere.yaml"))
    assert said.code == 2
    assert "nowhere.yaml: can't be read" in said.err


@pytest.mark.parametrize("command", [["manager"], ["render", "gres"]])
def test_without_burst_yaml_the_places_looked_at_are_listed(
    command: list[str], spotburst: Spotburst, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPOTBURST_CONFIG", raising=False)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    said = spotburst(*command)
    assert said.code == 2
    assert f"no burst.yaml found: looked at {tmp_path}/burst.yaml" in said.err


def test_nodes_without_slurm_conf_says_what_to_set(site: Site, spotburst: Spotburst) -> None:
    said = spotburst("nodes")
    assert said.code == 2
    assert "slurm.conf is not there; set slurm.conf in burst.yaml" in said.err


def test_check_goes_on_after_a_failure(site: Site, spotburst: Spotburst) -> None:
    said = spotburst("check", "--json")
    assert said.code == 1
    found = {f["what"]: f["state"] for f in json.loads(said.out)}
    assert found == {
        "burst.yaml": "ok",
        "slurmctld": "fault",
        "manager": "fault",
        "checkpoint store": "ok",
        "clock": "ok",
    }
    shown = spotburst("check").out
    assert "To do" in shown
    assert "manager: start it: `systemctl start spotburst-manager`" in shown


def test_check_without_slurmctld_goes_by_the_file(site: Site, spotburst: Spotburst) -> None:
    (site.folder / "slurm.conf").write_text(
        f"ClusterName=demo\nSlurmctldHost={socket.gethostname()}(127.0.0.1)\nSlurmctldPort=1\nSlurmUser=root\nReturnToService=2\n"
    )
    (site.folder / "state").mkdir(mode=0o777)
    (site.folder / "state").chmod(0o777)
    found = {f["what"]: f for f in json.loads(spotburst("check", "--json").out)}
    assert f"by {site.folder}/slurm.conf" in found["slurmctld"]["detail"]
    assert (found["JobFileAppend"]["state"], found["SuspendTime"]["state"]) == ("fault", "fault")
    assert "ReturnToService" not in found
    assert "others may write to it" in found["state_dir"]["detail"]


def test_check_of_a_wrong_burst_yaml_names_the_fault(site: Site, spotburst: Spotburst) -> None:
    (site.folder / "burst.yaml").write_text("cluster: [")
    said = spotburst("check")
    assert said.code == 1
    assert "is not YAML" in said.out


def test_store_check_of_a_good_store_leaves_only_the_mark(site: Site, spotburst: Spotburst) -> None:
    store = site.folder / "store"
    before = {p for p in store.rglob("*") if p.is_file()}
    said = spotburst("store", "check", "--json")
    assert said.code == 0
    report = json.loads(said.out)
    assert report["safe"]
    assert all(p["kept"] for p in report["proofs"])
    assert {p for p in store.rglob("*") if p.is_file()} == before | {store / ".spotburst/store.json"}


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("ftp://host/x", "use one of file://, s3://"),
        ("file://relative", "three slashes"),
        ("file:///nowhere/at/all", "Is its file system mounted"),
        ("file:///dev/null", "is a file, not a folder"),
    ],
)
def test_store_check_of_what_cannot_be_one(site: Site, spotburst: Spotburst, uri: str, words: str) -> None:
    said = spotburst("store", "check", uri)
    assert said.code == 81
    assert words in said.out
    assert "Traceback" not in said.err


def test_render_needs_no_slurm_when_its_version_is_given(site: Site, spotburst: Spotburst) -> None:
    said = spotburst("render", "slurm", "--slurm-version", "24.11.5")
    assert said.code == 0
    assert "NodeName=spot-[1-3]" in said.out
    asked = spotburst("render", "slurm")
    assert asked.code == 2
    assert "give --slurm-version" in asked.err
    assert "22.05" in spotburst("render", "slurm", "--slurm-version", "20.2.1").err


def on_a_terminal(width: int, *arguments: str) -> str:
    return shown_on_terminal([PROGRAM, *arguments], TERM="xterm-256color", COLUMNS=str(width))


def test_colours_and_width_only_on_a_terminal(site: Site) -> None:
    site.reclaimed_twice()
    piped = subprocess.run([PROGRAM, "attempts", "123"], capture_output=True, text=True, check=True)
    assert "\x1b" not in piped.stdout
    assert len(piped.stdout.splitlines()) == 4
    wide = on_a_terminal(300, "attempts", "123")
    assert "\x1b[" in wide
    assert len(wide.splitlines()) == 4


def test_a_narrow_terminal_gets_lines_that_can_be_read(site: Site) -> None:
    site.reclaimed_twice()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(80, "attempts", "123"))
    assert re.search(r"^EPOCH 1\s*$", plain, re.MULTILINE)
    assert re.search(r"^  offering +local/local/a/small/spot\s*$", plain, re.MULTILINE)
    assert re.search(r"^  ended +aws reclaim\s*$", plain, re.MULTILINE)
