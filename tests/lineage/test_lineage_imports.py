"""The imports of the ancestors' callers: docs/lineage.md lists them, and each works after the replacement it names."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOC = (Path(__file__).parents[2] / "docs" / "lineage.md").read_text(encoding="utf-8")
LINES = re.findall(r"^from vllm\.core\S* import \w+$", DOC, flags=re.MULTILINE)


def lineage(item: str, ancestor: str = "004") -> pytest.MarkDecorator:
    return pytest.mark.lineage(ancestor=ancestor, item=item)


@lineage("imports: every import line of the engine and its tests, after one replacement")
@pytest.mark.parametrize("line", LINES)
def test_an_import_line_of_the_engine(line: str) -> None:
    names: dict[str, object] = {}
    exec(line.replace("vllm.core", "kvpool.lineage.v0"), names)
    name = line.rpartition(" ")[2]
    assert names[name] is not None


@lineage("imports: none is missing in the list")
def test_the_list_is_whole() -> None:
    expected = {
        "block.block_table": "BlockTable",
        "block.common": "BlockList BlockPool CacheMetricData CopyOnWriteTracker RefCounter get_all_blocks_recursively",
        "block.cpu_gpu_block_allocator": "CpuGpuBlockAllocator",
        "block.interfaces": "Block BlockAllocator BlockId Device DeviceAwareBlockAllocator",
        "block.naive_block": "BlockPool NaiveBlock NaiveBlockAllocator",
        "block.prefix_caching_block": "ComputedBlocksTracker LastAccessBlocksTracker PrefixCachingBlock "
        "PrefixCachingBlockAllocator",
        "block.utils": "STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE STR_NOT_IMPL_ENC_DEC_SWA "
        "check_no_caching_or_swa_for_blockmgr_encdec",
        "block_manager": "SelfAttnBlockSpaceManager",
        "evictor": "EvictionPolicy Evictor LRUEvictor make_evictor",
        "interfaces": "AllocStatus BlockSpaceManager",
    }
    assert len(LINES) >= 29
    assert [
        f"from vllm.core.{module} import {name}" for module, names in expected.items() for name in names.split()
    ] == LINES


@lineage("imports: a module and what it exports are one, by either path")
@pytest.mark.parametrize(
    ("former", "module"),
    [
        ("block_table", "block.block_table"),
        ("common", "block.common"),
        ("cpu_gpu_block_allocator", "block.cpu_gpu_block_allocator"),
        ("naive_block", "block.naive_block"),
        ("prefix_caching_block", "block.prefix_caching_block"),
        ("interfaces", "block.interfaces"),
    ],
)
def test_former_paths(former: str, module: str) -> None:
    old, new = (importlib.import_module(f"kvpool.lineage.v0.{name}") for name in (former, module))
    for name in new.__all__:
        assert getattr(old, name) is getattr(new, name)
        assert name in old.__all__


@lineage("imports: any module may be the first")
@pytest.mark.parametrize("module", sorted({line.split()[1] for line in LINES}))
def test_any_module_may_be_imported_first(module: str) -> None:
    code = f"import {module.replace('vllm.core', 'kvpool.lineage.v0')}"
    subprocess.run([sys.executable, "-c", code], check=True)


@lineage("imports: the names of vLLM 0.4 and Aphrodite", ancestor="002")
@pytest.mark.parametrize(
    "name", re.findall(r"`(\w+)`", "".join(re.findall(r"^\|.*\| `kvpool\.lineage\.aphrodite` \|$", DOC, re.MULTILINE)))
)
def test_a_name_of_aphrodite(name: str) -> None:
    module = importlib.import_module("kvpool.lineage.aphrodite")
    assert name in module.__all__
    assert hasattr(module, name)
