"""Tests the plug-in's check of vLLM's names and signatures, and the tool that records its table. The
tests make vLLM packages from the table.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import pytest

from kvpool.integrations.vllm import gate, signatures
from tools import vllm_signatures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    MakeVllm: TypeAlias = Callable[..., Path]

POOL = "vllm.v1.core.block_pool"
UTILS = "vllm.v1.core.kv_cache_utils"
MANAGER = "vllm.v1.core.kv_cache_manager"
Changes = dict[str, "str | None"]  # "module.name" -> form; None: missing


def entries_of(series: str) -> dict[str, dict[str, str]]:
    """Returns the table's entries for a version of vLLM, by module, for all levels together."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for table in (signatures.POOL, signatures.MANAGER):
        for module, names in vllm_signatures.of_series(table, series).items():
            found[module].update(names)
    return found


def function(name: str, form: str) -> list[str]:
    kind, _, signature = form.rpartition(" (") if not form.startswith("(") else ("", "", form[1:])
    if form == "property":
        return ["@property", f"def {name}(self): return None"]
    return [*([f"@{kind}"] if kind else []), f"def {name}({signature}: return None"]


def class_source(name: str, call: str, members: Mapping[str, str]) -> list[str]:
    if name == "RequestStatus":
        return [f"class {name}(enum.IntEnum):", *(f"    {one} = enum.auto()" for one in members)]
    parameters = call.removeprefix("(").removesuffix(")")
    stored = [one for one, form in members.items() if form == "attribute"]
    lines = [f"def __init__(self{', ' if parameters else ''}{parameters}):", "    self.other = None"]
    lines += [f"    self.{one} = None" for one in stored]
    for one, form in members.items():
        lines += [] if one == "*" or one in stored else function(one, form)
    return [f"class {name}:", *("    " + line for line in lines)]


def module_source(entries: Mapping[str, str]) -> str:
    """Returns source text for a module that defines exactly the names that the table lists for it."""
    lines = ["import enum"]
    classes: dict[str, dict[str, str]] = defaultdict(dict)
    for name, form in entries.items():
        owner, _, member = name.partition(".")
        if form.startswith("is "):
            home, _, original = form.removeprefix("is ").rpartition(".")
            lines.append(f"from {home} import {original} as {name}")
        elif member:
            classes[owner][member] = form
        elif form == "attribute":
            lines.append(f"{name} = 1")
        elif name[0].isupper():
            classes[name].setdefault("__call__", form)
        else:
            lines += function(name, form)
    for name, members in classes.items():
        lines += class_source(name, members.pop("__call__", "()"), members)
    return "\n".join(lines) + "\n"


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def make_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeVllm]:
    """Writes a package ``vllm`` and puts it first on the import path, for example ``make_vllm("0.32.0",
    {"module.name": form})``.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file may be written twice within a second

    def make(version: str = "0.32.0", changes: Changes | None = None, init: str = "") -> Path:
        entries = entries_of(gate.series_of(version) or "0.33")
        for path, form in (changes or {}).items():
            module = next(one for one in sorted(entries, reverse=True) if path.startswith(f"{one}."))
            name = path.removeprefix(f"{module}.")
            gone = [one for one in entries[module] if one == name or one.startswith(f"{name}.")]
            for one in gone if form is None else []:
                del entries[module][one]
            if form is not None:
                entries[module][name] = form
        package = tmp_path / "vllm"
        for module, names in {"vllm": {}, **entries}.items():
            file = tmp_path / f"{module.replace('.', '/')}.py"
            if module == "vllm":
                file = package / "__init__.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(
                module_source(names) + (f"__version__ = {version!r}\n{init}" if module == "vllm" else "")
            )
        (package / "_version.py").write_text(f"__version__ = version = {version!r}\n")
        forget()
        return package

    forget()
    yield make
    forget()


@pytest.mark.parametrize("version", ["0.32.0", "0.32.3+cpu", "0.33.0", "0.33.1.dev4+g1234"])
@pytest.mark.parametrize("level", gate.LEVELS)
def test_what_the_table_describes_passes(make_vllm: MakeVllm, version: str, level: str) -> None:
    make_vllm(version)
    assert gate.check(level) == []


DRIFTS: dict[str, tuple[Changes, list[str]]] = {
    "a method is gone": (
        {f"{POOL}.BlockPool.touch": None},
        [f"{POOL}.BlockPool.touch: expected (self, blocks), found nothing"],
    ),
    "a parameter has another name": (
        {f"{POOL}.BlockPool.touch": "(self, kv_blocks)"},
        [f"{POOL}.BlockPool.touch: expected (self, blocks), found (self, kv_blocks)"],
    ),
    "a parameter is new and required": (
        {
            f"{UTILS}.hash_block_tokens": (
                "(hash_function, parent_block_hash, curr_block_token_ids, extra_keys, *, salt)"
            )
        },
        [
            f"{UTILS}.hash_block_tokens: expected (hash_function, parent_block_hash, curr_block_token_ids, "
            "extra_keys=...), found (hash_function, parent_block_hash, curr_block_token_ids, extra_keys, "
            "*, salt)"
        ],
    ),
    "a constructor takes something new": (
        {f"{UTILS}.FreeKVCacheBlockQueue": "(blocks, policy=...)"},
        [f"{UTILS}.FreeKVCacheBlockQueue: expected (blocks), found (blocks, policy=...)"],
    ),
    "parameters are by keyword only": (
        {f"{UTILS}.make_block_hash_with_group_id": "(block_hash, *, group_id)"},
        [
            f"{UTILS}.make_block_hash_with_group_id: expected (block_hash, group_id), "
            "found (block_hash, *, group_id)",
        ],
    ),
    "a method is a class's": (
        {f"{POOL}.BlockPool.get_usage": "classmethod (self)"},
        [f"{POOL}.BlockPool.get_usage: expected (self), found classmethod (self)"],
    ),
    "a property is a method": (
        {"vllm.v1.request.Request.num_tokens": "(self)"},
        ["vllm.v1.request.Request.num_tokens: expected property, found (self)"],
    ),
    "an attribute is a method": (
        {"vllm.v1.request.Request.block_hashes": "(self)"},
        ["vllm.v1.request.Request.block_hashes: expected attribute, found (self)"],
    ),
    "an attribute is gone": (
        {"vllm.v1.request.Request.cache_salt": None},
        ["vllm.v1.request.Request.cache_salt: expected attribute, found nothing"],
    ),
    "a method is new, of a class that is replaced": (
        {f"{POOL}.BlockPool.pin_blocks": "(self, blocks)"},
        [f"{POOL}.BlockPool: expected no other public methods than kvpool knows, found pin_blocks"],
    ),
    "a function is gone": (
        {"vllm.utils.hashing.xxhash_cbor": None},
        ["vllm.utils.hashing.xxhash_cbor: expected (input), found nothing"],
    ),
    "a class is gone: one line": (
        {f"{UTILS}.BlockHashListWithBlockSize": None},
        [
            f"{UTILS}.BlockHashListWithBlockSize: expected (block_hashes, hash_block_size, "
            "target_block_size), found nothing"
        ],
    ),
    "a name is imported from elsewhere": (
        {"vllm.v1.core.kv_cache_coordinator.BlockPool": "is collections.OrderedDict"},
        [
            "vllm.v1.core.kv_cache_coordinator.BlockPool: expected is vllm.v1.core.block_pool.BlockPool, "
            "found collections.OrderedDict"
        ],
    ),
    "a name is no longer imported": (
        {"vllm.v1.engine.core.init_none_hash": None},
        [
            "vllm.v1.engine.core.init_none_hash: expected is vllm.v1.core.kv_cache_utils.init_none_hash, "
            "found nothing",
        ],
    ),
}


@pytest.mark.parametrize("level", gate.LEVELS)
@pytest.mark.parametrize("drift", DRIFTS)
def test_a_drift_is_reported_with_both_signatures(make_vllm: MakeVllm, drift: str, level: str) -> None:
    changes, lines = DRIFTS[drift]
    make_vllm("0.32.0", changes)
    assert gate.check(level) == lines


MANAGERS = "vllm.v1.core.single_type_kv_cache_manager"


@pytest.mark.parametrize("level", gate.LEVELS)
@pytest.mark.parametrize("manager", ["FullAttentionManager", "SlidingWindowManager"])
def test_a_method_that_is_only_inherited_cannot_be_replaced(
    make_vllm: MakeVllm, manager: str, level: str
) -> None:
    file = make_vllm() / "v1/core/single_type_kv_cache_manager.py"
    text = file.read_text()
    head, _, tail = text.partition(f"class {manager}:")
    # The class has its method under another name, but inherits a method with the old name and
    # signature. So a lookup on the class finds the inherited method.
    tail = tail.replace("def find_longest_cache_hit(", "def find_longest_hit(", 1)
    file.write_text(f"{head}class {manager}(Base):{tail}".replace("import enum", f"import enum\n{BASE}", 1))
    forget()
    found = f"expected one of {manager}'s own, found one that it inherits"
    assert gate.check(level) == [f"{MANAGERS}.{manager}.find_longest_cache_hit: {found}"]


BASE = f"""
class Base:
    @classmethod
    def find_longest_cache_hit{
    vllm_signatures.of_series(signatures.POOL, "0.32")[MANAGERS][
        "FullAttentionManager.find_longest_cache_hit"
    ].removeprefix("classmethod ")
}: ...
"""


@pytest.mark.parametrize("level", gate.LEVELS)
def test_what_another_plug_in_has_put_there_is_left_to_it(
    make_vllm: MakeVllm, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    make_vllm()
    stock = importlib.import_module(POOL).BlockPool
    theirs = type("TheirPool", (stock,), {"__module__": "other.plugin"})
    for module in ("block_pool", "kv_cache_coordinator"):
        monkeypatch.setattr(importlib.import_module(f"vllm.v1.core.{module}"), "BlockPool", theirs)
    lines = [
        f"vllm.v1.core.{module}.BlockPool: expected vLLM's own, found other.plugin.TheirPool"
        for module in ("block_pool", "kv_cache_coordinator")
    ]
    assert gate.check(level) == lines


def test_a_lookup_of_another_plug_in_is_left_to_it(
    make_vllm: MakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_vllm()
    manager = importlib.import_module(MANAGERS).FullAttentionManager
    stock = vars(manager)["find_longest_cache_hit"].__func__
    theirs = type(stock)(stock.__code__, {}, "find", stock.__defaults__, stock.__closure__)
    theirs.__module__ = "other.plugin"
    monkeypatch.setattr(manager, "find_longest_cache_hit", classmethod(theirs))
    (line,) = gate.check("pool")
    assert line.startswith(
        f"{MANAGERS}.FullAttentionManager.find_longest_cache_hit: expected vLLM's own, found other."
    )


def test_every_name_that_is_replaced_is_in_the_table_of_its_level() -> None:
    for level, paths in gate.REPLACED.items():
        names = {
            f"{module}.{name}"
            for table in gate.LEVELS[level]
            for module, entries in table.items()
            for name in entries
        }
        missing = {path.replace(":", ".") for path in paths} - names
        assert not missing, level


def test_an_attribute_may_become_a_property(make_vllm: MakeVllm) -> None:
    make_vllm("0.32.0", {"vllm.v1.request.Request.block_hashes": "property"})
    assert gate.check("pool") == []


def test_a_level_checks_only_the_interfaces_it_needs(make_vllm: MakeVllm) -> None:
    make_vllm("0.33.0", {f"{MANAGER}.KVCacheManager.get_computed_blocks": "(self, request)"})
    line = (
        f"{MANAGER}.KVCacheManager.get_computed_blocks: "
        "expected (self, request, max_cache_hit_length=...), found (self, request)"
    )
    assert [gate.check(level) for level in ("pool", "manager", "shadow")] == [[], [line], [line]]


def test_interfaces_that_differ_between_versions_are_distinguished(make_vllm: MakeVllm) -> None:
    make_vllm("0.33.0", {f"{UTILS}.generate_lookahead_block_hash_extra_keys": None})
    assert [one.split(":")[0] for one in gate.check("pool")] == [
        f"{UTILS}.generate_lookahead_block_hash_extra_keys"
    ]
    package = make_vllm("0.32.0")
    init = package / "__init__.py"
    init.write_text(init.read_text().replace("0.32.0", "0.33.0"))
    forget()
    told = {one.split(":")[0] for one in gate.check("manager")}
    assert {f"{POOL}.BlockPool", f"{MANAGER}.KVCacheManager", f"{UTILS}.get_request_block_hasher"} <= told


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "0.320.0", "1.0", "dev", ""])
def test_other_versions_are_refused(make_vllm: MakeVllm, version: str) -> None:
    make_vllm(version)
    assert gate.check("pool") == [f"vLLM {version}: supported are 0.32 and 0.33"]


def test_other_levels_are_refused(make_vllm: MakeVllm) -> None:
    make_vllm()
    assert gate.check("turbo") == ["level 'turbo': levels are pool, manager and shadow"]


def test_no_vllm(make_vllm: MakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # import vllm raises ModuleNotFoundError
    assert gate.check("pool") == ["vLLM is not installed; supported are 0.32 and 0.33"]


@pytest.mark.parametrize(
    ("init", "why"),
    [
        ("raise RuntimeError('no GPU')", "cannot be imported: RuntimeError: no GPU"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("class Odd(BaseException): ...\nraise Odd", "cannot be imported: Odd"),
        ("import no_such_thing", "cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("syntax error", "cannot be imported: SyntaxError: invalid syntax"),
        ("del __version__", "tells no version"),
        ("__version__ = (0, 32, 0)", "tells no version"),
        ("del __version__\ndef __getattr__(name): raise OSError", "tells no version"),
    ],
)
def test_a_vllm_that_cannot_be_imported_or_has_no_version(make_vllm: MakeVllm, init: str, why: str) -> None:
    make_vllm(init=init)
    for level in gate.LEVELS:
        (line,) = gate.check(level)
        assert line.startswith(f"vLLM {why}")
        assert line.endswith("; supported are 0.32 and 0.33")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, "nothing"),
        ("raise RuntimeError('needs\\n  CUDA')", "RuntimeError: needs CUDA"),
        ("raise SystemExit", "SystemExit"),
        ("class E(Exception):\n  def __str__(self): raise ValueError\nraise E", "E"),
        ("import there_is_no_such", "ModuleNotFoundError: No module named 'there_is_no_such'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
    make_vllm: MakeVllm, text: str | None, found: str
) -> None:
    file = make_vllm() / "v1/engine/core.py"
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    assert gate.check("pool") == [f"vllm.v1.engine.core: expected a module, found {found}"]


def test_a_missing_folder_is_a_missing_module(make_vllm: MakeVllm) -> None:
    shutil.rmtree(make_vllm() / "v1/engine")
    assert gate.check("shadow") == ["vllm.v1.engine.core: expected a module, found nothing"]


ODD = {
    "a module's __getattr__ raises": "def __getattr__(name): raise RuntimeError(name)",
    "classes are numbers": "BlockPool = 3\nBlockHashToBlockMap = 4",
    "a class is a mock": "from unittest.mock import MagicMock\n"
    "BlockPool = MagicMock()\nBlockHashToBlockMap = BlockPool",
    "a metaclass raises": "class M(type):\n  def __getattribute__(self, name): raise RuntimeError(name)\n"
    "  def __dir__(self): raise RuntimeError\n"
    "class BlockPool(metaclass=M): ...\nBlockHashToBlockMap = BlockPool",
    "signatures lie": "class BlockPool:\n  __signature__ = 5\n  touch = len\nBlockHashToBlockMap = print",
    "wrapped for ever": "def f(): ...\nf.__wrapped__ = f\nclass BlockPool: ...\n"
    "BlockPool.__init__ = BlockPool.touch = f\nBlockHashToBlockMap = BlockPool",
    "SystemExit on a look": "def __getattr__(name): raise SystemExit",
}


@pytest.mark.parametrize("odd", ODD)
def test_nothing_odd_raises(make_vllm: MakeVllm, odd: str) -> None:
    (make_vllm() / "v1/core/block_pool.py").write_text(ODD[odd])
    forget()
    for level in gate.LEVELS:
        told = gate.check(level)
        assert any("BlockPool" in line for line in told)
        assert all("\n" not in line for line in told)


def test_what_kvpool_has_put_there_passes(make_vllm: MakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    make_vllm()
    ours = type("BlockPool", (), {"__module__": "kvpool.integrations.vllm.pool"})
    monkeypatch.setattr(importlib.import_module("vllm.v1.core.kv_cache_coordinator"), "BlockPool", ours)
    monkeypatch.setattr(importlib.import_module(POOL), "BlockPool", ours)

    def find(cls: type, *arguments: object) -> None: ...

    find.__module__ = "kvpool.integrations.vllm.lookup"
    manager = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager").FullAttentionManager
    monkeypatch.setattr(manager, "find_longest_cache_hit", classmethod(find))
    assert gate.check("manager") == []


def test_the_table_is_whole() -> None:
    """The check supports every kind of entry in the table, and every version of vLLM in the table has
    entries.
    """
    assert signatures.VERSIONS == ("0.32", "0.33")
    for table in (signatures.POOL, signatures.MANAGER):
        for module, names in table.items():
            for name, forms in names.items():
                found = [forms] if isinstance(forms, str) else list(forms.values())
                assert found, f"{module}.{name}"
                assert isinstance(forms, str) or set(forms) <= set(signatures.VERSIONS)
                for form in found:
                    kind = form.split(" ")[0].split("(")[0]
                    assert name.endswith(".*") or kind in {
                        "",
                        "classmethod",
                        "staticmethod",
                        "property",
                        "attribute",
                        "is",
                    }


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_sources_are_read_as_they_are_imported(
    make_vllm: MakeVllm, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    package = make_vllm(version)
    assert vllm_signatures.main(["--check", str(package)]) == 0
    assert vllm_signatures.main(["--check", str(package.parent)]) == 0  # the layout of a source distribution
    assert vllm_signatures.main(["--installed"]) == 0
    assert f"vLLM {version}, level shadow: no difference" in capsys.readouterr().out


def test_a_difference_is_a_diff(make_vllm: MakeVllm, capsys: pytest.CaptureFixture[str]) -> None:
    package = make_vllm("0.33.0", {f"{POOL}.BlockPool.touch": "(self, kv_blocks)"})
    assert vllm_signatures.main(["--check", str(package)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"-{POOL}.BlockPool.touch  (self, blocks)" in lines
    assert f"+{POOL}.BlockPool.touch  (self, kv_blocks)" in lines
    assert vllm_signatures.main(["--installed"]) == 1
    assert f"  {POOL}.BlockPool.touch\n  - (self, blocks)\n  + (self, kv_blocks)\n" in capsys.readouterr().out


def test_a_version_that_is_not_in_the_table_is_compared_with_the_newest(
    make_vllm: MakeVllm, capsys: pytest.CaptureFixture[str]
) -> None:
    package = make_vllm("0.34.0", {f"{POOL}.BlockPool.touch": "(self, kv_blocks)"})
    for arguments in (["--check", str(package)], ["--installed"]):
        assert vllm_signatures.main(arguments) == 1
        out = capsys.readouterr().out
        assert "(self, kv_blocks)" in out
        assert "0.33" in out


def test_recording_what_is_in_the_table_gives_the_table(make_vllm: MakeVllm, tmp_path: Path) -> None:
    for version in signatures.VERSIONS:
        make_vllm(f"{version}.0").rename(tmp_path / version)
    table = tmp_path / "table.json"
    sources = [str(tmp_path / version) for version in signatures.VERSIONS]
    assert vllm_signatures.main(["--record", *sources, "--table", str(table)]) == 0
    assert table.read_text() == vllm_signatures.TABLE.read_text()


def test_what_cannot_be_recorded(
    make_vllm: MakeVllm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.json"

    def refused(*arguments: str) -> str:
        assert vllm_signatures.main([*arguments]) == 2
        assert not table.exists()
        return capsys.readouterr().err

    package = make_vllm()
    record = ("--record", str(package), "--table", str(table))
    assert "a second 0.32" in refused(*record[:2], str(package), *record[2:])
    (package / "v1/core/block_pool.py").write_text("class BlockPool:\n")
    assert "block_pool.py" in refused(*record)
    (package / "v1/core/block_pool.py").write_text("class BlockPool: ...\n")
    assert "wanted, but in none of 0.32" in refused(*record)
    (package / "v1/core/block_pool.py").unlink()
    assert "No such file" in refused("--check", str(package))
    (package / "_version.py").unlink()
    assert "not the sources of a released vLLM" in refused("--check", str(package))


def test_sources_in_all_the_ways_that_python_has(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "import dataclasses\nfrom dataclasses import dataclass, field\nfrom typing import overload\n"
        "@dataclass\nclass Base:\n    a: int\n    b: list = field(default_factory=list, kw_only=True)\n"
        "    c: int = 1\n"
        "@dataclass(slots=True)\nclass Derived(Base):\n    d: str = ''\n"
        "    e: str | None = dataclasses.field(default=None)\n"
        "def f(a, /, b, c=1, *rest, d, e=2, **more): ...\n"
        "class Plain:\n    limit: int = 3\n    def __init__(self, x, *, y=1): self.x: int = x\n"
        "    @overload\n    def g(self, a: int): ...\n    @overload\n    def g(self, a: str): ...\n"
        "    def g(self, a, b=1): self.later = a\n    @staticmethod\n    def s(a): ...\n"
        "    def _private(self): ...\n"
        "class Child(Plain):\n    def h(self): ...\n"
    )
    read = vllm_signatures.Module(file)
    space: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    module = importlib.import_module("types").ModuleType("module")
    vars(module).update(space)
    names = (
        "Base Derived f Plain Child Plain.g Child.g Plain.s Plain.x Plain.limit Child.later Child.h Child.no"
    )
    forms = {name: read.form(name) for name in names.split()}
    assert forms == {
        "Base": "(a, c=..., *, b=...)",
        "Derived": "(a, c=..., d=..., e=..., *, b=...)",
        "f": "(a, /, b, c=..., *rest, d, e=..., **more)",
        "Plain": "(x, *, y=...)",
        "Child": "(x, *, y=...)",
        "Plain.g": "(self, a, b=...)",
        "Child.g": "(self, a, b=...)",
        "Plain.s": "staticmethod (a)",
        "Plain.x": "attribute",
        "Plain.limit": "attribute",
        "Child.later": "attribute",
        "Child.h": "(self)",
        "Child.no": None,
    }
    for name, form in forms.items():
        assert gate._described(module, name, form or "") == (form or "nothing")
    assert read.form("Child.*") == "g h s"
