"""Writes design/sglang-settings.md: every setting of SGLang 0.5.23, and the reason why it is part of a
page's name or not.

    python -m tools.sglang.settings > design/sglang-settings.md

The settings that are not part of the name are in ``kvpool.integrations.sglang.unrelated``. ``RELATED``
contains the others, which only the page needs. ``tools.sglang.identity`` compares both with SGLang.
"""

from __future__ import annotations

import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Final

from kvpool.integrations.sglang import unrelated

__all__ = ["RELATED", "page"]

#: Longer lines of the page are wrapped at this column.
WIDTH: Final = 120

#: Settings that are part of the name of stored pages, each with the reason.
RELATED: Final = {
    name: reason
    for reason, names in tomllib.loads(
        Path(__file__).with_name("related.toml").read_text(encoding="utf-8")
    ).items()
    for name in names.split()
}


def page() -> str:
    inside: dict[str, list[str]] = {}
    outside: dict[str, list[str]] = {}
    for name, reason in sorted(RELATED.items(), key=lambda row: row[0].lstrip("_")):
        inside.setdefault(reason, []).append(name)
    for name, reason in sorted(unrelated.SETTINGS.items(), key=lambda row: row[0].lstrip("_")):
        outside.setdefault(reason, []).append(name)
    variables: dict[str, list[str]] = {}
    for name, reason in sorted(unrelated.ENVIRONMENT.items()):
        variables.setdefault(reason, []).append(name)
    model = ", ".join(f"`{name}`" for name in sorted(unrelated.MODEL_CONFIG))
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8").format(model=model)
    lines = [line if len(line) <= WIDTH else _wrapped(line) for line in text.splitlines()]
    for title, reasons in (
        ("Settings of the server that are in the name", inside),
        ("Settings of the server that are not in the name", outside),
        ("Environment variables that are not in the name", variables),
    ):
        lines += ["", f"## {title}", ""]
        for reason, names in sorted(reasons.items()):
            shown = ", ".join(f"`{name}`" for name in names)
            lines.append(_wrapped(f"- {shown}: {reason}."))
    return "\n".join(lines) + "\n"


def _wrapped(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    sys.stdout.write(page())
