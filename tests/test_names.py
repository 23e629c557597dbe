"""The stubs list names for some arguments and results. The binary accepts or returns exactly these
names.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvpool
from kvpool import hashing, journal, policies, traces

if TYPE_CHECKING:
    from collections.abc import Callable

CORE = Path(kvpool.__file__).with_name("_core")
RUST = Path(kvpool.__file__).parents[2] / "rust"


def literals(stub: str) -> dict[str, list[str]]:
    """Returns the names in each Literal that a stub defines."""
    found = {}
    for node in ast.parse((CORE / stub).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Subscript):
            assert isinstance(node.target, ast.Name)
            assert ast.unparse(node.value.value) == "Literal"
            found[node.target.id] = list(ast.literal_eval(node.value.slice))
    return found


ALIASES = literals("__init__.pyi")

#: For some type aliases of the stubs (a Literal lists names), the function of kvpool that returns the same
#: names.
LISTS: dict[str, Callable[[], list[Any]]] = {
    "HashAlgorithm": hashing.hash_algorithms,
    "VerifyMode": hashing.verify_modes,
    "EvictionPolicy": policies.eviction_policies,
    "TraceFormat": traces.trace_formats,
}

TRACE = traces.Trace.generate(3)
REFERENCES = kvpool.sizing.References(TRACE)
JOURNALED = kvpool.BlockPool(8, journal=journal.Journal(ring_bytes=1 << 18))
IMAGE = JOURNALED.journal.image() or b""

#: Calls that accept a name of a Literal, and whose error lists all accepted names.
CALLS: dict[str, Callable[[Any], object]] = {
    "Duplicates": lambda name: kvpool.BlockPool(8, duplicates=name),
    "ExpiredAs": lambda name: kvpool.Retention(50, ttl=1.0, then=name),
    "ReplayMode": lambda name: traces.Replay(TRACE, mode=name),
    "SizingBlocks": lambda name: kvpool.sizing.References(TRACE, blocks=name),
    "SizingForm": lambda name: REFERENCES.run("lru", 8, form=name),
    "ExportLanguage": lambda name: journal.export_journal(IMAGE, name),
}

#: Where to find names that are only returned: a Rust file, and the text before the first name.
GIVEN = {
    "BlockState": ("kvpool/src/block.rs", "fn name("),
    "RequestState": ("kvpool/src/manager/id.rs", "fn name("),
    "Fit": ("kvpool/src/tiers/swap.rs", "fn name("),
    "MissReason": ("kvpool-observe/src/explain/reason.rs", "const NAMES"),
    "JournalSubject": ("kvpool-py/src/journal.rs", "match summary.header.subject"),
    "DifferenceKind": ("kvpool-py/src/journal.rs", "for PyJournalDifference"),
}


def test_every_alias_is_compared() -> None:
    assert {*LISTS, *CALLS, *GIVEN} == set(ALIASES)
    assert len(ALIASES) == len(LISTS) + len(CALLS) + len(GIVEN)


@pytest.mark.parametrize("alias", LISTS)
def test_lists_of_names(alias: str) -> None:
    assert LISTS[alias]() == ALIASES[alias]


@pytest.mark.parametrize("alias", CALLS)
def test_names_that_are_taken(alias: str) -> None:
    for name in ALIASES[alias]:
        CALLS[alias](name)
    with pytest.raises(kvpool.errors.InvalidArgumentError) as refused:
        CALLS[alias]("nonsense")
    known = re.split("must be one of |must be |allowed: ", str(refused.value))[-1]
    assert re.split(", | or ", known) == ALIASES[alias]


@pytest.mark.parametrize("alias", GIVEN)
def test_names_that_are_given(alias: str) -> None:
    file, before = GIVEN[alias]
    _, found, text = (RUST / file).read_text(encoding="utf-8").partition(before)
    assert found
    body = re.split(r"\n    (?:\}|\];)\n", text)[0]
    assert re.findall(r'"([a-z-]+)"', body) == ALIASES[alias]


@pytest.mark.parametrize("name", kvpool._removed.REPLACEMENTS)
def test_the_error_of_a_removed_name_gives_the_new_one(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.raises(AttributeError, match=rf"^{re.escape(name)} was removed: .*CacheManager"):
        getattr(importlib.import_module(module), attribute)
    with pytest.raises(AttributeError, match=f"^module {module!r} has no attribute 'never'$"):
        importlib.import_module(module).never  # noqa: B018
