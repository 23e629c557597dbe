"""Writes docs/sglang-settings.md: every setting of SGLang 0.5.23, and why it is part of a page's name
or not.

    python -m tools.sglang.settings > docs/sglang-settings.md

The settings that are not part of the name are in ``kvpool.integrations.sglang.unrelated``. ``RELATED``
contains the others, which only the page needs. ``tools.sglang.identity`` compares both with SGLang.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Final

from kvpool.integrations.sglang import unrelated

__all__ = ["RELATED", "page"]


#: Settings that are part of the name, and why.
RELATED: Final = {
    name: reason
    for reason, names in tomllib.loads(
        Path(__file__).with_name("related.toml").read_text(encoding="utf-8")
    ).items()
    for name in names.split()
}


def page() -> str:
    """Returns the text of the page."""
    rows = {name: (False, reason) for name, reason in unrelated.SETTINGS.items()}
    rows |= {name: (True, reason) for name, reason in RELATED.items()}
    model = ", ".join(f"`{name}`" for name in sorted(unrelated.MODEL_CONFIG))
    lines = [
        Path(__file__).with_suffix(".md").read_text(encoding="utf-8").format(model=model),
        "## Settings of the server",
        "",
        "| setting | in the name | why |",
        "|---|---|---|",
        *(
            f"| `{name}` | {'yes' if inside else 'no'} | {reason} |"
            for name, (inside, reason) in sorted(rows.items(), key=lambda row: row[0].lstrip("_"))
        ),
        "",
        "## Environment variables that are not in the name",
        "",
        "| variable | why |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in sorted(unrelated.ENVIRONMENT.items())),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
