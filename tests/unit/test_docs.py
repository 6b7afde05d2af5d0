"""README.md and docs/: links lead somewhere, every command is one that the program takes, every block is what it says it is."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from job_wrapper.run.options import parser as run_parser
from slurm_plugin.config import Config, load_config
from tests.fixtures.command_line import parsed
from tests.fixtures.pages import PAGES, ROOT, blocks

SHELL = ("sh", "bash")
RUN_BY = {
    "make": ".ci/run",
    "sbatch": "tests/cluster/scenes_examples.py",
    "srun": "tests/cluster/scenes_examples.py",
    "sh": "tests/cluster/scenes_examples.py",
    "snakemake": "tests/cluster/scenes_examples.py",
    "squeue": "tests/cluster/test_readme.py",
    "sinfo": "tests/cluster/test_readme.py",
    "scontrol": "tests/cluster",
    "systemctl": "tests/cluster",
    "ansible-playbook": "tests/cluster",
    "pip": "tests/cluster",
}
"""Programs that blocks of shell call beside spotburst, and the test that calls them as it is said there."""
OF_THE_SYSTEM = frozenset(
    [
        ".",
        "cd",
        "chrt",
        "cp",
        "do",
        "done",
        "export",
        "for",
        "journalctl",
        "mkdir",
        "promtool",
        "python",
        "python3",
        "seq",
        "$EDITOR",
        "./work",
    ]
)
"""Words and programs that are none of spotburst's business."""
PARTLY = re.compile(
    r"^Missing|^Usage: |expected (one|at least one) argument|requires an argument|Invalid value", re.MULTILINE
)
"""What is said of a command that prose names without all of its words, or with a letter for one."""


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of one line of shell, comments and redirections left out."""
    words: list[str] = []
    lexer = shlex.shlex(re.sub(r"\$\(\(.*?\)\)", "0", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    redirected = False
    for word in [*lexer, ";"]:
        if set(word) <= set("<>&") and set(word) & set("<>"):
            redirected = True
        elif redirected:
            redirected = False
        elif set(word) <= set("();|&"):
            yield words
            words = []
        else:
            words.append(word)


def of_spotburst(text: str) -> Iterator[list[str]]:
    """Arguments of each call of ``spotburst`` in a line of shell, or in a span of code."""
    for words in simple_commands(re.sub(r"[][]", "", text.replace("$(", "("))):
        for place, word in enumerate(words):
            if word in ("spotburst", ".venv/bin/spotburst", '"$spotburst"', "$spotburst"):
                yield words[place + 1 :]
                break


def anchors(page: Path) -> set[str]:
    """What ``#`` may name on a page, as GitHub makes it of its headings."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        plain = re.sub(r"[`*]", "", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if f"(docs/{page.name})" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_what_they_say(page: Path) -> None:
    """Shell is parsed by bash, and begins with programs that are accounted for; YAML has keys of burst.yaml; Python compiles."""
    for language, text in blocks(page):
        if language in SHELL:
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{page.name}: {done.stderr}"
            for line in text.splitlines():
                for words in simple_commands(line):
                    words = [w for w in words if not re.match(r"[A-Z_]+=", w)]
                    name = (
                        words[0]
                        if words and words[0].startswith("./")
                        else words[0].rpartition("/")[2]
                        if words
                        else ""
                    )
                    if name not in ("", "spotburst"):
                        assert name in RUN_BY or name in OF_THE_SYSTEM, f"{page.name}: {line}"
        elif language == "python":
            compile(text, page.name, "exec")
        elif language == "yaml":
            settings = yaml.safe_load(re.sub(r"^ *…$", "", text, flags=re.MULTILINE))
            if page.name != "monitoring.md":
                assert set(settings) <= set(Config.model_fields), f"{page.name}: {sorted(settings)}"


def test_a_whole_burst_yaml_is_one_that_can_be_read(tmp_path: Path) -> None:
    whole = [
        text for page in PAGES for language, text in blocks(page) if language == "yaml" and text.startswith("cluster:")
    ]
    assert whole
    for text in whole:
        path = tmp_path / "burst.yaml"
        path.write_text(text, encoding="utf-8")
        assert load_config(path).nodesets


def test_what_is_said_to_be_run_is_run() -> None:
    for program, place in RUN_BY.items():
        path = ROOT / place
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        assert any(program in file.read_text(encoding="utf-8") for file in files), program


def calls(page: Path) -> list[tuple[str, list[str], bool]]:
    """(text, arguments, whether it is whole) of each call of spotburst on the page; in the prose a command may be named without its arguments."""
    found = []
    for language, text in blocks(page):
        if language in (*SHELL, ""):
            for line in text.replace("\\\n", " ").splitlines():
                plain = line.partition("$ ")[2] if language == "" else line
                if "spotburst " in plain and not plain.lstrip().startswith("#"):
                    with contextlib.suppress(ValueError):  # no shell: part of a drawing
                        found += [(line, words, True) for words in of_spotburst(plain)]
    for span in re.findall(r"`((?:srun [^`]*?)?spotburst [^`]+)`", prose(page)):
        found += [(span, words, False) for words in of_spotburst(span)]
    return found


def taken(words: list[str], whole: bool) -> str:
    """Why the command line refuses these words; "" where it takes them."""
    if "…" in words:
        words = words[: words.index("…")]
        whole = False
    if not words:
        return ""
    if words[0] == "run":
        options = words[1 : words.index("--")] if "--" in words else words[1:]
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                run_parser().parse_args(options)
        except SystemExit as left:
            refused = bool(left.code) and (whole or not PARTLY.search(said.getvalue()))
            return said.getvalue() if refused else ""
        return ""
    if words[0] in ("progress", "agent"):
        return ""
    try:
        parsed(words)
    except SystemExit:
        return ""  # it has shown its help
    except Exception as error:
        said_by_click = getattr(error, "format_message", None)
        why = said_by_click() if said_by_click else repr(error)
        return "" if not whole and PARTLY.search(why) else why
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_one_that_spotburst_takes(page: Path) -> None:
    refused = [f"{text}: {why}" for text, words, whole in calls(page) if (why := taken(words, whole))]
    assert refused == []


def test_commands_are_found_and_wrong_ones_are_not_taken() -> None:
    """This file's own instruments."""
    assert ["describe", "1"] in [words for _, words, _ in calls(PAGES[0])]
    assert taken(["describe", "123"], True) == ""
    assert taken(["describe"], True)
    assert taken(["describe", "123", "--nonsense"], False)
    assert taken(["nonsense"], False)
    assert taken(["local", "nonsense"], False)
    assert taken(["run", "--nonsense", "--", "true"], False)
