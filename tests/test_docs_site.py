"""The site of the docs without mkdocs: what its pages are made of, and what the check of its links finds.

``make docs`` builds it strictly, ``make docs-check`` opens it in a browser.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import re
import urllib.request
from pathlib import Path

import pytest

from tests import test_docs
from tests.documented import examples
from tools import docs_pictures, docs_site

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


def test_a_new_page_comes_by_itself() -> None:
    nav = docs_site.navigation({"quickstart", "brand-new"}, ["kvpool"])
    assert leaves(nav) == [
        "index.md",
        "quickstart.md",
        "architecture.md",
        "security.md",
        "api/kvpool.md",
        "brand-new.md",
        "contributing.md",
        "changelog.md",
    ]


@pytest.mark.parametrize(
    ("link", "made"),
    [
        ("[docs/vllm.md](docs/vllm.md)", "[kvpool inside vLLM](vllm.md)"),
        ("[what it does](docs/vllm.md#groups)", "[what it does](vllm.md#groups)"),
        ("![page](docs/images/size-report.png)", "![page](images/size-report.png)"),
        ("[who is trusted](SECURITY.md)", "[who is trusted](security.md)"),
        ("[`Makefile`](Makefile)", "`Makefile`"),
        ("[results](benches/results/)", "results (`benches/results`)"),
        ("[elsewhere](https://example.org/a_(b))", "[elsewhere](https://example.org/a_(b))"),
        ("[here](#place)", "[here](#place)"),
        ("```\n[docs](docs/vllm.md)\n```", "```\n[docs](docs/vllm.md)\n```"),
    ],
)
def test_links_become_those_of_the_site(link: str, made: str) -> None:
    assert docs_site.linked(link, ROOT, PAGES, ROOT) == made


def test_a_link_to_nothing_is_found() -> None:
    with pytest.raises(docs_site.SiteError, match=r"there is no docs/nothing\.md"):
        docs_site.linked("[x](docs/nothing.md)", ROOT, PAGES, ROOT)


@pytest.mark.parametrize("module", [name for name in docs_site.MODULES if docs_site._source(ROOT, name).exists()])
def test_the_api_is_what_a_module_exports(module: str) -> None:
    source = docs_site._source(ROOT, module)
    names = docs_site.exported(source, module)
    exports = getattr(importlib.import_module(module), "__all__", names)
    assert names == [name for name in exports if name != "__version__"]
    page = docs_site.api_page(module, ROOT)
    assert all(f"::: {module}.{name}\n" in page for name in names)


def test_every_page_of_the_api_has_an_example_that_runs() -> None:
    """In the module, its stub, or what it is made of: run by the tests of stubs, models, testing and by this one."""
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
    """Pages of ``docs/`` and SECURITY.md are run by test_docs.py, the README by test_readme.py."""
    ran = {path.name for path in test_docs.WITH_EXAMPLES} | {"README.md"}
    assert {Path(name).stem for name in ran} >= PAGES
    assert set(docs_site.ROOT_PAGES) == (ran & set(docs_site.ROOT_PAGES)) | set(docs_site.NO_EXAMPLE)
    for name, why in docs_site.NO_EXAMPLE.items():
        assert why, name
        assert not [example for example in examples(ROOT / name) if example.runs], f"{name}: an example that is not run"


def test_the_architecture_names_every_crate() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    crates = {path.name for path in (ROOT / "rust").iterdir() if (path / "Cargo.toml").exists()}
    assert crates == set(re.findall(r"rust/([\w-]+)", text.split("```")[1]))


def test_public_modules_are_documented() -> None:
    import kvpool

    assert {f"kvpool.{name}" for name in kvpool._LAZY} <= set(docs_site.MODULES)


def test_the_stubs_are_readable(prepared: Path) -> None:
    """Still Python, without roles; what makes an object is where its parameters' docs are looked for."""
    stubs = sorted((prepared / "python").rglob("*.pyi"))
    assert len(stubs) == len(list((ROOT / "python").rglob("*.pyi")))
    for path in stubs:
        text = path.read_text(encoding="utf-8")
        ast.parse(text)
        assert "def __new__" not in text, path
        assert "@overload" not in text, path
        assert ":class:" not in text, path
    text = (prepared / "python" / "kvpool" / "_core" / "journal.pyi").read_text(encoding="utf-8")
    assert text.count("def export_journal(") == 1


def test_examples_of_docstrings_are_code() -> None:
    inside = '    """Doubles.\n\n    >>> double(2)\n    4\n    """\n'
    assert docs_site.fenced(inside) == '    """Doubles.\n\n\n    ```pycon\n    >>> double(2)\n    4\n    ```\n    """\n'


def site(folder: Path, **pages: str) -> Path:
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>")
    return folder


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="other.html#there">x</a>', None),
        ('<a href="other.html">x</a><a href="#mine">y</a><h1 id="mine"></h1>', None),
        ('<a href="https://example.org/nothing">x</a>', None),
        ('<img src="picture.svg">', None),
        ('<a href="nothing.html">x</a>', "page.html: nothing.html: no such file"),
        ('<a href="other.html#nowhere">x</a>', "page.html: other.html#nowhere: no such place in it"),
        ('<a href="#nowhere">x</a>', "page.html: #nowhere: no such place in it"),
        ('<img src="nothing.png">', "page.html: nothing.png: no such file"),
        ('<script src="https://example.org/a.js"></script>', "page.html: loads https://example.org/a.js"),
        ('<link rel="stylesheet" href="//example.org/a.css">', "page.html: loads //example.org/a.css"),
    ],
)
def test_broken_links_are_found(tmp_path: Path, body: str, problem: str | None) -> None:
    (tmp_path / "picture.svg").write_text("<svg/>")
    found = docs_site.check(site(tmp_path, page=body, other='<h2 id="there">x</h2>'))
    assert found == ([] if problem is None else [problem])


def test_the_site_is_served_on_this_machine_alone(tmp_path: Path) -> None:
    site(tmp_path, index="hello")
    with docs_site.served(tmp_path) as address:
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}index.html") as answer:
            assert b"hello" in answer.read()


def test_the_drawings_are_what_the_tool_makes(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs_pictures.main(["--check"]) == 0
    assert capsys.readouterr().err == ""


def test_a_drawing_that_was_edited_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs_pictures, "FOLDER", tmp_path)
    assert docs_pictures.main([]) == 0
    (tmp_path / "life.svg").write_text("<svg/>")
    assert docs_pictures.main(["--check"]) == 1
    assert "life.svg is not what" in capsys.readouterr().err
