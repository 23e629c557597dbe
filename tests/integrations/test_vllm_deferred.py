"""Tests the callback that waits for the import of a module. It runs only after the module's code has
run, however the module is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

import pytest

from kvpool.integrations.vllm.deferred import when_imported

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "a_module_to_wait_for"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Makes a module that appends to a list when it is executed, and returns this list. The module
    finds the list in ``sys``.
    """
    events: list[str] = []
    monkeypatch.setattr(sys, "what_ran", events, raising=False)
    (tmp_path / f"{NAME}.py").write_text("import sys; sys.what_ran.append('module')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield events
    sys.meta_path[:] = finders
    sys.modules.pop(NAME, None)


def test_the_action_runs_once_after_the_modules_import(told: list[str]) -> None:
    when_imported(NAME, lambda: told.append("action"))
    assert told == []
    importlib.import_module(NAME)
    assert told == ["module", "action"]
    importlib.reload(sys.modules[NAME])
    assert told == ["module", "action", "module"]


def test_an_imported_module_needs_no_wait(told: list[str]) -> None:
    importlib.import_module(NAME)
    when_imported(NAME, lambda: told.append("action"))
    assert told == ["module", "action"]


def test_looking_for_the_module_does_not_end_the_wait(told: list[str]) -> None:
    when_imported(NAME, lambda: told.append("action"))
    assert importlib.util.find_spec(NAME) is not None
    assert importlib.util.find_spec(NAME) is not None
    assert told == []
    importlib.import_module(NAME)
    assert told == ["module", "action"]


def test_a_module_that_fails_is_waited_for_again(told: list[str], tmp_path: Path) -> None:
    source = tmp_path / f"{NAME}.py"
    whole = source.read_text(encoding="utf-8")
    source.write_text("raise RuntimeError", encoding="utf-8")
    when_imported(NAME, lambda: told.append("action"))
    with pytest.raises(RuntimeError):
        importlib.import_module(NAME)
    assert told == []
    source.write_text(whole + "  # of another length than before", encoding="utf-8")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert told == ["module", "action"]


def test_other_modules_are_found_as_before(told: list[str]) -> None:
    when_imported(NAME, lambda: told.append("action"))
    importlib.import_module("colorsys")
    assert importlib.util.find_spec(NAME + "_that_is_not_there") is None
    assert told == []
