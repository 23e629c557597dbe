"""Tests that the site of the docs is complete: navigation, API pages, examples, search.

``make docs`` builds the site, and ``make docs-check`` opens every page of it.
"""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import test_docs
from tests.documented import examples
from tools import docs_api, docs_browse, docs_site
from tools.browser import BrowserError, opened_page

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.stem for path in (ROOT / "docs").glob("*.md")}
MODULES = docs_api.documented(ROOT)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return docs_site.prepare(tmp_path_factory.mktemp("site") / "out").parent


@pytest.fixture(scope="module")
def entries() -> list[docs_api.Entry]:
    return docs_api.entries(ROOT)


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


@pytest.mark.parametrize("module", MODULES)
def test_the_api_documents_every_export_of_a_module(module: str, entries: list[docs_api.Entry]) -> None:
    names = docs_api.exported(docs_api.source_of(ROOT, module), module)
    exports = getattr(importlib.import_module(module), "__all__", names)
    assert names == [name for name in exports if name != "__version__"]
    documented = {(entry.module, entry.name) for entry in entries}
    elsewhere = {entry.name for entry in entries}
    # Some names, such as BlockHasher, are exported by two modules. The site has only one page for each of
    # them.
    assert all((module, name) in documented or name in elsewhere for name in names)


def test_each_class_has_a_page_that_is_linked_from_its_module(
    prepared: Path, entries: list[docs_api.Entry]
) -> None:
    for entry in entries:
        if entry.page is None:
            continue
        assert f"::: {entry.path}\n" in (prepared / "docs/api" / entry.page).read_text(encoding="utf-8")
        index = prepared / "docs/api" / docs_api.topic_of(entry.module) / "index.md"
        assert f"[`{entry.name}`]({entry.name}.md)" in index.read_text(encoding="utf-8")


def test_an_exception_is_on_the_page_of_its_module(entries: list[docs_api.Entry]) -> None:
    kinds = {entry.kind for entry in entries if entry.module == "kvpool.errors"}
    assert kinds == {"exception"}


def made_up_package(root: Path, property_name: str = "journal") -> None:
    """Makes a package ``kvpool`` in which a property of the manager returns a class that no module
    exports.
    """
    package = root / "python" / "kvpool"
    (package / "_core").mkdir(parents=True)
    (package / "__init__.py").write_text(
        'from kvpool._core.manager import BlockPool, CacheManager\n\n__all__ = [\n    "CacheManager",\n'
        '    "BlockPool",\n]\n'
    )
    (package / "_core" / "manager.pyi").write_text(
        "from kvpool._core.parts import Facet\n"
        'class BlockPool:\n    """A pool."""\n'
        'class CacheManager:\n    """Manages."""\n'
        f'    @property\n    def {property_name}(self) -> Facet:\n        """Returns the part."""\n'
        "    def _hidden(self) -> Hidden: ...\n"
    )
    (package / "_core" / "parts.pyi").write_text(
        'class Facet:\n    """A part of a manager."""\n    def save(self) -> None:\n        """Saves it."""\n'
        "class Hidden: ...\n"
    )


def test_a_class_that_a_manager_returns_gets_a_page_by_itself(tmp_path: Path) -> None:
    made_up_package(tmp_path)
    found = {entry.name: entry for entry in docs_api.entries(tmp_path)}
    assert set(found) == {"CacheManager", "BlockPool", "Facet"}
    assert (found["Facet"].page, found["Facet"].path) == ("kvpool/Facet.md", "kvpool._core.parts.Facet")
    page = docs_api.names_page(list(found.values()))
    assert "### CacheManager.journal\n\nA part of a manager.\n" in page
    assert "- [`save()`](kvpool/Facet.md#kvpool._core.parts.Facet.save): Saves it." in page


def test_an_export_without_a_definition_is_an_error(tmp_path: Path) -> None:
    made_up_package(tmp_path)
    source = tmp_path / "python/kvpool/__init__.py"
    source.write_text(source.read_text().replace('"BlockPool"', '"Pool"'))
    with pytest.raises(docs_api.ApiError, match=r"kvpool\.Pool is exported and not defined"):
        docs_api.entries(tmp_path)


@pytest.mark.parametrize("name", docs_api.LISTED)
def test_the_list_of_names_has_every_public_name_of_the_class(
    name: str, entries: list[docs_api.Entry]
) -> None:
    import kvpool

    page = docs_api.names_page(entries)
    public = {one for one in dir(getattr(kvpool, name)) if not one.startswith("_")}
    (entry,) = [one for one in entries if one.name == name]
    listed = {member.name for member in entry.members}
    assert listed <= public
    assert all(f"#{entry.path}.{one})" in page for one in listed)
    assert all(member.summary for member in entry.members)


def test_a_signature_with_overloads_keeps_the_first() -> None:
    stub = (
        "class A:\n    @overload\n    def f(self) -> int:\n        '''Docs.'''\n"
        "    @overload\n    def f(self, out: int) -> None: ...\n    def g(self) -> int: ...\n"
    )
    kept = docs_api.without_overloads(stub)
    assert kept.count("def f(") == 1
    assert "Docs." in kept
    assert "def g(" in kept


def test_the_options_of_the_api_are_in_a_mapping() -> None:
    """The tool writes a configuration that replaces a list of plug-ins. In a list, the options of the
    API pages would be lost.
    """
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "plugins:\n  search: {}\n  mkdocstrings:\n" in text
    assert "returns_multiple_items: false" in text


@pytest.mark.parametrize("stub", sorted((ROOT / "python/kvpool").rglob("*.py*")), ids=lambda path: path.name)
def test_no_returns_section_begins_with_a_word_and_a_colon(stub: Path) -> None:
    """The site would show such a word as the name of the returned value."""
    if stub.suffix not in (".py", ".pyi"):
        return
    text = stub.read_text(encoding="utf-8")
    first_lines = re.findall(r"^ +Returns:\n +(.+)$", text, flags=re.MULTILINE)
    assert [line for line in first_lines if re.match(r"\w+(?: ?\(.*\))?:", line)] == []


def test_every_page_of_the_api_has_an_example_that_runs() -> None:
    """The example is in the docstring of the module, in its stub, or in a file of its package. Other
    tests run most examples.
    """
    for module in MODULES:
        source = docs_api.source_of(ROOT, module)
        topic = docs_api.topic_of(module)
        files = [source] if source.name != "__init__.py" else sorted(source.parent.glob("*.py"))
        files += [path for path in (ROOT / "python/kvpool/_core").glob("*.pyi") if path.stem == topic]
        assert any(">>> " in path.read_text(encoding="utf-8") for path in files), module
    assert doctest.testmod(importlib.import_module("kvpool.errors")) == (0, 4)


def test_public_modules_are_documented() -> None:
    import kvpool

    assert {f"kvpool.{name}" for name in kvpool._LAZY} <= set(docs_api.MODULES)


def test_every_other_page_has_an_example_or_a_reason() -> None:
    """test_docs.py runs the examples of ``docs/`` and SECURITY.md, and test_readme.py those of the
    README.
    """
    ran = {path.name for path in test_docs.WITH_EXAMPLES} | {"README.md"}
    assert {Path(name).stem for name in ran} >= PAGES
    assert set(docs_site.ROOT_PAGES) == (ran & set(docs_site.ROOT_PAGES)) | set(docs_site.NO_EXAMPLE)
    for name, why in docs_site.NO_EXAMPLE.items():
        assert why, name
        assert not [example for example in examples(ROOT / name) if example.runs], (
            f"{name}: an example that is not run"
        )


def test_every_program_of_the_examples_is_shown(prepared: Path) -> None:
    listed = (prepared / "docs/examples/index.md").read_text(encoding="utf-8")
    programs = [path for path in (ROOT / "examples").rglob("*.py") if not path.name.startswith("__")]
    assert len(programs) > 20
    for path in programs:
        name = path.relative_to(ROOT / "examples").with_suffix("").as_posix()
        page = (prepared / "docs/examples" / f"{name}.md").read_text(encoding="utf-8")
        assert path.read_text(encoding="utf-8").rstrip().splitlines()[-1] in page
        assert f"]({name}.md)" in listed


def test_links_to_examples_lead_to_their_pages(prepared: Path) -> None:
    text = (prepared / "docs/porting.md").read_text(encoding="utf-8")
    assert "(examples/ports/native.md)" in text


def test_links_become_those_of_the_site() -> None:
    pages = docs_site.site_pages(ROOT)
    links = "[a](../docs/porting.md#x) [n](../examples/ports/native.py) [made](../Makefile)\n"
    code = "```\n[a](nowhere.md)\n```\n"
    made = docs_site.linked(links + code, ROOT / "docs", pages, ROOT, "design/b.md")
    assert made.startswith("[a](../porting.md#x) [n](../examples/ports/native.md) made (`Makefile`)")
    assert made.endswith(code)


def test_a_link_to_a_missing_file_is_an_error() -> None:
    with pytest.raises(docs_site.SiteError, match=r"there is no docs/nowhere\.md"):
        docs_site.linked("[a](nowhere.md)", ROOT / "docs", {}, ROOT, "b.md")


def test_the_architecture_names_every_crate() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    crates = {path.name for path in (ROOT / "rust").iterdir() if (path / "Cargo.toml").exists()}
    assert crates == set(re.findall(r"rust/([\w-]+)", text.split("```")[1]))


def test_pages_for_developers_are_left_out_of_the_search(prepared: Path) -> None:
    docs = prepared / "docs"
    internal = [docs / "api/testing/index.md", docs / "architecture.md", docs / "contributing.md"]
    internal += [*(docs / "design").glob("*.md"), docs / "examples/ports/native.md"]
    for page in internal:
        assert page.read_text(encoding="utf-8").startswith("---\nsearch:\n  exclude: true\n---\n"), page
    assert not (docs / "glossary.md").read_text(encoding="utf-8").startswith("---")


def test_the_glossary_has_the_words_that_people_search() -> None:
    words = list(docs_site.glossary())
    assert words == sorted(words, key=lambda word: word.lower().replace("-", " "))
    for wanted in (
        "Time to first token",
        "Speculative decoding",
        "Chunked prefill",
        "P/D disaggregation",
        "Prefix caching",
        "KV offloading",
        "LoRA",
        "Preemption",
        "Eviction",
        "Watermark",
    ):
        assert wanted in words


def test_each_entry_of_the_glossary_links_a_page() -> None:
    for word, pages in docs_site.glossary().items():
        assert pages[0] == "glossary.html"
        assert len(pages) > 1, word
    assert docs_site.glossary()["Salt"] == ("glossary.html", "security.html")


def made_up_index(site: Path, items: list[dict[str, str]]) -> None:
    (site / "search.json").write_text(json.dumps({"items": items}), encoding="utf-8")


def test_a_word_without_a_section_in_the_index_is_a_problem(tmp_path: Path) -> None:
    items = [
        {"location": "glossary.html#lora", "title": "LoRA"},
        {"location": "glossary.html#pd", "title": "P&amp;D"},
        {"location": "concepts.html#pin", "title": "Pin"},
    ]
    made_up_index(tmp_path, items)
    assert docs_browse.missing_in_search(tmp_path, ["LoRA", "P&D"]) == []
    (problem,) = docs_browse.missing_in_search(tmp_path, ["LoRA", "Pin"])
    assert "'Pin'" in problem


def test_an_internal_page_in_the_index_is_a_problem(tmp_path: Path) -> None:
    made_up_index(tmp_path, [{"location": "api/testing/index.html", "title": "kvpool.testing"}])
    (problem,) = docs_browse.missing_in_search(tmp_path, [])
    assert "internal" in problem


def test_the_built_index_has_every_word_of_the_glossary(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="needs the group docs: make docs builds the site")
    site = docs_site.build(tmp_path / "out")
    assert docs_browse.missing_in_search(site, list(docs_site.glossary())) == []


def test_a_site_that_is_not_built_cannot_be_browsed(tmp_path: Path) -> None:
    command = [sys.executable, "tools/docs_site.py", "browse", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "build it first" in done.stderr


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        with opened_page() as page:
            yield page
    except BrowserError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


WIDE = '<div style="width: 1500px">wide</div>'
TABLE = f'<div style="overflow: auto"><table><tr><td>{WIDE}</td></tr></table></div>'


@pytest.mark.parametrize(
    ("content", "width", "faults"),
    [
        ("<p>short</p>", 1280, []),
        ("<p>short</p>", 390, []),
        (f'<pre style="overflow: auto">{WIDE}</pre>', 390, []),
        (WIDE, 390, ["the page is", "beyond the edge: <DIV> wide"]),
        (f'<div style="width: 200px; overflow: hidden">{WIDE}</div>', 1280, ["cut: <DIV> wide"]),
        (TABLE, 1280, ["table wider than the page: wide"]),
        (TABLE, 390, []),
    ],
)
def test_text_that_is_cut_and_tables_that_are_too_wide_are_found(
    browser: Any, tmp_path: Path, content: str, width: int, faults: list[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><article>{content}</article>", encoding="utf-8")
    browser.goto(page.as_uri())
    found = docs_browse.layout_faults(browser, width)
    assert bool(found) == bool(faults), found
    for fault in faults:
        assert any(one.startswith(fault) for one in found), found
