"""Writes the page of model configurations, ``docs/models.md``.

    python tools/models_page.py            # writes the page
    python tools/models_page.py --check    # compares the page with that text

The text of the page is in this folder, not in ``docs/``. Its tables come from the families of
``kvpool.models`` and the examples of the tests (``tests/model_configs.py``). So the tests compare each
number on the page.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Final

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvpool.models.dtypes import DTYPE_BYTES
from kvpool.models.fields import Fields
from kvpool.models.parts import WRAPPERS, text_part
from kvpool.models.table import FAMILIES, family_of
from tests.model_configs import EXAMPLES, total

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvpool.models.families import Family
    from tests.model_configs import Example, Sum

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "models.md"
DETAILS: Final = ROOT / "design" / "model-configurations.md"
#: Longer lines of the pages are wrapped at this column.
WIDTH: Final = 110


def page() -> str:
    parts = {
        "DTYPES": ", ".join(f"`{name}`" for name in DTYPE_BYTES),
        "FAMILIES": _items(_families()),
    }
    return _filled("models_page.md", parts)


def details() -> str:
    """Return the text of the page with the fields of each family and the size of each model."""
    parts = {
        "FAMILIES": _items(_fields()),
        "WRAPPERS": ", ".join(f"`{name}`" for name in sorted(WRAPPERS)),
        "MODELS": _items(_models()),
    }
    return _filled("models_details.md", parts)


def _filled(template: str, parts: dict[str, str]) -> str:
    """Replaces each upper-case name in a template by its text, and wraps long paragraphs."""
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    for name, value in parts.items():
        text = text.replace(name, value, 1)
    return "\n".join(
        line if len(line) <= WIDTH or line.startswith("|") else _wrapped(line) for line in text.split("\n")
    )


def _wrapped(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _items(lines: Iterator[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _text_of(example: Example) -> tuple[Fields, Family]:
    config, _ = text_part(Fields(example.config))
    return config, family_of(config)[0]


def _families() -> Iterator[str]:
    for family in FAMILIES:
        types = ", ".join(f"`{kind}`" for kind in family.types) or "none"
        yield f"**{family.name}**: {types}"


def _fields() -> Iterator[str]:
    for family in FAMILIES:
        used: dict[str, None] = {}
        for example in EXAMPLES:
            config, found = _text_of(example)
            if found is family:
                used |= dict.fromkeys(name for name in config.names() if name in family.layers.names)
        yield f"**{family.name}**: {', '.join(f'`{name}`' for name in used)}; defined in {_source(family)}"


def _source(family: Family) -> str:
    one = family.types[0] if len(family.types) == 1 else "<model_type>"
    return f"`{family.source.format(type=one)}`"


def _models() -> Iterator[str]:
    for example in EXAMPLES:
        windows = "; ".join(f"{span:,}: {_sum(products)}" for span, products in example.windows.items())
        kinds = {
            "full attention": _sum(example.full),
            "windows and chunks": windows,
            "states": _sum(example.state),
        }
        sizes = "; ".join(f"{kind} {size}" for kind, size in kinds.items() if size)
        _, family = _text_of(example)
        yield f"**{example.model}** ({family.name}): {sizes}"


def _sum(products: Sum) -> str:
    """Returns a sum of products as text, followed by its value."""
    if not products:
        return ""
    words = " + ".join(" x ".join(f"{factor:,}" for factor in one) for one in products)
    return (
        f"{words} = {total(products):,}"
        if len(products) > 1 or math.prod(products[0]) != products[0][0]
        else words
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the page and write nothing")
    pages = {PAGE: page(), DETAILS: details()}
    if not parser.parse_args().check:
        for path, text in pages.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path}: not what tools/models_page.py writes; run it", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
