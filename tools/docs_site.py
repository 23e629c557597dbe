"""Builds the site of the docs: prepares its pages, runs the generator, and opens the result in a
browser.

    python tools/docs_site.py build      # target/docs/site; any warning of the generator is a failure
    python tools/docs_site.py browse     # opens every page of the built site in the headless browser

The pages come from five places: the README, the documents of the repository's root, ``docs/``,
``design/`` and the examples. The API pages are written by ``tools/docs_api.py``. A page in ``docs/``
that no section below names is listed under "More". A link to a file that has no page is replaced by the
name of the file.

The generator is Zensical, which reads ``mkdocs.yml``. It is in the dependency group ``docs``.
``browse`` needs the headless browser of the tests.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools import docs_api
from tools.browser import BrowserError
from tools.docs_browse import browse, missing_in_search

ROOT: Final = Path(__file__).resolve().parents[1]
OUT: Final = ROOT / "target" / "docs"

#: Pattern of a Markdown link, ``[words](target)``. A picture has a ``!`` in front.
LINK: Final = re.compile(r"(?P<bang>!?)\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
#: Pattern of a code block. Links in it are not changed.
FENCED: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)

#: Sections of the site's navigation, and the pages of each. Other pages are listed under "More".
SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Start": ("install", "quickstart", "concepts", "glossary", "comparison"),
    "Engines": (
        "vllm",
        "vllm-offloading",
        "sglang",
        "porting",
        "hints",
        "stored-names",
        "sglang-settings",
        "lineage",
    ),
    "Size and tune": ("command-line", "sizing", "models", "traces", "advisor", "retention", "groups"),
    "Run": (
        "deployment",
        "operations",
        "troubleshooting",
        "upgrade",
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
#: Documents in the root of the repository, and their names in the site.
ROOT_PAGES: Final = {
    "README.md": "index",
    "ARCHITECTURE.md": "architecture",
    "SECURITY.md": "security",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
}
#: Documents in the root that have no example to run, and the reason. Every other page of the site has
#: an example, which the tests run.
NO_EXAMPLE: Final = {
    "ARCHITECTURE.md": "describes where things are and who owns them",
    "CONTRIBUTING.md": "its commands are make targets, which a test compares with the Makefile",
    "CHANGELOG.md": "lists what has changed",
}
#: Documents in the root that the site's search leaves out, because they are for people who change
#: kvpool. The pages of ``design/``, the code of the examples and ``kvpool.testing`` are left out, too.
INTERNAL: Final = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
#: Folders whose programs are shown, and the language of each.
EXAMPLES: Final = {"examples": "python", "rust/kvpool/examples": "rust"}
SUFFIXES: Final = {"python": ".py", "rust": ".rs"}
STYLE: Final = ROOT / "tools" / "docs_site.css"


class SiteError(Exception):
    """The site cannot be built; the message gives the reason."""


# --- preparing ---


def prepare(out: Path = OUT, root: Path = ROOT) -> Path:
    """Writes the pages, the generator's configuration, and the stubs from which mkdocstrings reads the
    API.

    Returns:
        The path of the configuration.
    """
    docs = out / "docs"
    shutil.rmtree(out, ignore_errors=True)
    docs.mkdir(parents=True)
    pages = site_pages(root)
    assets = (path for path in (root / "docs").rglob("*") if path.is_file() and path.suffix != ".md")
    for asset in [*assets]:
        _copy(asset, docs / asset.relative_to(root / "docs"))
    _copy(STYLE, docs / "assets" / STYLE.name)
    for source, page in pages.items():
        _write(docs / page, page_text(root / source, pages, root))
    _write(docs / "examples" / "index.md", examples_page(pages, root))
    api = docs_api.write_pages(docs / "api", root)
    docs_api.readable_stubs(root / "python", out / "python")
    settings = {
        "INHERIT": os.path.relpath(root / "mkdocs.yml", out),
        "docs_dir": "docs",
        "site_dir": "site",
        "extra_css": [f"assets/{STYLE.name}"],
        "nav": navigation(pages, api),
        "plugins": {
            "search": {},
            "mkdocstrings": {"handlers": {"python": {"paths": [str(out / "python")]}}},
        },
    }
    # Write the configuration as JSON, because JSON is valid YAML.
    _write(out / "mkdocs.yml", json.dumps(settings, indent=2))
    return out / "mkdocs.yml"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def site_pages(root: Path) -> dict[str, str]:
    """Returns the path in the site for each file of the repository that has a page."""
    pages = {f"docs/{path.name}": path.name for path in sorted((root / "docs").glob("*.md"))}
    pages |= {f"design/{path.name}": f"design/{path.name}" for path in sorted((root / "design").glob("*.md"))}
    pages |= {source: f"{name}.md" for source, name in ROOT_PAGES.items()}
    for folder, language in EXAMPLES.items():
        for path in sorted((root / folder).rglob(f"*{SUFFIXES[language]}")):
            if not path.name.startswith("__"):
                name = path.relative_to(root / folder).with_suffix("").as_posix()
                pages[path.relative_to(root).as_posix()] = f"examples/{name}.md"
    for readme in sorted((root / "examples").rglob("README.md")):
        pages[readme.relative_to(root).as_posix()] = f"examples/{readme.parent.name}/index.md"
    return pages


def page_text(source: Path, pages: dict[str, str], root: Path) -> str:
    """Returns the text of a page. In a Markdown file, links are changed to links of the site. The page
    of a program has its documentation, followed by its code.
    """
    name = source.relative_to(root).as_posix()
    if source.suffix != ".md":
        return program_page(source, pages, root)
    text = linked(source.read_text(encoding="utf-8"), source.parent, pages, root, pages[name])
    return docs_api.UNSEARCHED + text if name in INTERNAL or name.startswith("design/") else text


def program_page(source: Path, pages: dict[str, str], root: Path) -> str:
    """Returns the page of an example: its documentation, followed by the whole program."""
    name = source.relative_to(root).as_posix()
    code = source.read_text(encoding="utf-8")
    title, _, rest = program_docs(source).partition("\n\n")
    text = f"# {source.stem}\n\n{title}\n\nThe file `{name}` of the repository.\n\n{rest}\n"
    text = linked(text, source.parent, pages, root, pages[name])
    if source.suffix == ".py":
        code = code[_end_of_docstring(code) :].lstrip("\n")
    language = "python" if source.suffix == ".py" else "rust"
    return f"{docs_api.UNSEARCHED}{text}\n```{language}\n{code.rstrip()}\n```\n"


def program_docs(source: Path) -> str:
    """Returns the documentation at the start of a program, in Markdown."""
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".py":
        return docs_api.plain_code(ast.get_docstring(ast.parse(text)) or "")
    return "\n".join(line[3:].strip() for line in text.splitlines() if line.startswith("//!"))


def _end_of_docstring(code: str) -> int:
    first = ast.parse(code).body[0]
    is_docs = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno
    return sum(len(line) for line in code.splitlines(keepends=True)[: first.end_lineno]) if is_docs else 0


def examples_page(pages: dict[str, str], root: Path) -> str:
    """Returns the page that lists every example with the first sentence of its documentation."""
    lines = [
        "# Examples",
        "",
        "Whole programs over kvpool. The tests run each of them.",
        "`python -m examples.ports.native` starts one from a checkout; the wheel does not contain them.",
    ]
    sections = {
        "A whole engine": "examples/paged_engine/",
        "Schedulers and managers": "examples/ports/",
        "Older block managers": "examples/lineage",
        "Rust": "rust/",
    }
    for title, prefix in sections.items():
        lines += ["", f"## {title}", ""]
        for source, page in pages.items():
            if not source.startswith(prefix):
                continue
            name = Path(source).stem if not source.endswith("README.md") else Path(source).parent.name
            docs = (
                title_of(root / source)
                if source.endswith(".md")
                else " ".join(program_docs(root / source).partition("\n\n")[0].split())
            )
            lines.append(f"- [{name}]({page.removeprefix('examples/')}): {docs}")
    return "\n".join([*lines, ""])


def navigation(pages: dict[str, str], api: list[object]) -> list[object]:
    """Returns the pages of each section of the navigation. Every page is in exactly one section."""
    user = {Path(page).stem for source, page in pages.items() if source.startswith("docs/")}
    nav: list[object] = [{"Overview": "index.md"}]
    for title, names in SECTIONS.items():
        found = [f"{name}.md" for name in names if name in user]
        if title == "Design":
            found += [page for page in pages.values() if page.startswith("design/")]
            found += ["architecture.md", "security.md"]
        nav.append({title: found})
    programs = [page for page in pages.values() if page.startswith("examples/")]
    nav.append({"Examples": ["examples/index.md", *programs]})
    nav.append({"API": api})
    named = {name for names in SECTIONS.values() for name in names}
    more = [f"{name}.md" for name in sorted(user - named)]
    nav.append({"More": [*more, "contributing.md", "changelog.md"]})
    return nav


def linked(text: str, folder: Path, pages: dict[str, str], root: Path, page: str) -> str:
    """Replaces the links of a page by links of the site. A link to a file that has no page becomes the
    file's name.

    Args:
        text: The page in Markdown.
        folder: The folder of the repository that its links start from.
        pages: The pages of the site, from ``site_pages``.
        root: The folder of the repository.
        page: The page's own path in the site.
    """

    def relative(target: str) -> str:
        return os.path.relpath(target, Path(page).parent)

    def replaced(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or ":" in target:
            return match[0]
        path = (folder / target).resolve()
        if not path.exists():
            raise SiteError(f"{folder.name}: {match[0]}: there is no {path.relative_to(root)}")
        name = path.relative_to(root).as_posix()
        where = f"#{anchor}" if anchor else ""
        words: str = match["words"]
        if name.startswith("docs/") and path.is_file() and path.suffix != ".md":
            return f"{match['bang']}[{words}]({relative(name.removeprefix('docs/'))})"
        found = pages.get(name) or pages.get(f"{name}/README.md")
        if found is None and name in ("examples", "examples/ports"):
            found = "examples/index.md"
        if found is not None:
            return f"[{_titled(words, path, root)}]({relative(found)}{where})"
        return words if words.strip("`") == name else f"{words} (`{name}`)"

    return "".join(
        part if part.startswith("```") else LINK.sub(replaced, part) for part in FENCED.split(text)
    )


def _titled(words: str, path: Path, root: Path) -> str:
    """If the text of a link is the path of a page in ``docs/``, replaces the text by the title of that
    page.
    """
    if path.suffix != ".md" or words.strip("`") not in (path.name, path.relative_to(root).as_posix()):
        return words
    return title_of(path) if path.parent.name == "docs" else words


def title_of(page: Path) -> str:
    heading = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if heading is None:
        raise SiteError(f"{page.name} has no heading")
    return heading[1]


def glossary(root: Path = ROOT) -> dict[str, tuple[str, ...]]:
    """Returns the headings of the glossary. For each heading, returns the pages that the search must
    find.

    These pages are the glossary itself and the pages to which the entry links.
    """
    text = (root / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = {}
    for entry in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        linked_pages = [name.lower() for name in re.findall(r"\]\((?:\.\./)?([\w-]+)\.md\)", entry)]
        words[entry.partition("\n")[0]] = tuple(f"{name}.html" for name in ("glossary", *linked_pages))
    return words


# --- building ---


def build(out: Path = OUT) -> Path:
    """Prepares the pages, and builds the site. Any warning is an error.

    Returns:
        The folder of the site.

    Raises:
        SiteError: The generator prints a warning. The message contains it.
    """
    configuration = prepare(out)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(configuration)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"}
    )
    if done.returncode != 0:
        raise SiteError(done.stdout + done.stderr)
    return out / "site"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build and check the site of the docs.")
    parser.add_argument("what", choices=["build", "browse"])
    parser.add_argument("--out", type=Path, default=OUT, help="folder to build in (default target/docs)")
    given = parser.parse_args(arguments)
    out: Path = given.out.resolve()
    try:
        if given.what == "build":
            site = build(out)
            problems = missing_in_search(site, list(glossary()))
        else:
            site = out / "site"
            if not (site / "index.html").is_file():
                raise SiteError(f"there is no site in {site}: build it first")
            problems = browse(site, glossary())
    except (SiteError, BrowserError, docs_api.ApiError) as error:
        print(error, file=sys.stderr)
        return 1
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        without = ", ".join(f"{name} ({why})" for name, why in NO_EXAMPLE.items())
        print(f"{site}: {len(list(site.rglob('*.html')))} pages, no problem")
        print(f"without an example that runs: {without}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
