"""Tables at 80 and 200 columns: no line is longer, no word is broken, and nothing is cut without a mark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.printing_commands import TABLES, prepare, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

#: What tables and bars are drawn of.
DRAWN = re.compile(r"^[─━│╭╮╰╯█░▁▂▃▄▅▆▇█]+$")
#: Figures of the run itself, which differ from run to run.
TIMES = re.compile(r"\d")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("w")
    prepare(made)
    return made


def words(text: str) -> set[str]:
    return {word.strip("│") for word in text.split() if not DRAWN.match(word)} - {""}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_legible_at_80_and_at_200_columns(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {}
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        code, texts[width], error = run(TABLES[name], folder)
        assert code == 0, error
        lines = texts[width].splitlines()
        # A path has no place to break it: it stands alone.
        assert [line for line in lines if len(line) > width and len(line.split()) > 2] == []
    # Whatever is whole at 200 columns is whole at 80.
    missing = words(texts[200]) - words(texts[80])
    assert [word for word in missing if not TIMES.search(word) and str(folder) not in word] == []
    assert "…" not in texts[80] + texts[200]
