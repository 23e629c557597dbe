"""Configurations of models, at least one for each family, with their sizes as products of published
numbers.

``model_configs.json`` contains those fields of each published ``config.json`` that matter here. The
page ``design/model-configurations.md`` is generated from this table. ``test_model_config.py`` reads
each configuration.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

#: A sum of products. For example, ``((32, 2, 8, 128, 2),)`` means 32 layers, key and value, 8 heads,
#: 128 elements, 2 bytes.
Sum = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Example:
    """A model, the fields of its configuration that matter, and the sizes of its layers."""

    model: str
    config: dict[str, Any]
    #: Bytes per token, over all layers of full attention.
    full: Sum = ()
    #: Bytes per token, over all layers with a window or a chunk. The key is the window or the chunk in
    #: tokens.
    windows: dict[int, Sum] = dataclasses.field(default_factory=dict)
    #: Bytes of the recurrent states of one request.
    state: Sum = ()


def total(products: Sum) -> int:
    """Returns the number of bytes that a sum of products stands for."""
    return sum(math.prod(one) for one in products)


def kinds(
    layers: int, every: int, last: str = "full_attention", others: str = "sliding_attention"
) -> list[str]:
    """Returns a list ``layer_types`` in which every ``every``-th layer has another type."""
    return [others if (at + 1) % every else last for at in range(layers)]


def _sum(products: list[list[int]]) -> Sum:
    return tuple(map(tuple, products))


def _examples() -> list[Example]:
    rows = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return [
        Example(
            row["model"],
            row["config"],
            _sum(row.get("full", [])),
            {int(span): _sum(products) for span, products in row.get("windows", {}).items()},
            _sum(row.get("state", [])),
        )
        for row in rows
    ]


EXAMPLES = _examples()
