"""The stub describes the binary, its examples run, and importing kvpool stays cheap.

Signatures are compared by stubtest (`make stubs-check`); here is what stubtest does not look at.
"""

from __future__ import annotations

import ast
import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import kvpool
import kvpool.sizing
import kvpool.transfer
from kvpool import _core, errors

STUB = Path(kvpool.__file__).with_name("_core.pyi")
TREE = ast.parse(STUB.read_text(encoding="utf-8"))
HEAVY = ("torch", "numpy", "typer", "rich", "vllm", "matplotlib")
ERROR_CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and one.__module__ == errors.__name__]


def _is_checker_only(node: ast.ClassDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "type_check_only" for one in node.decorator_list)


def _stub_docs() -> dict[str, tuple[str | None, int]]:
    """Every function, class, method and property of the stub: its docstring (None without one) and line."""
    docs: dict[str, tuple[str | None, int]] = {"": (ast.get_docstring(TREE), 1)}

    def add(prefix: str, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and not _is_checker_only(node):
                docs[prefix + node.name] = (ast.get_docstring(node), node.lineno)
                add(f"{prefix}{node.name}.", node.body)
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                # Of overloads, the first has the docstring.
                docs.setdefault(prefix + node.name, (ast.get_docstring(node), node.lineno))

    add("", TREE.body)
    return docs


STUB_DOCS = _stub_docs()


def _runtime_docs() -> dict[str, str | None]:
    docs: dict[str, str | None] = {"": _core.__doc__}
    for name, value in vars(_core).items():
        if name.startswith("_") or not callable(value):
            continue
        docs[name] = value.__doc__
        if isinstance(value, type):
            members = [member for member in vars(value) if not member.startswith("_")]
            docs |= {f"{name}.{member}": getattr(value, member).__doc__ for member in members}
    return docs


RUNTIME_DOCS = _runtime_docs()


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]


def test_stub_and_binary_have_the_same_names() -> None:
    assert set(STUB_DOCS) == set(RUNTIME_DOCS)


def test_names_of_the_package_come_from_the_stub() -> None:
    exported = {name for name in kvpool.__all__ if not issubclass(_type_of(name), errors.KvpoolError)}
    exported -= {"Policy"}  # a base class for Python's own
    exported |= {name for name in kvpool.transfer.__all__ if hasattr(_core, name)} | {"copy_by_handle"}
    exported |= {name for name in kvpool.sizing.__all__ if hasattr(_core, name)}
    # What kvpool.integrations.vllm is made of is nobody else's.
    exported |= {name for name in vars(_core) if name.lower().startswith("vllm")}
    assert exported - {"__version__"} == {name for name in STUB_DOCS if name and "." not in name}


def _type_of(name: str) -> type:
    value = getattr(kvpool, name)
    return value if isinstance(value, type) else type(value)


@pytest.mark.parametrize("name", sorted(RUNTIME_DOCS))
def test_help_and_stub_begin_with_the_same_line(name: str) -> None:
    stub, _ = STUB_DOCS[name]
    assert _first_line(stub)
    assert _first_line(stub) == _first_line(RUNTIME_DOCS[name])


def _examples() -> list[doctest.DocTest]:
    parser = doctest.DocTestParser()
    tests = [
        parser.get_doctest(doc, {"kvpool": kvpool}, name, str(STUB), line)
        for name, (doc, line) in STUB_DOCS.items()
        if doc
    ]
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("example", _examples(), ids=lambda example: example.name)
def test_examples_of_the_stub_run(example: doctest.DocTest) -> None:
    report: list[str] = []
    result = doctest.DocTestRunner().run(example, out=report.append)
    assert result.failed == 0, "".join(report)


def test_classes_that_can_be_made_have_an_example() -> None:
    made = {name for name, value in vars(_core).items() if isinstance(value, type) and value.__text_signature__}
    assert made <= {example.name for example in _examples()}


def test_import_needs_no_other_package() -> None:
    code = f"import sys, kvpool; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("error", ERROR_CLASSES, ids=lambda error: error.__name__)
def test_errors_are_kvpool_errors_and_one_builtin(error: type[Exception]) -> None:
    assert issubclass(error, errors.KvpoolError)
    assert getattr(kvpool, error.__name__) is error
    assert error.__name__ in kvpool.__all__
    assert error.__doc__
    if error is not errors.KvpoolError:
        builtin = [base for base in error.__bases__ if base.__module__ == "builtins"]
        assert len(builtin) == 1
        assert builtin[0] is not Exception
        assert issubclass(builtin[0], Exception)


def test_errors_named_in_the_stub_exist() -> None:
    known = {error.__name__ for error in ERROR_CLASSES}
    named = {
        line.strip().partition(":")[0]
        for doc, _ in STUB_DOCS.values()
        for line in (doc or "").partition("Raises:")[2].splitlines()
        if line.strip().partition(":")[0].endswith("Error")
    }
    assert named <= known
    assert len(named) > 10
