"""The page of model configurations, ``docs/models.md``.

    python tools/models_page.py            # writes the page
    python tools/models_page.py --check    # the page is what this writes

This file owns the text of the page. Its tables come from the families of ``kvpool.models`` and the
examples of the tests (``tests/model_configs.py``). So the tests compare each number on the page.
"""

from __future__ import annotations

import argparse
import math
import sys
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

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "models.md"


def page() -> str:
    """Write the text of the page."""
    parts = {
        "DTYPES": ", ".join(f"`{name}`" for name in DTYPE_BYTES),
        "FAMILIES": "\n".join(_families()),
        "WRAPPERS": ", ".join(f"`{name}`" for name in sorted(WRAPPERS)),
        "MODELS": "\n".join(_models()),
    }
    text = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    for name, value in parts.items():
        text = text.replace(name, value, 1)
    return text


def _text_of(example: Example) -> tuple[Fields, Family]:
    config, _ = text_part(Fields(example.config))
    return config, family_of(config)[0]


def _families() -> Iterator[str]:
    yield "| family | `model_type` | fields | defined in |"
    yield "|---|---|---|---|"
    for family in FAMILIES:
        used: dict[str, None] = {}
        for example in EXAMPLES:
            config, found = _text_of(example)
            if found is family:
                used |= dict.fromkeys(name for name in config.names() if name in family.layers.names)
        types = ", ".join(f"`{kind}`" for kind in family.types) or "none"
        yield f"| {family.name} | {types} | {', '.join(f'`{name}`' for name in used)} | {_source(family)} |"


def _source(family: Family) -> str:
    one = family.types[0] if len(family.types) == 1 else "<model_type>"
    return f"`{family.source.format(type=one)}`"


def _models() -> Iterator[str]:
    yield "| model | family | full attention | windows and chunks | states |"
    yield "|---|---|---|---|---|"
    for example in EXAMPLES:
        windows = "; ".join(f"{span:,}: {_sum(products)}" for span, products in example.windows.items())
        _, family = _text_of(example)
        yield (
            f"| {example.model} | {family.name} | {_sum(example.full)} | {windows} | {_sum(example.state)} |"
        )


def _sum(products: Sum) -> str:
    """Formats a sum of products and its value."""
    if not products:
        return ""
    words = " + ".join(" x ".join(f"{factor:,}" for factor in one) for one in products)
    return (
        f"{words} = {total(products):,}"
        if len(products) > 1 or math.prod(products[0]) != products[0][0]
        else words
    )


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the page and write nothing")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE}: not what tools/models_page.py writes; run it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
