"""The README's example runs, and its commands exist."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


def test_example_runs_and_prints_what_it_says() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 1
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(blocks[0], "README.md", "exec"), {})
    cached, table, shared = printed.getvalue().splitlines()
    assert (cached, table, shared) == ("0", "[1, 2, 3, 4, 5, 6, 7]", "96")


def test_the_two_commands_are_make_targets() -> None:
    makefile = (Path(__file__).resolve().parent.parent / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+) ", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
