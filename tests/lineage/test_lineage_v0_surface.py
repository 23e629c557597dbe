"""Tests the interface of ancestor 004 (vLLM v0): each name of vLLM 0.8.5 exists, and each parameter has
the same name and position.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvpool.lineage.v0.block.common import CacheMetricData
from kvpool.lineage.v0.evictor import BlockMetaData, LRUEvictor

TEXT = (Path(__file__).parent / "v0_surface.txt").read_text(encoding="utf-8")
ENTRIES = [" ".join(entry.split()) for entry in re.split(r"\n(?=\S)", TEXT.partition("\n\n")[2])]
#: Attributes that constructors set: an object, and the name of its attribute.
OBJECTS: list[tuple[object, str]] = [
    (BlockMetaData(1, 2, 3.0), "content_hash num_hashed_tokens last_accessed"),
    (
        CacheMetricData(),
        "num_completed_blocks completed_block_cache_hit_rate num_incompleted_block_queries "
        "num_incompleted_block_hit block_size",
    ),
    (LRUEvictor(), "free_table priority_queue"),
]


def parameters_of(found: Any) -> list[inspect.Parameter]:
    some = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    every = inspect.signature(found).parameters.values()
    return [one for one in every if one.kind not in some and one.name not in ("self", "cls")]


def check(found: Any, what: str, listed: str) -> None:
    """Checks that the parameters of the ancestor come first, with their names, and that kvpool's other
    parameters have defaults.
    """
    names = listed.split(",") if listed else []
    parameters = parameters_of(found)
    assert [one.name for one in parameters[: len(names)]] == names, what
    assert all(one.default is not inspect.Parameter.empty for one in parameters[len(names) :]), what


@pytest.mark.lineage(ancestor="004", item="3.1 to 3.8: every name and parameter")
@pytest.mark.parametrize(
    "entry", ENTRIES, ids=[re.split(r"[ (]", entry.partition(": ")[2])[0] for entry in ENTRIES]
)
def test_every_name_and_parameter_of_the_ancestor(entry: str) -> None:
    module, _, words = entry.partition(": ")
    top, *members = words.split()
    owner: Any = importlib.import_module(f"kvpool.lineage.v0.{module}")
    name, call, names = top.partition("(")
    found = getattr(owner, name)
    if call:
        check(found, top, names.rstrip(")"))
    set_by_constructor = [name for one, names in OBJECTS if type(one) is found for name in names.split()]
    for member in members:
        name, call, names = member.partition("(")
        if name in set_by_constructor:
            continue
        has = inspect.getattr_static(found, name)
        if call:
            check(getattr(has, "__func__", has), f"{top} {member}", names.rstrip(")"))


@pytest.mark.lineage(ancestor="004", item="3.7: public attributes of objects")
@pytest.mark.parametrize(("found", "names"), OBJECTS, ids=[type(one).__name__ for one, _ in OBJECTS])
def test_attributes_that_a_constructor_sets(found: object, names: str) -> None:
    assert [name for name in names.split() if not hasattr(found, name)] == []


@pytest.mark.lineage(ancestor="004", item="3.4: assert_prefix_caching_block_or_none")
def test_assert_prefix_caching_block_or_none() -> None:
    module = importlib.import_module("kvpool.lineage.v0.block.prefix_caching_block")
    allocator = module.PrefixCachingBlockAllocator(2, 4)
    module.assert_prefix_caching_block_or_none(None)
    module.assert_prefix_caching_block_or_none(allocator.allocate_mutable_block(None))
    with pytest.raises(AssertionError, match="SimpleNamespace"):
        module.assert_prefix_caching_block_or_none(SimpleNamespace())


@pytest.mark.lineage(ancestor="004", item="3.4, 3.7: _none_hash is the ancestor's hash of no block")
def test_none_hash_is_the_ancestor_s() -> None:
    module = importlib.import_module("kvpool.lineage.v0.block.prefix_caching_block")
    kinds = module.ComputedBlocksTracker, module.PrefixCachingBlock, module.PrefixCachingBlockAllocator
    assert {kind._none_hash for kind in kinds} == {hash("None")}
    first = module.hash_block_tokens(True, None, [1, 2])
    assert module.hash_block_tokens(True, hash("None"), [1, 2]) == first


@pytest.mark.lineage(ancestor="004", item="3.7: LRUEvictor.priority_queue")
def test_the_priority_queue_of_an_evictor() -> None:
    evictor = LRUEvictor()
    evictor.add(3, content_hash=33, num_hashed_tokens=16, last_accessed=2.0)
    evictor.add(1, content_hash=11, num_hashed_tokens=32, last_accessed=1.0)
    assert sorted(evictor.priority_queue) == [(1.0, -32, 1, 11), (2.0, -16, 3, 33)]
    assert evictor.priority_queue[0] == (1.0, -32, 1, 11)
    evictor.remove(1)
    evictor.add(1, content_hash=12, num_hashed_tokens=32, last_accessed=1.0)
    assert [evictor.evict(), evictor.evict(), evictor.priority_queue] == [(1, 12), (3, 33), []]
