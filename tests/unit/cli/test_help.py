"""Help, man pages and completion: made of one thing, so that none of them says what is not so."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from job_wrapper.agent import parser as agent_parser
from job_wrapper.node_config import NodeConfig
from job_wrapper.run.options import parse_options
from slurm_plugin.cli.completion import VARIABLE, script
from slurm_plugin.cli.examples import EXAMPLES
from slurm_plugin.cli.man import pages, roff
from tests.fixtures.command_line import commands, every_command, parsed
from tests.fixtures.unmet import need_program

PROGRAM = Path(sys.executable).parent / "spotburst"
ELSEWHERE = ("run", "progress", "agent")
"""Commands that read their arguments themselves."""


def test_every_example_can_be_typed() -> None:
    for command, shown in EXAMPLES.items():
        for typed, _ in shown:
            words = shlex.split(typed.partition(" >")[0].removeprefix("srun "))
            assert words[0] == "spotburst"
            assert " ".join(words[1:]).startswith(command)
            if words[1] == "run":
                parse_options(words[2:], NodeConfig(uri="file:///x"), {})
            elif words[1] == "agent":
                agent_parser().parse_args(words[2:])
            elif words[1] != "progress":
                parsed(words[1:])


def test_every_command_has_help_with_examples_that_is_told_in_its_man_page_too() -> None:
    made = list(pages(commands()))
    by_path = {page.path[1:]: roff(page, made) for page in made}
    for path, command, _ in every_command():
        assert command.help, path
        assert path in by_path
        if path[:1] in [("agent",), ("render",), ("report",)]:
            continue
        assert EXAMPLES.get(" ".join(path)), f"no example of {path}"
        if path[:1] not in [(name,) for name in ELSEWHERE]:
            assert EXAMPLES[" ".join(path)][0][0] in command.epilog
    assert "\\-\\-reclaimed\\-at" in by_path["plan",]
    assert "\\-\\-state\\-dir DIR" in by_path["run",]
    assert "130" in by_path["describe",]


def test_man_pages_are_clean(tmp_path: Path) -> None:
    done = subprocess.run([PROGRAM, "man", tmp_path / "man1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    groff = need_program("groff")
    written = sorted((tmp_path / "man1").glob("*.1"))
    assert {"spotburst.1", "spotburst-run.1", "spotburst-store-check.1"} <= {page.name for page in written}
    checked = subprocess.run(
        [groff, "-man", "-ww", "-z", "-Tutf8", *written], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    shown = subprocess.run(
        [groff, "-man", "-Tascii", "-P-c", written[0].parent / "spotburst-run.1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "srun spotburst run --state-dir /scratch/state -- ./simulate" in re.sub(r".\x08", "", shown.stdout)


def test_man_pages_are_written_once_and_former_ones_go(tmp_path: Path) -> None:
    def written() -> str:
        return subprocess.run([PROGRAM, "man", tmp_path], capture_output=True, text=True, check=True).stdout

    assert f" pages in {tmp_path}, " in written()
    (tmp_path / "spotburst-run.1").rename(tmp_path / "spotburst-former.1")
    (tmp_path / "spotburst-not-ours.1").write_text("")
    assert written().endswith(", 2 changed\n")
    assert {"spotburst-run.1", "spotburst-not-ours.1"} <= {page.name for page in tmp_path.iterdir()}
    assert not (tmp_path / "spotburst-former.1").exists()
    assert written().endswith(", 0 changed\n")


def test_what_a_folder_can_not_take_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run([PROGRAM, "man", tmp_path / "file"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "file: can't be written" in done.stderr


# Completion


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A squeue that shows three jobs, one with a name that a shell would run."""
    squeue = tmp_path / "squeue"
    squeue.write_text(
        "#!/bin/sh\nprintf '123|RUNNING train\\n124_1|PENDING $(touch '%s')`x`\"\\n125_[1-3]|PENDING a\\n' "
        + f"{tmp_path}/ran\n"
    )
    squeue.chmod(0o755)
    # As the installed one, but that squeue is given the time that a busy machine takes to start it.
    program = tmp_path / "spotburst"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom slurm_plugin.cli import completion, main\n"
        "completion.PATIENCE = 120.0\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{PROGRAM.parent}:{os.environ['PATH']}")


def bash(*lines: str) -> list[list[str]]:
    """What Tab would offer for each line, its last word not yet whole."""
    asked = [f"complete_words {' '.join(shlex.quote(word) for word in line.split(' '))}" for line in lines]
    text = (
        f"{script('bash')}\n"
        'complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _spotburst_completion spotburst;\n'
        '  echo "${COMPREPLY[*]}"; }\n' + "\n".join(asked)
    )
    done = subprocess.run([need_program("bash"), "--norc", "-c", text], capture_output=True, text=True, check=False)
    assert done.stderr == "", "it would stand on the line that is being typed"
    return [line.split() for line in done.stdout.splitlines()]


def test_commands_options_and_jobs_are_completed(slurm: None, tmp_path: Path) -> None:
    found = bash("spotburst des", "spotburst describe ", "spotburst run --st", "spotburst offerings cl")
    assert found == [["describe"], ["123", "124_1"], ["--state-dir", "--store-patience"], ["clear"]]
    assert not (tmp_path / "ran").exists()


def test_nodes_are_completed_and_what_can_not_be_asked_is_nothing(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAM.parent}:/usr/bin:/bin")
    assert bash("spotburst shell 1 --node spot-") == [["spot-1", "spot-2", "spot-3"]]
    (site.folder / "burst.yaml").write_text("cluster: [")
    assert bash("spotburst shell 1 --node spot-") == [[]]


def test_fish_and_zsh_are_answered(slurm: None, tmp_path: Path) -> None:
    fish = need_program("fish")
    asked = f"{script('fish')}\ncomplete -C 'spotburst describe 12'"
    environ = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([fish, "--no-config", "-c", asked], env=environ, capture_output=True, text=True, check=False)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["123", "124_1"]
    assert "train" in done.stdout
    environ |= {VARIABLE: "complete_zsh", "_TYPER_COMPLETE_ARGS": "spotburst describe 124"}
    said = subprocess.run([tmp_path / "spotburst"], env=environ, capture_output=True, text=True, check=False)
    assert said.stdout.startswith("_arguments")
    assert "124_1" in said.stdout
    zsh = need_program("zsh")
    (tmp_path / "_spotburst").write_text(script("zsh"))
    # What the answer is evaluated to there, and that the file is one of zsh's.
    asked = f'_arguments() {{ print -r -- "$@" }}; compdef() {{ }}; source {tmp_path}/_spotburst; eval $(cat)'
    done = subprocess.run([zsh, "-f", "-c", asked], input=said.stdout, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "ran").exists()
    assert shutil.which("squeue") == str(tmp_path / "squeue")
