"""Finds import cycles among the files of the Rust crates and of the Python package.

A Rust file depends on each file that defines a name that it uses. The names come from ``use``
declarations, and from paths that begin with ``crate``, ``super`` or a module of the file. A name that a
file re-exports belongs to the file that defines it. Comments and unit tests do not count. An ``impl``
of a type that another file defines does not count either, because all files of one type count as one.

A module of the package is a file. It depends on the modules that its import statements load when the
module itself is imported. Imports under ``TYPE_CHECKING`` and in functions do not count.

    python tools/cycles.py            # prints each cycle and its names; fails if there are more than --most
"""

import argparse
import ast
import re
import sys
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
Graph = dict[str, dict[str, set[str]]]
Module = tuple[str, ...]

VISIBLE = r"(?:pub(?:\([^)]*\))?\s+)?"
USE = re.compile(rf"^\s*({VISIBLE})use\s+([^;]+);", re.MULTILINE)
PATH = re.compile(r"\b((?:crate|super)(?:::\w+)+)")
IMPL = re.compile(r"^impl(?:<[^{]*?>)?\s+(?:super::|crate::)?(\w+)(?:<[^{]*>)?\s*\{", re.MULTILINE)
TYPE = re.compile(rf"^\s*{VISIBLE}(?:struct|enum|union)\s+(\w+)", re.MULTILINE)
TESTS = re.compile(r"#\[cfg\((?:all\()?test[^\n]*\n(?:\s*#\[[^\n]*\n)*\s*mod ")


@dataclass
class Source:
    """A file of a crate: its code, the names that it re-exports, and the paths that it uses."""

    code: str
    exports: dict[str, str] = field(default_factory=dict)
    uses: list[str] = field(default_factory=list)


def leaves(tree: str) -> list[str]:
    """Returns the paths of a ``use`` declaration."""
    tree = tree.strip()
    braces = re.fullmatch(r"((?:\w+::)*)\{(.*)\}", tree, re.DOTALL)
    if braces is None:
        return [tree] if tree else []
    found, part, depth = [], "", 0
    for character in f"{braces[2]},":
        if character == "," and depth == 0:
            found += leaves(part)
            part = ""
            continue
        depth += (character == "{") - (character == "}")
        part += character
    return [braces[1] + path for path in found]


def sources(folder: Path) -> dict[Module, Source]:
    """Returns the files of a crate by the path of their module."""
    found = {}
    for path in sorted(folder.rglob("*.rs")):
        module = path.relative_to(folder).with_suffix("").parts
        module = module[:-1] if module[-1] in {"mod", "lib", "main"} else module
        code = TESTS.split(path.read_text())[0]
        code = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith("//"))
        source = found[module] = Source(USE.sub("", code))
        for visible, tree in USE.findall(code):
            for leaf in leaves(" ".join(tree.split())):
                used, _, alias = leaf.partition(" as ")
                if visible:
                    source.exports[alias or used.rpartition("::")[2]] = used
                else:
                    source.uses.append(used)
    return found


def resolve(
    modules: dict[Module, Source], at: Module, path: str, depth: int = 0
) -> tuple[Module, str] | None:
    """Returns the file that defines the item of a path, and the name of the item."""
    first, *names = path.split("::")
    if first == "crate":
        at = ()
    elif first == "super":
        at = at[:-1]
        while names and names[0] == "super":
            at, names = at[:-1], names[1:]
    elif first != "self":
        if (*at, first) not in modules:
            return None
        at = (*at, first)
    while names and (*at, names[0]) in modules:
        at, names = (*at, names[0]), names[1:]
    further = modules[at].exports.get(names[0]) if names and at in modules and depth < len(modules) else None
    if further and (found := resolve(modules, at, "::".join([further, *names[1:]]), depth + 1)):
        return found
    return at, names[0] if names else ""


def rust_files(folder: Path) -> Graph:
    """Returns for each file of a crate the files that it depends on, and the names that it uses from
    each.
    """
    modules = sources(folder)
    types = {module: set(TYPE.findall(source.code)) for module, source in modules.items()}
    graph: Graph = {}
    for module, source in modules.items():
        needs = graph.setdefault("/".join(module), {})
        children = [other[-1] for other in modules if other and other[:-1] == module]
        paths = [*source.uses, *PATH.findall(source.code)]
        paths += (
            re.findall(rf"(?<![\w:])((?:{'|'.join(children)})(?:::\w+)+)", source.code) if children else []
        )
        implemented = set(IMPL.findall(source.code))
        for path in paths:
            found = resolve(modules, module, path)
            if found and found[0] not in {module, ()} and not implemented & types[found[0]]:
                needs.setdefault("/".join(found[0]), set()).add(found[1] or path)
    return graph


def python_modules(package: Path) -> Graph:
    """Returns for each module of a package the modules that its import loads, and the names that it
    uses.
    """
    names = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: Graph = {name: {} for name in names}
    for name, path in names.items():
        for module, what in imports(ast.parse(path.read_text()).body):
            # An imported name may itself be a module of the package.
            needed = f"{module}.{what}" if f"{module}.{what}" in names else module
            # The ``__init__`` of a module's own package is imported before the module, so it does not
            # count as a dependency.
            if needed in names and needed != name and not name.startswith(f"{needed}."):
                graph[name].setdefault(needed, set()).add(what or needed)
    return graph


def imports(body: list[ast.stmt]) -> list[tuple[str, str]]:
    """Returns the modules and the names that the import statements of a module load when they run."""
    found: list[tuple[str, str]] = []
    for node in body:
        match node:
            case ast.Import(names=aliases):
                found += [(alias.name, "") for alias in aliases]
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                found += [(module, alias.name) for alias in aliases]
            case ast.If(test=test) if "TYPE_CHECKING" not in ast.unparse(test):
                found += imports([*node.body, *node.orelse])
            case ast.Try():
                found += imports([*node.body, *node.orelse, *node.finalbody])
                found += [name for handler in node.handlers for name in imports(handler.body)]
            case _:
                pass
    return found


def cycles(graph: Graph) -> list[list[str]]:
    """Returns one cycle for each group of files that depend on each other. After each cycle, removes
    one of its edges and searches again.
    """
    graph = {name: dict(needed) for name, needed in graph.items()}
    found = []
    while True:
        try:
            list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            # The sorter's cycle lists each module before the module that depends on it. Reverse the
            # order.
            cycle: list[str] = error.args[1][::-1]
            found.append(cycle)
            del graph[cycle[0]][cycle[1]]
        else:
            return found


def main() -> int:
    """Prints the cycles."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--most", type=int, default=0, help="largest number of import cycles that is accepted (default 0)"
    )
    most = parser.parse_args().most
    graphs = {
        str(folder.parent.relative_to(ROOT)): rust_files(folder) for folder in sorted(ROOT.glob("rust/*/src"))
    }
    graphs["python/kvpool"] = python_modules(ROOT / "python" / "kvpool")
    count = 0
    for place, graph in graphs.items():
        found = cycles(graph)
        count += len(found)
        for cycle in found:
            print(f"{place}: {' needs '.join(cycle)}")
            for needing, needed in pairwise(cycle):
                print(f"    {needing} -> {needed}: {', '.join(sorted(graph[needing][needed]))}")
    print(f"{count} import cycles in {sum(map(len, graphs.values()))} files")
    return int(count > most)


if __name__ == "__main__":
    sys.exit(main())
