"""Tests the README. It is one page with a program, a picture, commands and links. Each of these works
alone and as printed.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.cli import main
from tests.documented import ROOT, examples, inside, parse_command, run_python

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "README.md"
README = PAGE.read_text(encoding="utf-8")
BLOCKS = examples(PAGE)
#: Commands in inline code, for example in tables.
INLINE = re.findall(r"`((?:[A-Z_]+=\S+ )?(?:kvpool|make|vllm|pip|cargo|python) [^`]+)`", README)
COMMANDS = [line for block in BLOCKS if block.language == "sh" for line in block.code.splitlines()] + INLINE


def test_the_readme_has_one_snippet_and_one_picture() -> None:
    assert README.count("\n") <= 120
    assert [block.language for block in BLOCKS].count("python") == 1
    assert {block.language for block in BLOCKS} == {"python", "sh"}
    (picture,) = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", README)
    assert len(picture[0]) > 40, "words for who cannot see it"
    assert (ROOT / picture[1]).is_file()


def test_the_snippet_runs_alone_and_prints_what_it_says() -> None:
    (snippet,) = [block for block in BLOCKS if block.language == "python"]
    names: dict[str, Any] = {}
    printed = run_python(snippet, names).splitlines()
    said = re.findall(r"^print\(.*\)  # (\[[^\]]*\]|\d+)", snippet.code, flags=re.MULTILINE)
    assert printed == said == ["0", "[1, 2, 3, 4, 5, 6, 7]", "96"]
    names["manager"].diagnose.check_invariants()


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("kvpool")])
def test_commands_of_kvpool_run_alone_as_printed(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command of the README runs in an empty folder, without other commands before it."""
    with inside(tmp_path):
        assert main(shlex.split(command, comments=True)[1:]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command: str) -> None:
    words = [word for word in shlex.split(command, comments=True) if "=" not in word or word.startswith("-")]
    assert words[0] in ("kvpool", "make", "vllm", "pip", "cargo", "python")
    parse_command(command)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if words[0] == "pip":
        name, _, extras = words[-1].rstrip("]").partition("[")
        assert name == project["name"]
        assert set(extras.split(",")) - {""} <= set(project["optional-dependencies"])


def test_there_are_commands_of_both_kinds() -> None:
    for wanted in ("pip install kvpool", "kvpool size example", "make demo", "make test"):
        assert any(command.startswith(wanted) for command in COMMANDS), wanted


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target
