"""Every numbered defect of an ancestor (an older block manager) has a test with that number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NAMED = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.glob("test_lineage_*.py"))


@pytest.mark.parametrize("defect", [f"c{n}" for n in range(1, 10)] + [f"{n:02}" for n in range(1, 25)])
def test_each_defect_has_a_test_of_its_name(defect: str) -> None:
    assert re.search(rf"def test_\w*defects?_(\w+_)?{defect}(_|\()", NAMED), (
        f"no test is named after defect {defect}"
    )


@pytest.mark.parametrize("ancestor", ["000", "001", "002", "003", "004"])
def test_each_ancestor_has_tests(ancestor: str) -> None:
    assert f'ancestor="{ancestor}"' in NAMED or f"ancestor='{ancestor}'" in NAMED
