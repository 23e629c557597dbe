"""``tools/cycles.py`` finds cycles of imports, and only those."""

import importlib.util
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "cycles.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cycles", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder.joinpath(*name.split("__"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def rust(folder: Path, **files: str) -> Path:
    return write(folder, **{f"{name}.rs": text for name, text in files.items()})


def test_modules_of_a_crate_that_need_each_other(tool: ModuleType, tmp_path: Path) -> None:
    source = rust(
        tmp_path,
        lib="mod a; mod b; pub use b::{Thing, other};",
        a="use crate::Thing;\n",
        b__mod="//! crate::a is not needed here.\n",
        b__inner="fn f() { crate::a::g(); }\n",
    )
    graph = tool.rust_modules(source)
    assert graph == {"a": {"b": {"Thing"}}, "b": {"a": {"g"}}}
    assert [sorted(set(cycle)) for cycle in tool.cycles(graph)] == [["a", "b"]]


def test_tests_and_comments_of_a_crate_are_no_needs(tool: ModuleType, tmp_path: Path) -> None:
    tests = "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"
    source = rust(tmp_path, lib="", a="use crate::b::B;\n", b=f"// crate::a\n/// [`crate::a::A`]\nstruct B;\n\n{tests}")
    assert tool.cycles(tool.rust_modules(source)) == []


def test_modules_of_a_package(tool: ModuleType, tmp_path: Path) -> None:
    package = write(
        tmp_path / "p",
        **{
            "__init__.py": "from p.a import A",
            "a.py": "from p import b\nif TYPE_CHECKING:\n    from p.c import C\n",
            "b.py": "try:\n    import p.c\nexcept ImportError:\n    pass\n",
            "c.py": "def f():\n    from p.a import A\n",
        },
    )
    (package / "__init__.py").write_text("from p.a import A\n")
    assert tool.cycles(tool.python_modules(package)) == []
    (package / "c.py").write_text("from p.a import A\n")
    assert [set(cycle) for cycle in tool.cycles(tool.python_modules(package))] == [{"p.a", "p.b", "p.c"}]
