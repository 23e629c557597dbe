"""The examples for the interfaces of older block managers (ancestors) run, and print the expected
lines.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Number of the ancestor, name of its example, and a line that the example must print.
SHOWN = [
    ("000", "token_blocks", "blank again: [-1, -1, -1, -1]"),
    ("001", "v1_early", "evicted first: [2, 1, 0]"),
    ("002", "aphrodite", "promotion: 101 -> 100 cached: True"),
    ("003", "cacheflow", "copy before writing: (6, 5)"),
    ("004", "v0_allocator", "copies to make: [(2, 3)]"),
    ("004", "v0_block_manager", "sequence 1 appends 20, copies: [(1, 2)]"),
]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param(*row, id=row[0], marks=pytest.mark.lineage(ancestor=ancestor, item="example"))
        for ancestor, *row in SHOWN
    ],
)
def test_an_example_prints_what_it_shows(name: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"lineage_{name}.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert line in printed.out
    assert printed.err == ""
