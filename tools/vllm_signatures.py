#!/usr/bin/env python3
"""Records the names and signatures of vLLM that kvpool's plug-in relies on, and compares them with
vLLM's sources.

    python tools/vllm_signatures.py --record SOURCE SOURCE ...  # write a table of these versions
    python tools/vllm_signatures.py --check SOURCE              # compare the table with the sources of a vLLM
    python tools/vllm_signatures.py --installed                 # compare it with the vLLM of this Python

SOURCE is a folder with vLLM's sources: an unpacked source distribution, or the folder of an installed
package. It is not imported. So --record and --check also work for a vLLM that cannot be installed here.
--installed imports vLLM, and makes the same comparison as the plug-in at its start.
tools/vllm/wanted.toml lists the names to record. The table is python/kvpool/data/vllm_signatures.json.

Exit code 0: done, or no difference. 1: differences, which are printed. 2: bad usage, or no vLLM found.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from kvpool.integrations.vllm import gate, signatures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

TABLE: Final = signatures.FILE
Recorded: TypeAlias = dict[str, dict[str, str]]  # module -> name -> form

#: The names that the plug-in relies on, by level and by module of vLLM.
WANTED: Final[Mapping[str, Mapping[str, str]]] = tomllib.loads(
    (Path(__file__).parent / "vllm" / "wanted.toml").read_text(encoding="utf-8")
)


class SourceError(Exception):
    """There is no vLLM, or it is incomplete; the message states what is missing."""


# --- Reading sources


class Module:
    """The parsed source of one module of vLLM."""

    def __init__(self, path: Path) -> None:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        except (OSError, SyntaxError, ValueError) as error:
            raise SourceError(f"{path}: {error}") from error
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.imports = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and not node.level
            for alias in node.names
        }
        targets = (target for node in tree.body for target in assigned(node))
        self.variables = {target.id for target in targets if isinstance(target, ast.Name)}

    def lineage(self, name: str) -> Iterator[ast.ClassDef]:
        """Yields a class, followed by the classes of this module from which it derives, nearest first."""
        node = self.classes.get(name)
        if node is not None:
            yield node
            for base in node.bases:
                if isinstance(base, ast.Name):
                    yield from self.lineage(base.id)

    def method(self, owner: str, name: str) -> ast.FunctionDef | None:
        for node in self.lineage(owner):
            found = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == name]
            if found:
                return found[-1]  # the earlier ones are overloads
        return None

    def public_methods(self, owner: str) -> list[str]:
        bodies = [
            one for node in self.lineage(owner) for one in node.body if isinstance(one, ast.FunctionDef)
        ]
        return sorted({one.name for one in bodies if not one.name.startswith("_")})

    def has_attribute(self, owner: str, name: str) -> bool:
        for node in self.lineage(owner):
            on_class = (target for one in node.body for target in assigned(one))
            if any(isinstance(target, ast.Name) and target.id == name for target in on_class):
                return True
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef))
            for one in (inner for method in methods for inner in ast.walk(method)):
                if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and one.attr == name:
                    return True
        return False

    def form(self, name: str) -> str | None:
        """Returns the text that the table has for a name, for example the signature of a function.
        Returns None if the module lacks the name.
        """
        owner, _, attribute = name.rpartition(".")
        if not owner:
            if name in self.functions:
                return gate.canonical(signature_of(self.functions[name].args))
            if name in self.classes:
                return gate.canonical(self.call_of(name))
            if name in self.imports:
                return f"is {self.imports[name]}"
            return "attribute" if name in self.variables else None
        if owner not in self.classes:
            return None
        if attribute == "*":
            return " ".join(self.public_methods(owner))
        method = self.method(owner, attribute)
        if method is None:
            return "attribute" if self.has_attribute(owner, attribute) else None
        decorators = {ast.unparse(one) for one in method.decorator_list}
        if decorators & {"property", "cached_property", "functools.cached_property"}:
            return "property"
        kind = next((f"{one} " for one in ("classmethod", "staticmethod") if one in decorators), "")
        return kind + gate.canonical(signature_of(method.args))

    def call_of(self, name: str) -> inspect.Signature:
        """Returns the signature with which a class is called. It is that of ``__init__``, or follows
        from the fields of a dataclass or a struct.
        """
        init = self.method(name, "__init__")
        if init is not None:
            parameters = list(signature_of(init.args).parameters.values())
            return inspect.Signature(parameters[1:])
        fields: dict[str, inspect.Parameter] = {}
        for node in reversed(list(self.lineage(name))):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    fields[field.target.id] = parameter_of(field.target.id, field.value)
        return inspect.Signature(sorted(fields.values(), key=lambda one: one.kind))


def assigned(node: ast.stmt) -> Iterable[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def parameter_of(name: str, value: ast.expr | None) -> inspect.Parameter:
    """Returns the constructor's parameter that a field of a dataclass defines."""
    kinds = inspect.Parameter
    kind: inspect._ParameterKind = kinds.POSITIONAL_OR_KEYWORD
    default = value is not None
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field":
        options = {option.arg: ast.unparse(option.value) for option in value.keywords}
        default = bool({"default", "default_factory"} & options.keys())
        if options.get("kw_only") == "True":
            kind = kinds.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=... if default else kinds.empty)


def signature_of(arguments: ast.arguments) -> inspect.Signature:
    """Returns the signature of a function from its source. Every default is replaced by ``...``."""
    kinds = inspect.Parameter
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    parameters = [
        inspect.Parameter(
            one.arg,
            kinds.POSITIONAL_ONLY if index < len(arguments.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD,
            default=... if index >= required else kinds.empty,
        )
        for index, one in enumerate(positional)
    ]
    if arguments.vararg:
        parameters.append(inspect.Parameter(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(
            inspect.Parameter(one.arg, kinds.KEYWORD_ONLY, default=... if default else kinds.empty)
        )
    if arguments.kwarg:
        parameters.append(inspect.Parameter(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)


class Source:
    """The sources of one version of vLLM."""

    def __init__(self, folder: Path) -> None:
        inner = folder / "vllm"
        self.package = inner if (inner / "__init__.py").exists() else folder
        self.modules: dict[str, Module] = {}

    def version(self) -> str:
        """Returns the version, from the files that a build writes."""
        for name in ("_version.py", "../PKG-INFO"):
            path = self.package / name
            if path.is_file():
                pattern = r"^(?:__version__.*= *['\"]|Version: )([^'\"\s]+)"
                found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
                if found:
                    return found[1]
        raise SourceError(
            f"{self.package}: not the sources of a released vLLM: neither _version.py nor PKG-INFO"
        )

    def series(self) -> str:
        return ".".join(self.version().split(".")[:2])

    def module(self, name: str) -> Module:
        if name not in self.modules:
            relative = name.removeprefix("vllm.").replace(".", "/")
            self.modules[name] = Module(self.package / f"{relative}.py")
        return self.modules[name]

    def recorded(self, wanted: Mapping[str, str]) -> Recorded:
        """Returns the table of the wanted names for these sources. Names that the sources lack are left
        out.
        """
        tables: Recorded = {}
        for module_name, names in wanted.items():
            module = self.module(module_name)
            table = tables.setdefault(module_name, {})
            for name in names.split():
                form = module.form(name)
                if form is None:
                    continue
                table[name] = form
                if name.endswith(".*"):
                    for method in form.split():
                        table[f"{name[:-1]}{method}"] = module.form(f"{name[:-1]}{method}") or ""
        return tables


def table_of(tables: dict[str, Recorded]) -> dict[str, dict[str, str | dict[str, str]]]:
    """Merges the tables of several versions of vLLM into one table of a level."""
    merged: dict[str, dict[str, str | dict[str, str]]] = {}
    for module in dict.fromkeys(module for one in tables.values() for module in one):
        newest_first = [one.get(module, {}) for one in reversed(tables.values())]
        for entry in dict.fromkeys(entry for one in newest_first for entry in one):
            forms = {
                version: one[module][entry] for version, one in tables.items() if entry in one.get(module, {})
            }
            same = len(forms) == len(tables) and len(set(forms.values())) == 1
            merged.setdefault(module, {})[entry] = next(iter(forms.values())) if same else forms
    return merged


def record(sources: Sequence[Source], target: Path) -> None:
    found: dict[str, Source] = {}
    for source in sources:
        if source.series() in found:
            raise SourceError(f"{source.package}: a second {source.series()}")
        found[source.series()] = source
    found = dict(sorted(found.items(), key=lambda one: [int(part) for part in one[0].split(".")]))
    for module, names in ((module, names) for wanted in WANTED.values() for module, names in wanted.items()):
        forms = {
            name: [source.module(module).form(name) for source in found.values()] for name in names.split()
        }
        for name, one in forms.items():
            if not any(form is not None for form in one):
                raise SourceError(f"{module}.{name}: wanted, but in none of {', '.join(found)}")
    levels = {
        level: table_of({series: one.recorded(wanted) for series, one in found.items()})
        for level, wanted in WANTED.items()
    }
    text = json.dumps({"versions": list(found), **levels}, indent=1) + "\n"
    target.write_text(text, encoding="utf-8")
    print(f"{target}: {text.count(chr(10))} lines, {', '.join(one.version() for one in found.values())}")


# --- Comparing


def lines_of(table: Mapping[str, Mapping[str, str]]) -> list[str]:
    return sorted(
        f"{module}.{name}  {form}" for module, names in table.items() for name, form in names.items()
    )


def of_series(table: signatures.Table, series: str) -> Recorded:
    """Returns the part of the committed table that applies to one series of vLLM's versions."""
    return {
        module: {
            name: form
            for name, forms in names.items()
            if (form := forms if isinstance(forms, str) else forms.get(series, ""))
        }
        for module, names in table.items()
    }


def check(source: Source) -> int:
    version = source.version()
    series = gate.series_of(version) or signatures.VERSIONS[-1]
    print(f"vLLM {version}, compared with the table's {series}")
    count = 0
    for level, table in (("pool", signatures.POOL), ("manager", signatures.MANAGER)):
        names = (f"{level}, table {series}", f"{level}, sources {version}")
        was, now = lines_of(of_series(table, series)), lines_of(source.recorded(WANTED[level]))
        lines = list(difflib.unified_diff(was, now, *names, lineterm="", n=0))
        count += len(lines)
        for line in lines:
            print(line)
    if gate.series_of(version) is None:
        print(f"vLLM {version} is not in the table, which has {', '.join(signatures.VERSIONS)}")
        return 1
    print("different" if count else "no difference")
    return int(count > 0)


def check_installed() -> int:
    version = gate.installed_version()
    if version is None:
        raise SourceError(f"vLLM cannot be imported by {sys.executable}")
    series = gate.series_of(version) or signatures.VERSIONS[-1]
    failed = False
    for level in gate.LEVELS:
        reported = gate.check(level)
        failed |= bool(reported)
        found = f"{len(reported)} differences" if reported else "no difference"
        print(f"vLLM {version}, level {level}: {found}")
        differences = gate.differences(level, series) if reported else []
        if reported != [str(one) for one in differences]:  # the version, or vLLM as a whole
            print(*reported, f"compared with {series}:", sep="\n")
        for one in differences:
            print(f"  {one.name}\n  - {one.expected}\n  + {one.found}")
    return int(failed)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--record", type=Path, nargs="+", metavar="SOURCE", help="write the table again, from these vLLMs"
    )
    what.add_argument(
        "--check", type=Path, metavar="SOURCE", help="compare the table with the sources of a vLLM"
    )
    what.add_argument(
        "--installed", action="store_true", help="compare the table with the vLLM of this Python"
    )
    parser.add_argument(
        "--table", type=Path, default=TABLE, help="with --record: where to (default: the package's)"
    )
    options = parser.parse_args(argv)
    try:
        if options.record:
            record([Source(folder) for folder in options.record], options.table)
            return 0
        return check_installed() if options.installed else check(Source(options.check))
    except SourceError as error:
        print(f"vllm_signatures: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
