"""Tests tables at widths of 80 and 200 columns. No line is longer, no word is broken, and nothing is
cut without a mark.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from kvpool.cli.top_view import screen
from tests.printing_commands import TABLES, prepare, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

#: Pattern of a word that consists of the characters of bars and lines, and is not text.
DRAWN = re.compile(r"^[─━│╭╮╰╯█░▁▂▃▄▅▆▇█]+$")
#: Numbers that differ from run to run.
TIMES = re.compile(r"\d")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("w")
    prepare(made)
    return made


def words(text: str) -> set[str]:
    return {word.strip("│") for word in text.split() if not DRAWN.match(word)} - {""}


def store(**more: Any) -> dict[str, Any]:
    """Returns the summary of a store as kvpool top gets it."""
    counts = dict.fromkeys(("objects", "loads", "misses", "writes", "in_flight", "quarantined"), 123_456.0)
    return {
        **counts,
        "bytes": 5e12,
        "capacity_bytes": 1e13,
        "checksum_failures": 7.0,
        "breaker_openings": 12.0,
        "failures": {"timed_out": 12_345.0, "unavailable": 123.0, "full": 1.0},
        **more,
    }


@pytest.mark.parametrize("width", [80, 200])
def test_stores_in_top_are_whole(width: int) -> None:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    stores = {"kv of the first rank on nvme 0": store(), "redis": store(failures={})}
    console.print(
        screen({"pools": {}, "stores": stores}, "http://a-host.internal:9400/metrics", "every 2 s", width)
    )
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    found = words(text)
    assert found >= {
        "objects,",
        "loads,",
        "misses,",
        "writes",
        "flight,",
        "late",
        "timed",
        "unavailable,",
        "damaged",
    }
    assert {"breaker", "opened", "times", "first", "rank", "redis"} <= found
    assert "…" not in text


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_legible_at_80_and_at_200_columns(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {}
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        code, texts[width], error = run(TABLES[name], folder)
        assert code == 0, error
        lines = texts[width].splitlines()
        # A path cannot be wrapped. So a line that is too long contains only a path.
        assert [line for line in lines if len(line) > width and len(line.split()) > 2] == []
    # A word that is complete at 200 columns has to be complete at 80 columns, too.
    missing = words(texts[200]) - words(texts[80])
    assert [word for word in missing if not TIMES.search(word) and str(folder) not in word] == []
    assert "…" not in texts[80] + texts[200]
