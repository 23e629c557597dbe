"""The README's examples run, each alone, and its commands exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from kvpool.cli import main

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run(snippet: str) -> tuple[dict[str, Any], list[str]]:
    """A snippet as a reader pastes it, into an interpreter that knows nothing yet: its names, and what it prints."""
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(snippet, "README.md", "exec"), names)
    return names, printed.getvalue().splitlines()


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_every_snippet_runs_alone(number: int) -> None:
    names, _ = run(SNIPPETS[number])
    if "engine" in names:
        names["engine"].close()


def test_examples_print_what_they_say() -> None:
    admission, samples, whole_step, bytes_moved, kept, evidence = SNIPPETS
    assert run(admission)[1] == ["0", "[1, 2, 3, 4, 5, 6, 7]", "96"]
    names, printed = run(samples)
    assert printed == []
    manager = names["manager"]
    assert (manager.request("a").state, manager.request("b").state) == ("running", "swapped")
    manager.check_invariants()
    names, printed = run(whole_step)
    assert printed == []
    manager = names["manager"]
    states = {name: manager.request(name) for name in ("chat", "long", "remote")}
    assert [info.computed_tokens for info in states.values()] == [102, 2048, 1600]
    assert [info.blocks for info in states.values()] == [7, 256, 313]
    assert names["positions"] == list(range(128, 256))
    names, printed = run(bytes_moved)
    assert printed == [str([{block: block for block in range(1, 8)}])]
    assert names["manager"].request("a").state == "swapped"
    names["engine"].close()
    # An eighth of the pool; nothing was looked up twice, so nothing would have hit.
    assert run(kept)[1] == [str({"blocks": 1249, "block_hit_rate": 0.0})]
    assert run(evidence)[1] == []


def test_the_two_commands_are_make_targets() -> None:
    makefile = (Path(__file__).resolve().parent.parent / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([a-z-]+) ", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_commands_of_sizing_take_what_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All four lines, on a trace that the last of them makes."""
    (block,) = re.findall(r"## Size a cache\n\n```\n(.*?)```", README, flags=re.DOTALL)
    commands = [line.partition("#")[0].split()[1:] for line in block.splitlines()]
    assert [command[0] for command in commands] == ["size", "replay", "trace", "generate"]
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "--requests", "200", "-o", "trace.jsonl"]) == 0
    for command in commands:
        few = ["--requests", "20"] if command[0] == "generate" else []
        assert main([*command, *few]) == 0, capsys.readouterr().err
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "chats.jsonl.gz").is_file()
