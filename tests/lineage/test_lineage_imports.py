"""Tests the recipes of docs/lineage.md, which replace modules of an older block manager (ancestor) by
kvpool. After each recipe, every import statement of the ancestor's source tree finds its name.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.lineage import import_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

DOC = (Path(__file__).parents[2] / "docs" / "lineage.md").read_text(encoding="utf-8")
#: For each package of kvpool that a recipe uses: the ancestor's number, its import statements, and the
#: modules that the recipe removes.
TREES = {
    "v0": (
        "004",
        import_lines.V0,
        "vllm.core: block block_manager evictor interfaces placeholder_block_space_manager",
    ),
    "aphrodite": (
        "002",
        import_lines.APHRODITE,
        "vllm.core.block: common interfaces naive_block prefix_caching_block",
    ),
    "cacheflow": ("003", import_lines.CACHEFLOW, "cacheflow.master: block_manager"),
    "v1_early": ("001", import_lines.V1_EARLY, "vllm.v1.core: kv_cache_utils"),
    "token_blocks": ("000", import_lines.TOKEN_BLOCKS, "aphrodite.common: block"),
}
#: A script that imports all modules below the working directory, and calls the functions with lazy
#: imports. It prints every name that is not found.
RESOLVE = """
import importlib, pathlib, sys
sys.path.insert(0, "")
for file in sorted(pathlib.Path().rglob("*.py")):
    module = ".".join(file.with_suffix("").parts)
    try:
        names = vars(importlib.import_module(module))
        names.get("lazy", list)()
        for text in names.get("STRINGS", ()):
            owner, _, name = text.rpartition(".")
            getattr(importlib.import_module(owner), name)
    except (ImportError, AttributeError) as error:
        print(f"{module}: {error}")
"""


class Line(NamedTuple):
    """One import statement: the file, the module, and the names."""

    file: str
    module: str
    names: list[str]
    how: frozenset[str]

    @property
    def target(self) -> str:
        """The absolute name of the module."""
        bare = self.module.lstrip(".")
        dots = len(self.module) - len(bare)
        return ".".join([*self.file.split("/")[:-dots], bare]) if dots else bare


def lines_of(text: str) -> Iterator[Line]:
    for line in text.split("\n"):
        if line:
            file, module, words = line.split(": ")
            how = frozenset(words.split()) & {"lazy", "long", "string"}
            yield Line(file, module, [word for word in words.split() if word not in how], how)


def code_of(line: Line) -> str:
    if "string" in line.how:
        return "".join(f'STRINGS = ["{line.module}.{name}"]\n' for name in line.names)
    names = ", ".join(line.names)
    if "long" in line.how:
        first, *others = line.names
        names = f"({first},\n        {', '.join(others)})" if others else f"(\n        {first})"
    code = f"from {line.module} import {names}\n"
    return (
        f"def lazy(before=globals().get('lazy', list)):\n    before()\n    {code}"
        if "lazy" in line.how
        else code
    )


def make_tree(folder: Path, text: str, gone: set[str]) -> None:
    """Writes a source tree whose files contain only their import statements. Also writes the imported
    modules that the recipe does not replace.
    """
    lines = list(lines_of(text))
    files: dict[str, str] = {}
    for line in lines:
        target = f"{line.target.replace('.', '/')}.py"
        files.setdefault(line.file, "")
        files.setdefault(target, "")
        if not any(f"{line.target}.".startswith(f"{module}.") for module in gone):
            files[target] = "".join(f"{name} = object()\n" for name in line.names) + files[target]
        files[line.file] += code_of(line)
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")


def recipe_of(package: str) -> str:
    blocks: list[str] = re.findall(r"```sh\n(.*?)```", DOC, re.DOTALL)
    (block,) = (block for block in blocks if f"lineage.{package}" in block)
    return block


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(
            package, marks=pytest.mark.lineage(ancestor=ancestor, item="imports: the recipe on a whole tree")
        )
        for package, (ancestor, _, _) in TREES.items()
    ],
)
def test_the_recipe_leaves_no_name_of_a_whole_tree_unresolved(package: str, tmp_path: Path) -> None:
    _, text, modules = TREES[package]
    parent, names = modules.split(": ")
    gone = {f"{parent}.{name}" for name in names.split()}
    make_tree(tmp_path, text, gone)
    subprocess.run(["bash", "-euo", "pipefail", "-c", recipe_of(package)], cwd=tmp_path, check=True)
    code = {file: file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.py")}
    for module in gone:
        place = tmp_path / module.replace(".", "/")
        assert [one for one in (place, place.with_suffix(".py")) if one.exists()] == [], (
            f"{module} is still there"
        )
        assert not any(re.search(rf"\b{re.escape(module)}\b", text) for text in code.values()), (
            f"{module} is imported"
        )
    assert any(f"kvpool.lineage.{package}" in text for text in code.values())
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stdout == ""


def test_a_tree_before_its_recipe_is_not_resolved_by_chance(tmp_path: Path) -> None:
    _, text, _ = TREES["v0"]
    make_tree(tmp_path, text, {"vllm.core"})
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "vllm.core.scheduler: cannot import name 'AllocStatus'" in done.stdout


@pytest.mark.lineage(ancestor="004", item="imports: models without KV have a manager")
@pytest.mark.parametrize("name", ["placeholder", "Placeholder"])
def test_models_without_kv_start(name: str) -> None:
    interfaces = importlib.import_module("kvpool.lineage.v0.interfaces")
    placeholder = importlib.import_module("kvpool.lineage.v0.placeholder_block_space_manager")
    kind = interfaces.BlockSpaceManager.get_block_space_manager_class(name)
    assert kind is placeholder.PlaceholderBlockSpaceManager
    manager = kind(
        block_size=16,
        num_gpu_blocks=0,
        num_cpu_blocks=0,
        sliding_window=None,
        enable_caching=False,
        watermark=0.01,
    )
    group = seq = object()
    assert manager.can_allocate(group) == interfaces.AllocStatus.OK
    assert manager.can_swap_in(group, 0) == interfaces.AllocStatus.OK
    assert [
        manager.can_append_slots(group, 0),
        manager.can_swap_out(group),
        manager.reset_prefix_cache(),
    ] == [True] * 3
    for call in (manager.allocate, manager.free, manager.remove_seq_from_computed_blocks_tracker):
        assert call(seq) is None
    assert manager.fork(seq, seq) is None
    assert manager.access_all_blocks_in_seq(seq, access_time=1.0) is None
    assert manager.mark_blocks_as_computed(group, 8) is None
    assert manager.append_slots(seq, 0) == manager.get_common_computed_block_ids([seq]) == []
    copies = list[tuple[int, int]]()
    copies.extend(manager.swap_in(group))  # the ancestor returned None
    copies.extend(manager.swap_out(group))
    assert copies == []
    # None is correct: an attention backend interprets it as "no blocks".
    assert manager.get_block_table(seq) is None
    assert (manager.get_num_free_gpu_blocks(), manager.get_num_free_cpu_blocks()) == (1, 1)
    assert (manager.get_num_cached_tokens(seq), manager.get_prefix_cache_hit_rate(None)) == (0, -1)


@pytest.mark.lineage(ancestor="004", item="imports: a module and what it exports are one, by either path")
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


@pytest.mark.lineage(ancestor="004", item="imports: any module may be the first")
def test_any_module_may_be_imported_first() -> None:
    modules = {
        line.module
        for line in lines_of(import_lines.V0)
        if re.match(r"vllm\.core\.(?!scheduler)", line.module)
    }
    code = f"""
import importlib, sys
for name in {sorted(one.replace("vllm.core", "kvpool.lineage.v0") for one in modules)}:
    importlib.import_module(name)
    for loaded in [one for one in sys.modules if one.startswith("kvpool.lineage")]:
        del sys.modules[loaded]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.lineage(ancestor="002", item="imports: the names of vLLM 0.4 and Aphrodite")
@pytest.mark.parametrize(
    "name",
    re.findall(
        r"`(\w+)`", "".join(re.findall(r"^\|.*\| `kvpool\.lineage\.aphrodite` \|$", DOC, re.MULTILINE))
    ),
)
def test_a_name_of_aphrodite(name: str) -> None:
    module = importlib.import_module("kvpool.lineage.aphrodite")
    assert name in module.__all__
    assert hasattr(module, name)
