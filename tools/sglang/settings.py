"""Writes docs/sglang-settings.md: every setting of SGLang 0.5.23, and why it is part of the name of a page or not.

    python -m tools.sglang.settings > docs/sglang-settings.md

The settings that are not part of the name are in ``kvpool.integrations.sglang.unrelated``. ``RELATED`` has the others,
and only the page needs them. ``tools.sglang.identity`` compares both with SGLang.
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
    for reason, names in tomllib.loads(Path(__file__).with_name("related.toml").read_text(encoding="utf-8")).items()
    for name in names.split()
}

_HEAD: Final = """# What names a page of SGLang

`make sglang-hicache-check` compares this page with SGLang 0.5.23, and `python -m tools.sglang.settings` writes it.
[kvpool beneath SGLang's HiCache](sglang.md#whose-bytes-they-are) says how the name is used.

A stored page is named by SGLang's whole configuration, except the settings that its bytes do not depend on. A setting
that a later SGLang adds is part of the name, so it is a cold start. A string that names a file counts by the file's
content.

These are part of the name besides the settings below:

- the version of SGLang;
- the commit or the content of the weights, and of the draft's weights;
- the content of each adapter of `--lora-paths`, by the id that SGLang gives it;
- the model's configuration after all overrides, except {model};
- environment variables that begin with `SGLANG_`, except those at the end of this page;
- the host pool: its kind, type, layout, strides, page size, layers and heads;
- the rank: its place in tensor, pipeline and context parallelism.

Python code can look up a reason:

```python
from kvpool.integrations.sglang.unrelated import SETTINGS

print(SETTINGS["schedule_policy"])
print("load_format" in SETTINGS)
```

```text
orders requests; the KV of a token does not depend on other requests
False
```
"""


def page() -> str:
    """Returns the text of the page."""
    rows = {name: (False, reason) for name, reason in unrelated.SETTINGS.items()}
    rows |= {name: (True, reason) for name, reason in RELATED.items()}
    model = ", ".join(f"`{name}`" for name in sorted(unrelated.MODEL_CONFIG))
    lines = [
        _HEAD.format(model=model),
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
