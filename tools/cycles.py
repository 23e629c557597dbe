"""Import cycles: modules of the Rust crates and of the Python package that need each other.

A module of a crate is a file or a folder right below ``src``; what it needs is what it names with ``crate::``, comments
and its own unit tests aside. A module of the package is a file; what it needs is what it imports when it is imported
itself: imports under ``TYPE_CHECKING`` and in functions are not counted.

    python tools/cycles.py            # prints each cycle, with the names that tie it; fails if there is one
    python tools/cycles.py --verbose  # and the order of the modules, from those that need nothing
"""

import argparse
import ast
import re
import sys
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
CRATES = sorted(path.parent.name for path in ROOT.glob("rust/*/src"))
Graph = dict[str, dict[str, set[str]]]

NAMED = re.compile(r"\bcrate::(\w+)(?:::(\w+|\{[^}]*\}))?")


def rust_modules(source: Path) -> Graph:
    """What each module of a crate names of the others."""
    modules = {path.stem: [path] for path in source.glob("*.rs") if path.stem not in {"lib", "main"}}
    modules |= {
        path.name: sorted(path.rglob("*.rs")) for path in source.iterdir() if path.is_dir() and path.name != "bin"
    }
    exported = exports(source / "lib.rs", modules)
    graph: Graph = {module: {} for module in modules}
    for module, paths in modules.items():
        for path in paths:
            code = path.read_text().split("#[cfg(test)]\nmod tests")[0]
            code = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith("//"))
            for name, what in NAMED.findall(code):
                needed = name if name in modules else exported.get(name)
                if needed and needed != module:
                    graph[module].setdefault(needed, set()).add(what or name)
    return graph


def exports(lib: Path, modules: dict[str, list[Path]]) -> dict[str, str]:
    """The module of each name that the crate's root exports."""
    found: dict[str, str] = {}
    for module, names in re.findall(
        r"pub use (\w+)::(?:\w+::)*(\w+|\{[^}]*\});", lib.read_text() if lib.exists() else ""
    ):
        if module in modules:
            found |= dict.fromkeys(re.findall(r"\w+", names), module)
    return found


def python_modules(package: Path) -> Graph:
    """What each module of a package imports from the others when it is imported."""
    names = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: Graph = {name: {} for name in names}
    for name, path in names.items():
        for module, what in imports(ast.parse(path.read_text()).body):
            # A name of a package may be a module of it.
            needed = f"{module}.{what}" if f"{module}.{what}" in names else module
            # A package's own __init__ is imported before its modules, and gathers them.
            if needed in names and needed != name and not name.startswith(f"{needed}."):
                graph[name].setdefault(needed, set()).add(what or needed)
    return graph


def imports(body: list[ast.stmt]) -> list[tuple[str, str]]:
    """Modules and names that the statements of a module import when they run."""
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
    """One cycle of each knot of modules, tied up by cutting its last edge."""
    graph = {name: dict(needed) for name, needed in graph.items()}
    found = []
    while True:
        try:
            list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            # The sorter names each module before one that needs it.
            cycle: list[str] = error.args[1][::-1]
            found.append(cycle)
            del graph[cycle[0]][cycle[1]]
        else:
            return found


def main() -> int:
    """Prints the cycles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="print the modules, from those that need nothing")
    arguments = parser.parse_args()
    graphs = {f"rust/{crate}": rust_modules(ROOT / "rust" / crate / "src") for crate in CRATES}
    graphs["python/kvpool"] = python_modules(ROOT / "python" / "kvpool")
    count = 0
    for place, graph in graphs.items():
        found = cycles(graph)
        count += len(found)
        for cycle in found:
            print(f"{place}: {' needs '.join(cycle)}")
            for needing, needed in pairwise(cycle):
                print(f"    {needing} -> {needed}: {', '.join(sorted(graph[needing][needed]))}")
        if arguments.verbose and not found:
            print(f"{place}: {', '.join(TopologicalSorter(graph).static_order())}")
    print(f"{count} cycles in {sum(map(len, graphs.values()))} modules")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
