"""The page of model configurations, ``docs/models.md``.

    python tools/models_page.py            # writes the page
    python tools/models_page.py --check    # the page is what this writes

Owns the text of the page. Its tables are made from the families of ``kvpool.models`` and from the examples of
the tests (``tests/model_configs.py``), so each number on the page is one that the tests compare.
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

_TEXT: Final = """# Model configurations

`kvpool models --config FILE` and `kvpool size --config FILE` read the `config.json` of a checkpoint, or the
`params.json` of Mistral's own releases. In Python, `kvpool.models.read_config` and `parse_config` return the
same shape.

```python
import json
from kvpool.errors import ModelConfigError
from kvpool.models import parse_config

config = {
    "model_type": "olmo3",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
}
shape = parse_config(json.dumps(config))
print(shape.in_words(), shape.bytes_per_token)
try:
    parse_config(json.dumps(config | {"kv_share_factor": 2}))
except ModelConfigError as error:
    print(error.field, "is refused")
```

```text
8 full, 24 sliding 4,096 524288
kv_share_factor is refused
```

## What the reader accepts

- The reader finds the family of a model by `model_type`. If that is missing or unknown, it uses
  `architectures`.
- Each size comes from a field that the family defines. A missing field is an error, and so is a value out of
  range.
- A field is refused if the family does not define it and its name suggests a layout: layers, heads, KV,
  groups, windows, shared or skipped layers, convolutions, states, latents. The error names the field. A field
  that is `null` counts as absent.
- A model of several parts has its text model in `text_config`, `llm_config`, `language_config` or
  `thinker_config`. That part is read by its own family. Transformers leaves out fields there that equal the
  default of the class. The reader knows these defaults for some families, and refuses the others. Defaults
  never count in a configuration that is no part of another.
- Encoders are refused, because they keep no KV. Encoder-decoder models are refused, because cross attention
  is not counted.

If kvpool refuses a model, give `--layers`, `--kv-heads` and `--head-dim` yourself.

## Formats of the cache

`--dtype` is one of DTYPES. Without it, the reader follows the checkpoint: `kv_cache_scheme` of
compressed-tensors and ModelOpt, and `kv_cache_quant_algo` of ModelOpt, in `config.json` or in
`hf_quant_config.json` beside it. Without both, elements are bf16.

Scales in the cache count. `nvfp4` has one byte for each 16 elements of a key or value, `int4` and the
`per_token_head` formats have 4 bytes per vector. `fp8_ds_mla` takes 656 bytes per token and layer,
`nvfp4_ds_mla` 352; both are formats of MLA with sparse attention. A format that does not exist for a model is
refused. The index of sparse attention is fp8 with a scale, 132 bytes, in every format. States have a dtype of
their own.

## What is not counted

- Layers of draft heads (MTP, EAGLE).
- The filters of StripedHyena, and the convolution over keys and values of Baichuan-M1: a few elements per
  channel and request.
- Cohere 2 attends to one token more than `sliding_window`. vLLM keeps that token, this page does not.
- MiniCPM3 and other models with MLA are counted as latents. An engine that keeps heads instead needs more.

## Families

The reader of a family uses these fields, of those in the [models](#models) below. The last column is the
published file that defines the fields.

FAMILIES

Models of several parts: WRAPPERS.

## Models

Bytes per token in bf16, over all layers and ranks; states per request.

MODELS
"""


def page() -> str:
    """Write the text of the page."""
    parts = {
        "DTYPES": ", ".join(f"`{name}`" for name in DTYPE_BYTES),
        "FAMILIES": "\n".join(_families()),
        "WRAPPERS": ", ".join(f"`{name}`" for name in sorted(WRAPPERS)),
        "MODELS": "\n".join(_models()),
    }
    text = _TEXT
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
        yield f"| {example.model} | {family.name} | {_sum(example.full)} | {windows} | {_sum(example.state)} |"


def _sum(products: Sum) -> str:
    """A sum of products, and what it comes to."""
    if not products:
        return ""
    words = " + ".join(" x ".join(f"{factor:,}" for factor in one) for one in products)
    return f"{words} = {total(products):,}" if len(products) > 1 or math.prod(products[0]) != products[0][0] else words


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
