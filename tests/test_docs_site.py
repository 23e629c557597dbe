"""The pages of the docs site are complete: navigation, API, examples. ``make docs`` builds the site."""

from __future__ import annotations

import doctest
import importlib
import json
import re
from pathlib import Path

import pytest

from tests import test_docs
from tests.documented import examples
from tools import docs_site

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.stem for path in (ROOT / "docs").glob("*.md")}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return docs_site.prepare(tmp_path_factory.mktemp("site") / "out").parent


def leaves(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [leaf for part in parts for leaf in leaves(part)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_navigation_once(prepared: Path) -> None:
    found = leaves(json.loads((prepared / "mkdocs.yml").read_text())["nav"])
    assert sorted(found) == sorted(set(found))
    there = {path.relative_to(prepared / "docs").as_posix() for path in (prepared / "docs").rglob("*.md")}
    assert set(found) == there
    assert {f"{name}.md" for name in PAGES} <= there


@pytest.mark.parametrize(
    "module", [name for name in docs_site.MODULES if docs_site._source(ROOT, name).exists()]
)
def test_the_api_is_what_a_module_exports(module: str) -> None:
    source = docs_site._source(ROOT, module)
    names = docs_site.exported(source, module)
    exports = getattr(importlib.import_module(module), "__all__", names)
    assert names == [name for name in exports if name != "__version__"]
    page = docs_site.api_page(module, ROOT)
    assert all(f"::: {module}.{name}\n" in page for name in names)


def test_every_page_of_the_api_has_an_example_that_runs() -> None:
    """The example is in the module, its stub, or a part of the module. The tests of stubs, models and
    testing run the examples, and so does this one.
    """
    for module in docs_site.MODULES:
        source = docs_site._source(ROOT, module)
        if not source.exists():
            continue
        topic = module.rpartition(".")[2]
        files = [source] if source.name != "__init__.py" else sorted(source.parent.glob("*.py"))
        files += [path for path in (ROOT / "python/kvpool/_core").glob("*.pyi") if path.stem == topic]
        assert any(">>> " in path.read_text(encoding="utf-8") for path in files), module
    assert doctest.testmod(importlib.import_module("kvpool.errors")) == (0, 4)


def test_every_other_page_has_one_or_a_reason() -> None:
    """test_docs.py runs the pages of ``docs/`` and SECURITY.md, and test_readme.py runs the README."""
    ran = {path.name for path in test_docs.WITH_EXAMPLES} | {"README.md"}
    assert {Path(name).stem for name in ran} >= PAGES
    assert set(docs_site.ROOT_PAGES) == (ran & set(docs_site.ROOT_PAGES)) | set(docs_site.NO_EXAMPLE)
    for name, why in docs_site.NO_EXAMPLE.items():
        assert why, name
        assert not [example for example in examples(ROOT / name) if example.runs], (
            f"{name}: an example that is not run"
        )


def test_the_architecture_names_every_crate() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    crates = {path.name for path in (ROOT / "rust").iterdir() if (path / "Cargo.toml").exists()}
    assert crates == set(re.findall(r"rust/([\w-]+)", text.split("```")[1]))


def test_public_modules_are_documented() -> None:
    import kvpool

    assert {f"kvpool.{name}" for name in kvpool._LAZY} <= set(docs_site.MODULES)
