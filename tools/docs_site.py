"""The site of the docs: prepares its pages, builds it strictly, opens it in a browser.

    python tools/docs_site.py build      # target/docs/site; any warning of mkdocs is a failure
    python tools/docs_site.py browse     # opens every page of the built site

Pages are those of ``docs/``, so that they can be read in the repository, too; beside them the README as
the first one, the documents of the repository's root, and the API from stubs and docstrings. A page in
``docs/`` that no section below names comes under "More". Links to files of the repository that are no
pages become their names.

Needs the packages of the dependency group ``docs``; ``browse`` the headless browser of the tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.browser import BrowserError, opened_page

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
OUT: Final = ROOT / "target" / "docs"

# : A link of Markdown, ``[words](target)``, with a ``!`` in front of a picture; and a block of code,
# which has no links.
LINK: Final = re.compile(r"(?P<bang>!?)\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCED: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)

#: Sections of the navigation. A page that is none of these is taken under "More".
SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Start": ("quickstart", "concepts", "porting"),
    "Engines": ("vllm", "vllm-offloading", "sglang", "stored-names", "sglang-settings", "lineage"),
    "Size and tune": ("command-line", "sizing", "models", "traces", "advisor", "retention", "groups"),
    "Run": (
        "operations",
        "metrics",
        "events",
        "explain",
        "journal",
        "store",
        "restart",
        "transfer",
        "threads",
    ),
    "Design": ("design", "hashing", "properties", "numbers"),
}
#: Documents of the root, and what they are called in the site.
ROOT_PAGES: Final = {
    "README.md": "index",
    "ARCHITECTURE.md": "architecture",
    "SECURITY.md": "security",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
}
# : Those of them that have no example to run, and why. Every other page of the site has one, which the
# tests run.
NO_EXAMPLE: Final = {
    "ARCHITECTURE.md": "says where things are and who owns them",
    "CONTRIBUTING.md": "its commands are make targets, which a test compares with the Makefile",
    "CHANGELOG.md": "says what has changed",
}
#: Modules whose API is documented, and what is in them.
MODULES: Final = {
    "kvpool": "What a scheduler calls",
    "kvpool.errors": "Exceptions",
    "kvpool.hashing": "Hash chains",
    "kvpool.journal": "Journals",
    "kvpool.metrics": "Metrics",
    "kvpool.hints": "Hints of engines",
    "kvpool.events": "Events",
    "kvpool.traces": "Request traces",
    "kvpool.sizing": "Sizing",
    "kvpool.models": "KV shapes of models",
    "kvpool.policies": "Eviction policies",
    "kvpool.parts": "Parts of a pool",
    "kvpool.store": "Stores",
    "kvpool.transfer": "Moved bytes",
    "kvpool.testing": "Snapshots for tests",
}


class SiteError(Exception):
    """The site cannot be built; the message says why."""


# --- preparing
# --------------------------------------------------------------------------------------------------------


def prepare(out: Path = OUT, root: Path = ROOT) -> Path:
    """Write the pages, the stubs that the API is read from, and the configuration; give the
    configuration's path.
    """
    docs = out / "docs"
    shutil.rmtree(out, ignore_errors=True)
    docs.mkdir(parents=True)
    pages = {path.stem for path in (root / "docs").glob("*.md")}
    for asset in (path for path in (root / "docs").rglob("*") if path.is_file() and path.suffix != ".md"):
        copy = docs / asset.relative_to(root / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(asset, copy)
    for name in sorted(pages):
        text = (root / "docs" / f"{name}.md").read_text(encoding="utf-8")
        (docs / f"{name}.md").write_text(linked(text, root / "docs", pages, root), encoding="utf-8")
    for source, name in ROOT_PAGES.items():
        text = (root / source).read_text(encoding="utf-8")
        (docs / f"{name}.md").write_text(linked(text, root, pages, root), encoding="utf-8")
    modules = [name for name in MODULES if _source(root, name).exists()]
    (docs / "api").mkdir()
    for name in modules:
        (docs / "api" / f"{name.rpartition('.')[2]}.md").write_text(api_page(name, root), encoding="utf-8")
    readable_stubs(root / "python", out / "python")
    settings = {
        "INHERIT": os.path.relpath(root / "mkdocs.yml", out),
        "docs_dir": "docs",
        "site_dir": "site",
        "nav": navigation(pages, modules),
        "plugins": {
            "search": {},
            "mkdocstrings": {"handlers": {"python": {"paths": [str(out / "python")]}}},
        },
    }
    # JSON is YAML, too.
    (out / "mkdocs.yml").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return out / "mkdocs.yml"


def _source(root: Path, module: str) -> Path:
    path = root / "python" / module.replace(".", "/")
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def navigation(pages: set[str], modules: list[str]) -> list[object]:
    """The pages in sections; each page once, and no page left out."""
    nav: list[object] = [{"Overview": "index.md"}]
    for title, names in SECTIONS.items():
        found = [f"{name}.md" for name in names if name in pages]
        nav.append({title: found if title != "Design" else [*found, "architecture.md", "security.md"]})
    named = {name for names in SECTIONS.values() for name in names}
    more = [f"{name}.md" for name in sorted(pages - named)]
    nav.append({"API": [{name: f"api/{name.rpartition('.')[2]}.md"} for name in modules]})
    nav.append({"More": [*more, "contributing.md", "changelog.md"]})
    return nav


def linked(text: str, folder: Path, pages: set[str], root: Path) -> str:
    """Make the links of a page those of the site: to other pages; what is no page is named and not linked."""

    def replaced(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or ":" in target:
            return match[0]
        path = (folder / target).resolve()
        if not path.exists():
            raise SiteError(f"{folder.name}: {match[0]}: there is no {path.relative_to(root)}")
        name = path.relative_to(root).as_posix()
        where = f"#{anchor}" if anchor else ""
        if name.startswith("docs/") and path.is_file() and path.suffix != ".md":
            return f"{match['bang']}[{match['words']}]({name.removeprefix('docs/')})"
        if name.startswith("docs/") and path.stem in pages:
            return f"[{_titled(match['words'], path, root)}]({path.stem}.md{where})"
        if name in ROOT_PAGES:
            return f"[{match['words']}]({ROOT_PAGES[name]}.md{where})"
        words: str = match["words"]
        return words if words.strip("`") == name else f"{words} (`{name}`)"

    return "".join(
        part if part.startswith("```") else LINK.sub(replaced, part) for part in FENCED.split(text)
    )


def _titled(words: str, path: Path, root: Path) -> str:
    """A link whose words are a path gets the title of its page."""
    if words.strip("`") not in (path.name, path.relative_to(root).as_posix()):
        return words
    return title_of(path)


def title_of(page: Path) -> str:
    """The first heading of a page."""
    heading = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if heading is None:
        raise SiteError(f"{page.name} has no heading")
    return heading[1]


def api_page(module: str, root: Path) -> str:
    """The page of a module: its docstring, and what it exports, as mkdocstrings reads it."""
    names = exported(_source(root, module), module)
    lines = [f"# {module}", "", f"{MODULES[module]}.", "", f"::: {module}"]
    lines += [
        "    options:",
        "      members: []",
        "      show_root_heading: false",
        "      show_root_toc_entry: false",
    ]
    for name in names:
        lines += ["", f"## `{name}`", "", f"::: {module}.{name}", "    options:"]
        lines += ["      show_root_heading: false", "      show_root_toc_entry: false"]
    return "\n".join([*lines, ""])


def exported(source: Path, module: str) -> list[str]:
    """What a module exports: its ``__all__``, or the classes of one that has none."""
    text = source.read_text(encoding="utf-8")
    listed = re.search(r"^__all__ = \[(.*?)\]", text, flags=re.MULTILINE | re.DOTALL)
    names = (
        re.findall(r'"(\w+)"', listed[1]) if listed else re.findall(r"^class (\w+)", text, flags=re.MULTILINE)
    )
    if not names:
        raise SiteError(f"{module} exports nothing")
    return [name for name in names if name != "__version__"]


_ROLE: Final = re.compile(r":(?:class|meth|func|mod|data|attr|exc|obj):`~?([^`]+)`")


def readable_stubs(source: Path, target: Path) -> None:
    """Copy the package for mkdocstrings: roles become code, and what makes an object has its
    parameters' docs.
    """
    for path in sorted(source.rglob("*.py*")):
        if path.suffix not in (".py", ".pyi") or "__pycache__" in path.parts:
            continue
        text = _ROLE.sub(r"`\1`", path.read_text(encoding="utf-8"))
        text = fenced(text.replace("``", "`"))
        if path.suffix == ".pyi":
            text = without_overloads(text)
            text = re.sub(r"def __new__\(\s*cls\b", "def __init__(self", text)
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")


def fenced(source: str) -> str:
    """Put the examples of docstrings into blocks of code: as they stand, Markdown takes them for
    quotations.
    """
    lines: list[str] = []
    indent: str | None = None
    for line in source.split("\n"):
        words = line.strip()
        if indent is None and words.startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            lines += ["", f"{indent}```pycon"]
        elif indent is not None and (not words or words.startswith('"""')):
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    return "\n".join([*lines, *([] if indent is None else [f"{indent}```"])])


def without_overloads(stub: str) -> str:
    """Keep the first form of each function that has several: it has the docs, and a reader of stubs
    knows one.
    """
    lines = stub.splitlines(keepends=True)
    seen: set[tuple[int, str]] = set()
    for node in ast.walk(ast.parse(stub)):
        for one in getattr(node, "body", []):
            if not isinstance(one, ast.FunctionDef) or not one.decorator_list:
                continue
            mark = one.decorator_list[0]
            if not (isinstance(mark, ast.Name) and mark.id == "overload"):
                continue
            known = (id(node), one.name) in seen
            seen.add((id(node), one.name))
            last = one.end_lineno if known and one.end_lineno else mark.lineno
            lines[mark.lineno - 1 : last] = [""] * (last - mark.lineno + 1)
    return "".join(lines)


# --- building and opening
# -------------------------------------------------------------------------------------------


def build(out: Path = OUT) -> Path:
    """Prepare and build, strictly; give the folder of the site.

    Raises:
        SiteError: mkdocs warns of something; its words are the message.
    """
    configuration = prepare(out)
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(configuration),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"}
    )
    if done.returncode != 0:
        raise SiteError(done.stdout + done.stderr)
    return out / "site"


def browse(site: Path) -> list[str]:
    """Opens every page in the headless browser and searches for a word of one page. Returns one line
    per problem.

    A problem is a message on the console or a request to an address outside the site. A page without a
    heading and a word that the search does not find are problems, too.
    """
    problems: list[str] = []
    with served(site) as address, opened_page() as page:

        def requested(asked: Any) -> None:
            if not asked.url.startswith((address, "blob:", "data:")):
                problems.append(f"{page.url}: asks for {asked.url}")

        page.on("console", lambda message: problems.append(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"{page.url}: {error}"))
        page.on("request", requested)
        for path in sorted(site.rglob("*.html")):
            name = path.relative_to(site).as_posix()
            if name == "404.html":
                continue
            page.goto(f"{address}{name}")
            if not page.text_content("h1"):
                problems.append(f"{name}: no heading")
        page.goto(f"{address}index.html")
        page.focus(".md-search__input")
        page.keyboard.type("poisoned")
        page.wait_for_selector(".md-search-result__link", state="attached")
        hits = page.eval_on_selector_all(".md-search-result__link", "found => found.map(one => one.href)")
        if not any("operations.html" in one for one in hits):
            problems.append(f"search: 'poisoned' finds {hits}")
    return problems


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """The site at an address of this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A browser that has seen enough hangs up."""

    handler = functools.partial(Quiet, directory=str(site))
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build and check the site of the docs.")
    parser.add_argument("what", choices=["build", "browse"])
    parser.add_argument("--out", type=Path, default=OUT, help="folder to build in (default target/docs)")
    given = parser.parse_args(arguments)
    out: Path = given.out.resolve()
    try:
        if given.what == "build":
            site, problems = build(out), []
        else:
            site = out / "site"
            if not (site / "index.html").is_file():
                raise SiteError(f"there is no site in {site}: build it first")
            problems = browse(site)
    except (SiteError, BrowserError) as error:
        print(error, file=sys.stderr)
        return 1
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        without = ", ".join(f"{name} ({why})" for name, why in NO_EXAMPLE.items())
        print(
            f"{site}: {len(list(site.rglob('*.html')))} pages, no problem; without an example that runs: {without}"
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
