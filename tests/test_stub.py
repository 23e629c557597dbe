"""The stubs match the binary, their examples run, and an import of kvpool is cheap.

``make stubs-check`` compares signatures with stubtest. The tests here check everything else.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import pydoc
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kvpool
from kvpool import (
    _core,
    errors,
    events,
    hashing,
    journal,
    models,
    parts,
    policies,
    sizing,
    store,
    testing,
    traces,
    transfer,
)

STUBS = {
    "" if path.stem == "__init__" else path.stem: path
    for path in sorted(Path(kvpool.__file__).with_name("_core").glob("*.pyi"))
}
#: Largest number of lines of a stub. A longer stub would cover more than one topic. The manager's stub
#: is the longest, because its class cannot be split.
LINES = 1_100
#: The modules of the package that export names of the binary.
PUBLIC = (kvpool, events, hashing, journal, parts, policies, sizing, store, traces, transfer)
HEAVY = ("torch", "numpy", "typer", "rich", "vllm", "matplotlib")
ERROR_CLASSES = [
    one for one in vars(errors).values() if isinstance(one, type) and one.__module__ == errors.__name__
]


def _module(topic: str) -> ModuleType:
    return importlib.import_module(f"kvpool._core.{topic}" if topic else "kvpool._core")


def _is_checker_only(node: ast.ClassDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "type_check_only" for one in node.decorator_list)


def _stub_docs() -> dict[str, tuple[str | None, Path, int]]:
    """Returns every module, function, class, method and property of the stubs, such as
    ``pool.BlockPool.allocate``.

    Each has its docstring (None if it has none), its file and its line.
    """
    docs: dict[str, tuple[str | None, Path, int]] = {}

    def add(prefix: str, body: list[ast.stmt], path: Path) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and not _is_checker_only(node):
                docs[prefix + node.name] = (ast.get_docstring(node), path, node.lineno)
                add(f"{prefix}{node.name}.", node.body, path)
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                # If a function has several overloads, the first has the docstring.
                docs.setdefault(prefix + node.name, (ast.get_docstring(node), path, node.lineno))

    for topic, path in STUBS.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs[topic] = (ast.get_docstring(tree), path, 1)
        add(f"{topic}.", tree.body, path)
    return docs


STUB_DOCS = _stub_docs()


def _runtime_docs() -> dict[str, str | None]:
    topics = [name for name, value in vars(_core).items() if isinstance(value, ModuleType)]
    docs: dict[str, str | None] = {}
    for topic in ("", *topics):
        module = _module(topic)
        docs[topic] = module.__doc__
        for name, value in vars(module).items():
            if name.startswith("_") or not callable(value):
                continue
            docs[f"{topic}.{name}"] = value.__doc__
            if isinstance(value, type):
                members = [member for member in vars(value) if not member.startswith("_")]
                docs |= {f"{topic}.{name}.{member}": getattr(value, member).__doc__ for member in members}
    return docs


RUNTIME_DOCS = _runtime_docs()


def test_stub_and_binary_have_the_same_names() -> None:
    assert set(STUB_DOCS) == set(RUNTIME_DOCS)


@pytest.mark.parametrize("topic", STUBS)
def test_a_stub_is_of_one_topic(topic: str) -> None:
    assert STUBS[topic].read_text(encoding="utf-8").count("\n") <= LINES


@pytest.mark.parametrize("topic", [topic for topic in STUBS if topic])
def test_classes_say_where_they_are(topic: str) -> None:
    module = _module(topic)
    assert module.__name__ == f"kvpool._core.{topic}"
    assert {getattr(module, name).__module__ for name in module.__all__} == {module.__name__}


def test_names_of_the_binary_are_public_names() -> None:
    exported = [getattr(module, name) for module in PUBLIC for name in module.__all__]
    public = {f"{one.__module__}.{one.__name__}" for one in exported if hasattr(one, "__module__")}
    # These names of the binary are private: the parts of kvpool.integrations.vllm, of the torch ops, of
    # PrefixStore, and of errors about policies.
    own = {f"kvpool._core.vllm.{name}" for name in _core.vllm.__all__}
    own |= {f"kvpool._core.facets.{name}" for name in _core.facets.__all__}
    own |= {"kvpool._core.transfer.copy_by_handle", "kvpool._core.policies.policy_removal"}
    own |= {f"kvpool._core.store.{name}" for name in ("block_names", "busy_slots", "offer_blocks")}
    binary = {f"kvpool._core.{name}" for name in STUB_DOCS if name.count(".") == 1}
    assert {name for name in public if name.startswith("kvpool._core.")} | own == binary


def test_a_name_has_one_place() -> None:
    """Each name is in one module, with two exceptions: the base class of all errors, and the
    constructors of chains, which are also in the modules of their topics.
    """
    modules = (*PUBLIC, errors, models, testing)
    # errors and models have no __all__. Everything that they define is public.
    names = [
        name
        for module in modules
        for name in getattr(module, "__all__", [n for n, v in vars(module).items() if _is_own(v, module)])
    ]
    assert {name for name in names if names.count(name) > 1} == {"BlockHasher", "ExtraKeys", "KvpoolError"}


def _is_own(value: object, module: ModuleType) -> bool:
    name = getattr(value, "__name__", "_")
    return getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")


def test_the_runtime_docstring_is_that_of_the_stub() -> None:
    documented = {name: doc for name, (doc, _, _) in STUB_DOCS.items()}
    assert {name: doc for name, doc in RUNTIME_DOCS.items() if not doc or doc != documented[name]} == {}


def test_help_shows_the_signature_and_the_whole_docstring() -> None:
    shown = pydoc.plain(pydoc.render_doc(kvpool.CacheManager.append))
    assert "append(self, /, request_ids, token_ids, *, commit=False, lookahead=0, multimodal=None)" in shown
    for section in ("Args:", "Returns:", "Raises:", "UnknownRequestError"):
        assert section in shown


def _examples() -> list[doctest.DocTest]:
    parser = doctest.DocTestParser()
    tests = [
        parser.get_doctest(doc, {"kvpool": kvpool}, name, str(path), line)
        for name, (doc, path, line) in STUB_DOCS.items()
        if doc
    ]
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("example", _examples(), ids=lambda example: example.name)
def test_examples_of_the_stub_run(example: doctest.DocTest) -> None:
    report: list[str] = []
    result = doctest.DocTestRunner().run(example, out=report.append)
    assert result.failed == 0, "".join(report)


def test_classes_that_can_be_made_have_an_example() -> None:
    made = {
        f"{topic}.{name}"
        for topic in STUBS
        for name, value in vars(_module(topic)).items()
        if isinstance(value, type) and value.__text_signature__
    }
    assert made <= {example.name for example in _examples()}


@pytest.mark.parametrize("module", PUBLIC[1:], ids=lambda module: module.__name__)
def test_examples_of_the_modules_run(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_import_needs_no_other_package() -> None:
    code = f"import sys, kvpool; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_modules_are_imported_at_their_first_use() -> None:
    code = f"""
import sys, kvpool
print(sorted(name for name in sys.modules if name.startswith("kvpool.") \
and not name.startswith("kvpool._core")))
print([kvpool.journal.Journal.__name__, kvpool.traces.Trace.__name__], hasattr(kvpool, "nothing"))
[getattr(kvpool, name) for name in kvpool._LAZY]
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "['kvpool._removed', 'kvpool.errors']",
        "['Journal', 'Trace'] False",
        "[]",
    ]


@pytest.mark.parametrize("error", ERROR_CLASSES, ids=lambda error: error.__name__)
def test_errors_are_kvpool_errors_and_one_builtin(error: type[Exception]) -> None:
    assert issubclass(error, errors.KvpoolError)
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
        for doc, _, _ in STUB_DOCS.values()
        for line in (doc or "").partition("Raises:")[2].splitlines()
        if line.strip().partition(":")[0].endswith("Error")
    }
    assert named <= known
    assert len(named) > 10


#: The public modules of the package.
MODULES = ("kvpool", "kvpool.errors", *(f"kvpool.{name}" for name in kvpool._LAZY), "kvpool.cli")


@pytest.mark.parametrize("name", [*MODULES, "kvpool.integrations.sglang", "kvpool.integrations.vllm"])
def test_dir_of_a_module_lists_public_names_only(name: str) -> None:
    module = importlib.import_module(name)
    modules = {one.name for one in pkgutil.iter_modules(getattr(module, "__path__", ()))}
    own = {one for one, value in vars(module).items() if _is_own(value, module)}
    public = {*getattr(module, "__all__", own), *modules}
    assert {one for one in dir(module) if not one.startswith("_")} <= public
    assert {one for one in public - modules if not hasattr(module, one)} == set()
