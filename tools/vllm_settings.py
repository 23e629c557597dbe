#!/usr/bin/env python3
"""Lists all settings of vLLM, and whether each is part of the name of stored KV, for
design/vllm-settings.md.

    python tools/vllm_settings.py 0.32.0=vllm-0.32.0/vllm 0.33.0=vllm-0.33.0/vllm
    python tools/vllm_settings.py --check           # checks the installed vLLM

Reads the source of each version, without importing it. Without ``--check`` it writes the table. With
it, it prints the settings that the table lacks for these versions. Exit code 0: written, or nothing is
missing. 1: something is missing. 2: bad usage.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import importlib.util
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from kvpool.integrations.vllm.offload import excluded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "design" / "vllm-settings.md"
#: The lines of the page that mark the beginning and the end of the table.
MARKS: Final = ("<!-- settings -->", "<!-- end of settings -->")
#: For each class of vLLM's configuration and each of its fields, the versions that have the field.
Settings = dict[str, dict[str, list[str]]]


def fields_of(package: Path) -> dict[str, tuple[list[str], set[str]]]:
    """Returns the fields of each class of vLLM's configuration, and the class names in the types of
    these fields.
    """
    found: dict[str, tuple[list[str], set[str]]] = {}
    for file in sorted((package / "config").glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                names, types = found.setdefault(node.name, ([], set()))
                for one in node.body:
                    if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
                        continue
                    text = ast.unparse(one.annotation)
                    if "ClassVar" not in text and "InitVar" not in text:
                        names.append(one.target.id)
                        if excluded_because(node.name, one.target.id) is None:
                            types.update(re.findall(r"\w+", text))
    return found


def excluded_because(kind: str, name: str) -> str | None:
    """Returns the reason why a field is not part of the name of stored KV, or None if it is part of it."""
    tables = [excluded.FIELDS.get(kind, {}), *([excluded.TEXT_ONLY] if kind == "ModelConfig" else [])]
    return next((why for table in tables for names, why in table.items() if name in names.split()), None)


def settings_of(sources: Mapping[str, Path]) -> Settings:
    """Returns the fields of ``VllmConfig``, and of all classes that can be reached through fields that
    are part of the name of stored KV.
    """
    settings: Settings = {}
    for version, package in sources.items():
        classes = fields_of(package)
        reached, left = {"VllmConfig"}, ["VllmConfig"]
        while left:
            for name in classes[left.pop()][1] & classes.keys() - reached:
                reached.add(name)
                left.append(name)
        for kind in sorted(reached):
            for name in classes[kind][0]:
                settings.setdefault(kind, {}).setdefault(name, []).append(version)
    return settings


def table(settings: Settings, versions: Sequence[str]) -> str:
    lines = [f"vLLM {', '.join(versions)}.", ""]
    for kind in sorted(settings, key=lambda kind: (kind != "VllmConfig", kind)):
        reasons: dict[str, list[str]] = {}
        counting = []
        for name, known in settings[kind].items():
            shown = f"`{name}`" if len(known) == len(versions) else f"`{name}` ({', '.join(known)})"
            why = excluded_because(kind, name)
            counting.append(shown) if why is None else reasons.setdefault(why, []).append(shown)
        lines += [f"### {kind}", ""]
        if counting:
            lines += [wrap(f"In the name: {', '.join(counting)}."), ""]
        if reasons:
            lines += ["Not in the name:", ""]
            lines += [wrap(f"- {', '.join(names)}: {why}.", "  ") for why, names in reasons.items()]
            lines.append("")
    for title, entries in (
        ("Keys of the model's `config.json`, at any depth", excluded.HF_CONFIG),
        ("Environment variables that begin with `VLLM_`", excluded.ENVIRONMENT),
    ):
        lines += [f"### {title}", "", "In the name: all others. Not in the name:", ""]
        for names, why in entries.items():
            lines.append(wrap(f"- {', '.join(f'`{name}`' for name in names.split())}: {why}.", "  "))
        lines.append("")
    return "\n".join(lines)


def wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 155, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def listed(page: str) -> dict[str, dict[str, str | None]]:
    """Reads the page. Returns for each class and setting the reason why it is not part of the name of
    stored KV. The reason is None if it is part of the name.
    """
    found: dict[str, dict[str, str | None]] = {}
    body = page.partition(MARKS[0])[2].partition(MARKS[1])[0]
    for section in re.split(r"^### ", body, flags=re.MULTILINE)[1:]:
        kind, _, rest = section.partition("\n")
        entries: dict[str, str | None] = {}
        for paragraph in re.split(r"\n\n|\n(?=- )", rest):
            text = " ".join(paragraph.split())
            excluded_here = re.fullmatch(r"- ((?:`[^`]+`(?: \([\d., ]+\))?(?:, )?)+): (.+)\.", text)
            names, why = excluded_here.groups() if excluded_here else (text, None)
            entries |= dict.fromkeys(re.findall(r"`([^`]+)`", names), why)
        found[kind] = entries
    return found


def missing(settings: Settings, page: str) -> list[str]:
    """Returns the settings that the page lacks, and those for which it has another reason."""
    documented_reasons = listed(page)
    problems = []
    for kind, fields in settings.items():
        for name in fields:
            if name not in documented_reasons.get(kind, {}):
                problems.append(f"{kind}.{name} is not listed")
            elif documented_reasons[kind][name] != excluded_because(kind, name):
                problems.append(f"{kind}.{name}: the page gives another reason")
    return problems


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "source", nargs="*", help="a version, and the folder of its package: 0.32.0=path/to/vllm"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; print what the table lacks")
    options = parser.parse_args(argv)
    sources = {version: Path(path) for version, _, path in (one.partition("=") for one in options.source)}
    installed = importlib.util.find_spec("vllm") if options.check and not sources else None
    if installed is not None and installed.origin is not None:
        sources = {importlib.metadata.version("vllm"): Path(installed.origin).parent}
    if not sources:
        parser.error("name a version and its folder, or install vLLM and use --check")
    for version, path in sources.items():
        if not (path / "config" / "vllm.py").is_file():
            parser.error(f"{version}={path}: the folder holds no config/vllm.py")
    settings = settings_of(sources)
    page = PAGE.read_text(encoding="utf-8")
    console = Console(stderr=True)
    if options.check:
        problems = missing(settings, page)
        for one in problems:
            console.print(f"{PAGE.name}: {one}", style="red", markup=False)
        count = sum(map(len, settings.values()))
        console.print(f"{count} settings of vLLM {', '.join(sources)}, {len(problems)} missing")
        return 1 if problems else 0
    head, _, rest = page.partition(MARKS[0])
    tail = rest.partition(MARKS[1])[2]
    PAGE.write_text(
        f"{head}{MARKS[0]}\n\n{table(settings, list(sources))}\n{MARKS[1]}{tail}", encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
