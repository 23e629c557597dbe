"""Writes the API pages of the site from the stubs and the sources: one page per class.

Every module of :data:`MODULES` has a page with its functions and a list of its classes. Every class
that a module exports has its own page, which documents its methods. A class that no module exports also
gets a page if a method or property of an exported class returns it, such as ``manager.swaps``.
Exceptions have no methods, so they are documented on the page of their module.

The sources are parsed and not imported, so the pages can be written without the compiled extension.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Modules whose API is documented, each with its purpose.
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
#: Modules that the site's search leaves out, because they are only for tests of kvpool and of code that
#: uses it.
NOT_SEARCHED: Final = ("kvpool.testing",)
#: Large classes. One page lists the names of all their methods.
LISTED: Final = ("CacheManager", "BlockPool")
#: Text at the start of a page that excludes the page from the search.
UNSEARCHED: Final = "---\nsearch:\n  exclude: true\n---\n\n"


class ApiError(Exception):
    """The sources do not have the expected form; the message names the module."""


@dataclasses.dataclass(frozen=True)
class Member:
    """A method or a property of a class."""

    name: str
    is_property: bool
    summary: str
    #: Names of the classes in the annotation of the method's return value.
    returns: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A documented class, function or constant."""

    #: The module that the pages name as the home of this entry.
    module: str
    name: str
    #: The kind of the entry: ``class``, ``exception``, ``function`` or ``constant``.
    kind: str
    #: The dotted path by which mkdocstrings finds this entry.
    path: str
    summary: str
    members: tuple[Member, ...] = ()

    @property
    def page(self) -> str | None:
        """Returns the path of the entry's own page, relative to the folder ``api``. Returns None if the
        entry is documented on its module's page.
        """
        return f"{topic_of(self.module)}/{self.name}.md" if self.kind == "class" else None


def topic_of(module: str) -> str:
    """Returns the last part of a module's name. It is also the name of the module's folder of pages."""
    return module.rpartition(".")[2]


def source_of(root: Path, module: str) -> Path:
    """Returns the path of a module's source file. For modules of the extension this is the stub."""
    path = root / "python" / module.replace(".", "/")
    for candidate in (path.with_suffix(".py"), path.with_suffix(".pyi"), path / "__init__.py"):
        if candidate.exists():
            return candidate
    return path / "__init__.pyi"


def documented(root: Path) -> list[str]:
    """Returns the modules of :data:`MODULES` that exist in the package."""
    return [module for module in MODULES if source_of(root, module).exists()]


def exported(source: Path, module: str) -> list[str]:
    """Returns the names that a module exports: its ``__all__``, or its classes if it has no
    ``__all__``.
    """
    text = source.read_text(encoding="utf-8")
    listed = re.search(r"^__all__ = \[(.*?)\]", text, flags=re.MULTILINE | re.DOTALL)
    names = (
        re.findall(r'"(\w+)"', listed[1]) if listed else re.findall(r"^class (\w+)", text, flags=re.MULTILINE)
    )
    if not names:
        raise ApiError(f"{module} exports nothing")
    return [name for name in names if name != "__version__"]


class Sources:
    """Parses files of the package, each file once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, module: str) -> ast.Module | None:
        """Returns the syntax tree of a module, or None if the package has no such module."""
        if module not in self._trees:
            path = source_of(self._root, module)
            self._trees[module] = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else None
        return self._trees[module]

    def _imported(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = source_of(self._root, module).stem == "__init__"
        parts = module.split(".")
        parts = parts[: len(parts) + (1 if is_package else 0) - node.level]
        return ".".join([*parts, node.module or ""])

    def find(self, module: str, name: str) -> tuple[str, ast.stmt] | None:
        """Follows imports to the definition of a name. Returns the module that defines it, and its
        syntax node.
        """
        tree = self.tree(module)
        if tree is None:
            return None
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name and node in tree.body:
                return module, node
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find(self._imported(module, node), alias.name)
        for statement in tree.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if isinstance(statement, ast.AnnAssign):
                targets = [statement.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return module, statement
        return None


def summary_of(node: ast.AST) -> str:
    """Returns the first sentence of a docstring on one line, in Markdown. Returns "" if there is no
    docstring.
    """
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
        return ""
    first = (ast.get_docstring(node) or "").partition("\n\n")[0]
    return plain_code(" ".join(first.split()))


_ROLE: Final = re.compile(r":(?:class|meth|func|mod|data|attr|exc|obj):`~?([^`]+)`")


def plain_code(text: str) -> str:
    """Replaces roles and double backticks of reStructuredText by Markdown code."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def members_of(node: ast.ClassDef) -> tuple[Member, ...]:
    """Returns the public methods and properties of a class, in source order. If a method is overloaded,
    returns its first overload.
    """
    found: dict[str, Member] = {}
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            name = one.target.id
            if not name.startswith("_"):
                found.setdefault(name, Member(name, True, "", ()))
        if not isinstance(one, ast.FunctionDef) or one.name.startswith("_"):
            continue
        marks = [mark.id for mark in one.decorator_list if isinstance(mark, ast.Name)]
        returns = (
            [name.id for name in ast.walk(one.returns) if isinstance(name, ast.Name)] if one.returns else []
        )
        found.setdefault(one.name, Member(one.name, "property" in marks, summary_of(one), tuple(returns)))
    return tuple(found.values())


def _is_exception(sources: Sources, module: str, node: ast.ClassDef) -> bool:
    names = [base.id for base in node.bases if isinstance(base, ast.Name)]
    if any(name.endswith(("Error", "Exception")) for name in names):
        return True
    found = [sources.find(module, name) for name in names]
    return any(
        one is not None and isinstance(one[1], ast.ClassDef) and _is_exception(sources, one[0], one[1])
        for one in found
    )


def _entry(sources: Sources, module: str, name: str, path: str, where: str, node: ast.stmt) -> Entry:
    if isinstance(node, ast.ClassDef):
        kind = "exception" if _is_exception(sources, where, node) else "class"
        return Entry(module, name, kind, path, summary_of(node), members_of(node))
    kind = "function" if isinstance(node, ast.FunctionDef) else "constant"
    return Entry(module, name, kind, path, summary_of(node))


def entries(root: Path) -> list[Entry]:
    """Returns all documented names, one module after the other.

    A public class that a documented class returns is documented, too, even if no module exports it.

    Raises:
        ApiError: A module exports a name that its sources do not define.
    """
    sources = Sources(root)
    found: dict[tuple[str, str], Entry] = {}
    for module in documented(root):
        for name in exported(source_of(root, module), module):
            definition = sources.find(module, name)
            if definition is None:
                raise ApiError(f"{module}.{name} is exported and not defined")
            where, node = definition
            found.setdefault((where, name), _entry(sources, module, name, f"{module}.{name}", where, node))
    waiting = list(found.items())
    while waiting:
        (where, _), owner = waiting.pop(0)
        for name in dict.fromkeys(name for member in owner.members for name in member.returns):
            definition = sources.find(where, name)
            if definition is None or name.startswith("_") or not isinstance(definition[1], ast.ClassDef):
                continue
            key = (definition[0], name)
            if key in found or not definition[0].startswith("kvpool."):
                continue
            found[key] = _entry(sources, owner.module, name, ".".join(key), *definition)
            # Insert at the front, because a class that this class returns belongs to the same module.
            waiting.insert(0, (key, found[key]))
    order = {module: at for at, module in enumerate(MODULES)}
    return sorted(found.values(), key=lambda one: order[one.module])


# --- pages ---


def _directive(path: str, **options: object) -> list[str]:
    chosen = {"show_root_toc_entry": "false", "show_root_heading": "false"} | options
    return [f"::: {path}", "    options:", *(f"      {name}: {value}" for name, value in chosen.items())]


def class_page(entry: Entry) -> str:
    """Returns the page of a class: its docstring, followed by its methods.

    Its heading is the same as that of mkdocstrings, because links in signatures lead to that heading.
    """
    head = UNSEARCHED if entry.module in NOT_SEARCHED else ""
    is_exported = entry.path == f"{entry.module}.{entry.name}"
    options = {
        "show_root_toc_entry": "true",
        "show_root_heading": "true",
        "show_root_full_path": str(is_exported).lower(),
        "heading_level": 1,
    }
    return head + "\n".join([*_directive(entry.path, **options), ""])


def module_page(module: str, all_entries: list[Entry]) -> str:
    """Returns the page of a module: its docstring, one line per class, and its functions."""
    own = [entry for entry in all_entries if entry.module == module]
    head = UNSEARCHED if module in NOT_SEARCHED else ""
    lines = [f"# {module}", "", f"{MODULES[module]}.", "", *_directive(module, members="[]")]
    classes = [entry for entry in own if entry.page]
    if classes:
        lines += ["", "## Classes", ""]
        lines += [f"- [`{one.name}`]({one.name}.md): {one.summary}" for one in classes]
    for one in own:
        if not one.page:
            lines += ["", f"## `{one.name}`", "", *_directive(one.path, heading_level=3)]
    return head + "\n".join([*lines, ""])


def names_page(all_entries: list[Entry]) -> str:
    """Returns the page that lists every method of the large classes, and of the classes that their
    properties return.
    """
    by_name = {entry.name: entry for entry in all_entries if entry.kind == "class"}
    lines = [
        "# All names of CacheManager and BlockPool",
        "",
        "Each name with the first line of its documentation. The link leads to the rest.",
    ]
    for listed in LISTED:
        entry = by_name[listed]
        lines += ["", f"## {listed}", "", *_name_lines(entry)]
        parts = [
            (member, by_name[name])
            for member in entry.members
            for name in member.returns
            if member.is_property and name in by_name
        ]
        for member, part in parts:
            if part.members and any(not one.is_property for one in part.members):
                lines += ["", f"### {listed}.{member.name}", "", f"{part.summary}", "", *_name_lines(part)]
    # Exclude the list from the search, so that a search for a name leads to the documentation of the
    # name.
    return UNSEARCHED + "\n".join([*lines, ""])


def _name_lines(entry: Entry) -> Iterator[str]:
    for member in sorted(entry.members, key=lambda one: one.name):
        summary = f": {member.summary}" if member.summary else ""
        call = member.name if member.is_property else f"{member.name}()"
        yield f"- [`{call}`]({entry.page}#{entry.path}.{member.name}){summary}"


def write_pages(folder: Path, root: Path) -> list[object]:
    """Writes all API pages into a folder ``api``. Returns the part of the site's navigation that lists
    them.
    """
    all_entries = entries(root)
    nav: list[object] = [{"All names": "api/names.md"}]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "names.md").write_text(names_page(all_entries), encoding="utf-8")
    for module in documented(root):
        topic = topic_of(module)
        (folder / topic).mkdir()
        (folder / topic / "index.md").write_text(module_page(module, all_entries), encoding="utf-8")
        below: list[object] = [f"api/{topic}/index.md"]
        for one in all_entries:
            if one.module == module and one.page:
                (folder / one.page).write_text(class_page(one), encoding="utf-8")
                below.append({one.name: f"api/{one.page}"})
        nav.append({module: below})
    return nav


def readable_stubs(source: Path, target: Path) -> None:
    """Copies the package for mkdocstrings, and changes the copy to the form that mkdocstrings can read.

    In the copy, reStructuredText roles are Markdown code, and examples are code blocks. The docstring
    of a class includes the parameters of its constructor.
    """
    for path in sorted(source.rglob("*.py*")):
        if path.suffix not in (".py", ".pyi") or "__pycache__" in path.parts:
            continue
        text = fenced(plain_code(path.read_text(encoding="utf-8")))
        if path.suffix == ".pyi":
            text = without_overloads(text)
            text = re.sub(r"def __new__\(\s*cls\b", "def __init__(self", text)
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")


def fenced(source: str) -> str:
    """Puts the examples of docstrings into code blocks. Otherwise Markdown would read ``>>>`` as
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
    """Keeps the first overload of each overloaded function, because it has the docs."""
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
