"""``tools/cycles.py`` finds cycles of imports, and reports nothing else."""

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


def test_files_of_a_crate_that_need_each_other(tool: ModuleType, tmp_path: Path) -> None:
    source = rust(
        tmp_path,
        lib="mod a;\nmod b;\npub use b::{Thing, other};\n",
        a="use crate::{Thing, b};\n",
        b__mod="//! crate::a is not needed here.\npub use inner::{Thing as Thing};\nmod inner;\n",
        b__inner="pub struct Thing {\n    #[cfg(test)]\n    x: u8,\n}\n"
        "fn f() { crate::a::g(); super::super::a::h()}\n",
    )
    graph = tool.rust_files(source)
    assert graph == {
        "": {},
        "a": {"b": {"crate::b"}, "b/inner": {"Thing"}},
        "b": {},
        "b/inner": {"a": {"g", "h"}},
    }
    assert [sorted(set(cycle)) for cycle in tool.cycles(graph)] == [["a", "b/inner"]]


def test_tests_comments_and_files_of_one_type_are_no_needs(tool: ModuleType, tmp_path: Path) -> None:
    tests = "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"
    source = rust(
        tmp_path,
        lib="",
        a="use crate::b::B;\npub struct A;\n",
        b=f"// crate::a\n/// [`crate::a::A`]\nstruct B;\n\n{tests}",
        a__more="use super::A;\nimpl A {}\n",
    )
    source.joinpath("a.rs").write_text("use crate::b::B;\nuse more::f;\npub struct A;\n")
    assert tool.cycles(tool.rust_files(source)) == []


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
